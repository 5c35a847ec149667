//! The end of a sandbox by itself: its owner hears of it at once, though nothing is asked of it.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::raw::LONG;
use crate::tenant::Tenant;

/// Processes of this host, as directories.
fn processes() -> impl Iterator<Item = PathBuf> {
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    all.filter(|path| path.join("status").exists())
}

/// The init beside the process that has such an argument: the first of the same process namespace.
fn init_beside(argument: &str) -> Option<i32> {
    let beside = processes().find(|path| {
        std::fs::read(path.join("cmdline"))
            .is_ok_and(|words| words.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
    })?;
    let namespace = std::fs::read_link(beside.join("ns/pid")).ok()?;
    let is_first = |path: &PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let inside =
            status.lines().find(|line| line.starts_with("NSpid:")).and_then(|line| line.split_whitespace().last());
        inside == Some("1") && std::fs::read_link(path.join("ns/pid")).is_ok_and(|other| other == namespace)
    };
    processes().find(is_first)?.file_name()?.to_str()?.parse().ok()
}

#[tokio::test]
async fn a_sandbox_without_a_kernel_whose_init_ends_is_gone_for_its_owner() {
    let (tenant, other) = (Tenant::without_kernel("without an init").await, Tenant::new("with an init").await);
    let argument = format!("{}.25", std::process::id());
    let start = json!({ "process": { "cmd": "sleep", "args": [argument] } });
    let stream = tenant.stream("/process.Process/Start", start).await;
    let init = timeout(LONG, async {
        loop {
            if let Some(init) = init_beside(&argument) {
                return init;
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    let init = init.await.expect("the command runs");
    let path = format!("/sandboxes/{}", tenant.id);
    let look = async || tenant.request(Method::GET, &path).send().await.unwrap().status();
    assert_eq!(look().await, StatusCode::OK);
    let killed = std::process::Command::new("kill").args(["-9", &init.to_string()]).status().unwrap();
    assert!(killed.success());
    let gone = async {
        while look().await != StatusCode::NOT_FOUND {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, gone).await.expect("the owner hears of the end");
    drop(stream);
    other.is_well().await;
    other.leave().await;
}
