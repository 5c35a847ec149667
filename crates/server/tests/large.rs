//! Large files, alone in their process: its memory is measured.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic, and its tasks end with it")]

mod common;

use common::{Answer, Server, files_in, listen, settings};
use reqwest::Method;
use reqwest::multipart::{Form, Part};

/// A form with one file of so many zeros, which nobody holds in memory.
fn zeros(megabytes: usize) -> Form {
    let chunks = (0..megabytes).map(|_| Ok::<_, std::io::Error>(vec![0_u8; 1 << 20]));
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(chunks));
    Form::new().text("purpose", "user_data").part("file", Part::stream(body).file_name("zeros"))
}

async fn send_zeros(server: &Server, megabytes: usize) -> Option<Answer> {
    let sent = server.request(Method::POST, "/v1/files").multipart(zeros(megabytes)).send().await;
    // The server answers and stops reading; a client may see the answer or the broken pipe.
    match sent {
        Ok(response) => Some(Answer::of(response).await),
        Err(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_over_512_mb_is_refused_and_memory_does_not_grow_with_files() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let before = resident();
    let answer = send_zeros(&server, 100).await.unwrap();
    assert_eq!(answer.ok()["bytes"], 100 << 20);
    let grown = resident().saturating_sub(before);
    assert!(grown < 60 << 20, "{} MB more in memory for 100 MB on disk", grown >> 20);
    if let Some(answer) = send_zeros(&server, 513).await {
        answer.refused(413, "512 MB");
    }
    assert_eq!(server.get("/v1/files").await.ok()["data"].as_array().unwrap().len(), 1);
    server.stop().await;
    // Whoever wrote may still be letting go.
    for _ in 0..100 {
        if files_in(&data.path().join("scratch")) == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("something half-written is left");
}

/// The most memory that this process ever had, bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}
