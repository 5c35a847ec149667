//! The clients: each sends its next request when it has the answer to the last one, or a while later, over a connection that it keeps.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::http::Connection;

/// The longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// One round against one server.
#[derive(Deserialize)]
struct Round {
    /// Address, such as `127.0.0.1:8080`.
    address: String,
    key: String,
    /// The body of each request.
    body: String,
    /// Words that every answer must hold.
    expect: String,
    /// Number of clients.
    clients: usize,
    /// Requests of each client that are not counted.
    warm: usize,
    /// Requests of all clients together, at most.
    requests: usize,
    /// No request is begun after so long.
    seconds: f64,
    /// Pause of each client before a request.
    pause: f64,
}

#[derive(Serialize)]
struct Measured {
    /// Durations of the counted requests, in nanoseconds.
    took: Vec<u64>,
    /// From the first counted request to the end of the last, in seconds.
    seconds: f64,
    /// All requests, also those that are not counted.
    sent: usize,
}

/// Reads a round from standard input as JSON, and prints what was measured.
pub(crate) async fn run() -> anyhow::Result<()> {
    let mut round = String::new();
    std::io::stdin().read_to_string(&mut round)?;
    let round: Arc<Round> = Arc::new(serde_json::from_str(&round).context("not a round")?);
    let left = Arc::new(AtomicUsize::new(round.requests));
    let ready = Arc::new(Barrier::new(round.clients));
    let mut clients = JoinSet::new();
    for _ in 0..round.clients {
        clients.spawn(client(Arc::clone(&round), Arc::clone(&left), Arc::clone(&ready)));
    }
    let (mut took, mut begin, mut end) = (Vec::new(), None, None);
    while let Some(client) = clients.join_next().await {
        let (times, began, ended) = client??;
        took.extend(times);
        begin = begin.into_iter().chain([began]).min();
        end = end.into_iter().chain([ended]).max();
    }
    let seconds = begin.zip(end).map_or(0.0, |(begin, end): (Instant, Instant)| (end - begin).as_secs_f64());
    let sent = took.len() + round.clients * round.warm;
    println!("{}", serde_json::to_string(&Measured { took, seconds, sent })?);
    Ok(())
}

async fn client(
    round: Arc<Round>,
    left: Arc<AtomicUsize>,
    ready: Arc<Barrier>,
) -> anyhow::Result<(Vec<u64>, Instant, Instant)> {
    let stream = TcpStream::connect(&round.address).await.with_context(|| format!("connect {}", round.address))?;
    let mut connection = Connection::new(stream)?;
    let Round { address, key, body, .. } = &*round;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\naccept: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..round.warm {
        ask(&mut connection, &request, &round.expect).await?;
    }
    ready.wait().await;
    let begin = Instant::now();
    let (deadline, mut took) = (begin + Duration::from_secs_f64(round.seconds), Vec::new());
    let one_less = |left: usize| left.checked_sub(1);
    let pause = Duration::from_secs_f64(round.pause);
    let mut now = begin;
    while now < deadline && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
        if !pause.is_zero() {
            sleep(pause).await;
            now = Instant::now();
        }
        let sent = now;
        ask(&mut connection, &request, &round.expect).await?;
        now = Instant::now();
        took.push(u64::try_from((now - sent).as_nanos()).unwrap_or(u64::MAX));
    }
    Ok((took, begin, now))
}

async fn ask(connection: &mut Connection, request: &str, expect: &str) -> anyhow::Result<()> {
    connection.send(request.as_bytes()).await?;
    let answer = timeout(PATIENCE, connection.receive()).await.context("no answer in time")??;
    let answer = answer.context("the connection was closed")?;
    let body = String::from_utf8_lossy(&answer.body);
    let is_right = answer.first.starts_with("HTTP/1.1 200") && body.contains(expect);
    ensure!(is_right, "not what was expected ({expect}): {}: {body}", answer.first);
    Ok(())
}
