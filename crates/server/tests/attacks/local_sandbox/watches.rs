//! Directories that are watched: trees without end, storms of changes, and clients that do not read.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::raw::LONG;
use crate::tenant::{Tenant, resident};

/// Changes that are kept for a client (`sandbox/kernel/files.py`).
const MAX_EVENTS: usize = 20_000;
/// Watches of one sandbox (the same, and `engine/src/sandboxes/watches.rs`).
const MAX_WATCHES: usize = 32;

async fn watcher(tenant: &Tenant, path: &str) -> (StatusCode, Value) {
    let asked = json!({ "path": path, "recursive": true, "includeEntry": true });
    tenant.call("/filesystem.Filesystem/CreateWatcher", asked).await
}

async fn events(tenant: &Tenant, id: &Value) -> Vec<Value> {
    let (status, events) = tenant.call("/filesystem.Filesystem/GetWatcherEvents", json!({ "watcherId": id })).await;
    assert_eq!(status, StatusCode::OK, "{events}");
    events["events"].as_array().cloned().unwrap_or_default()
}

/// Files are served, and changes are reported.
async fn files_are_well(tenant: &Tenant) {
    tenant.run("os.makedirs('/tmp/control', exist_ok=True)").await;
    let (status, watch) = watcher(tenant, "/tmp/control").await;
    assert_eq!(status, StatusCode::OK, "{watch}");
    tenant.run("open('/tmp/control/new', 'w').close()").await;
    assert!(!events(tenant, &watch["watcherId"]).await.is_empty());
    tenant.call("/filesystem.Filesystem/RemoveWatcher", json!({ "watcherId": watch["watcherId"] })).await;
    tenant.run("os.unlink('/tmp/control/new')").await;
}

#[tokio::test]
async fn a_hundred_thousand_directories_are_not_watched() {
    let tenant = Tenant::new("many directories").await;
    // As many as the sandbox has room for, up to that.
    let made = tenant
        .run(
            "made = 0\ntry:\n    for outer in range(100):\n        for inner in range(1000): os.makedirs(f'/tmp/many/{outer}/{inner}'); made += 1\n\
             except OSError: pass\nprint(made)",
        )
        .await;
    assert!(made.trim().parse::<usize>().unwrap() > 5000, "{made}");
    let before = resident();
    let (status, said) = timeout(LONG, watcher(&tenant, "/tmp/many")).await.expect("an answer");
    // The first so many, or none, in words.
    assert!(status == StatusCode::OK || said["code"] == "resource_exhausted", "{status} {said}");
    // No watch of it is left over.
    for _ in 0..2 * MAX_WATCHES {
        let (status, said) = timeout(LONG, watcher(&tenant, "/tmp/many")).await.expect("an answer");
        assert!(status == StatusCode::OK || matches!(status.as_u16(), 400 | 429), "{status} {said}");
        if status != StatusCode::OK {
            break;
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 48 << 20, "{} MB more", grown >> 20);
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn a_storm_of_changes_is_cut_and_takes_nothing() {
    let tenant = Tenant::new("storm").await;
    tenant.run("os.makedirs('/tmp/storm')").await;
    let (status, watch) = watcher(&tenant, "/tmp/storm").await;
    assert_eq!(status, StatusCode::OK, "{watch}");
    let asked = json!({ "path": "/tmp/storm", "recursive": true, "includeEntry": true });
    // A client that does not read what it follows.
    let stream = tenant.stream("/filesystem.Filesystem/WatchDir", asked).await;
    assert_eq!(stream.status(), StatusCode::OK);
    let before = resident();
    let storm = "import threading\nstop = False\ndef storm(number):\n    name = f'/tmp/storm/{number}' + 'x' * 200\n    while not stop:\n        \
                 open(name, 'w').close(); os.mkdir(name + '.d'); os.rename(name, name + '.d/y'); os.unlink(name + '.d/y'); os.rmdir(name + '.d')\n\
                 for number in range(4): threading.Thread(target=storm, args=(number,), daemon=True).start()\ntime.sleep(2)";
    tenant.run(storm).await;
    let events = events(&tenant, &watch["watcherId"]).await;
    assert!(!events.is_empty() && events.len() <= MAX_EVENTS, "{}", events.len());
    let grown = resident().saturating_sub(before);
    assert!(grown < 48 << 20, "{} MB more", grown >> 20);
    tenant.run("stop = True").await;
    drop(stream);
    sleep(Duration::from_millis(200)).await;
    files_are_well(&tenant).await;
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn changes_with_long_targets_are_told_all_the_same() {
    let tenant = Tenant::new("targets").await;
    tenant.run("os.makedirs('/home/user/large')").await;
    let (status, watch) = watcher(&tenant, "large").await;
    assert_eq!(status, StatusCode::OK, "{watch}");
    // A thousand changes, each with as much as is reported of one link: more than one answer holds.
    tenant
        .run(
            "target = ('/' + '\\x01' * 250) * 16\nfor number in range(1000): os.symlink(target, f'/home/user/large/{number}')",
        )
        .await;
    let events = events(&tenant, &watch["watcherId"]).await;
    assert!(!events.is_empty(), "the changes were lost");
    files_are_well(&tenant).await;
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn a_tree_deeper_than_any_stack_is_watched_as_far_as_it_goes() {
    let tenant = Tenant::new("deep").await;
    let deep = "def deep(root, levels):\n    os.makedirs(root); here = os.open(root, os.O_RDONLY)\n    for _ in range(levels):\n        \
                os.mkdir('d', dir_fd=here); below = os.open('d', os.O_RDONLY, dir_fd=here); os.close(here); here = below\n    os.close(here)";
    tenant.run(&format!("{deep}\ndeep('/tmp/deep', 1900)")).await;
    let (status, said) = timeout(LONG, watcher(&tenant, "/tmp/deep")).await.expect("an answer");
    assert!(status == StatusCode::OK || status.is_client_error(), "{status} {said}");
    // One that is moved into a directory that is watched, and one that grows there.
    tenant.run("os.makedirs('/tmp/shallow')").await;
    let (status, watch) = watcher(&tenant, "/tmp/shallow").await;
    assert_eq!(status, StatusCode::OK, "{watch}");
    tenant.run("os.rename('/tmp/deep', '/tmp/shallow/deep')").await;
    assert!(!events(&tenant, &watch["watcherId"]).await.is_empty());
    files_are_well(&tenant).await;
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn watches_are_bounded_and_are_given_back() {
    let tenant = Tenant::new("many watches").await;
    tenant.run("os.makedirs('/tmp/watched')").await;
    let mut watches = Vec::new();
    loop {
        let (status, watch) = watcher(&tenant, "/tmp/watched").await;
        if status != StatusCode::OK {
            assert!(watch["message"].as_str().is_some_and(|words| words.contains("32")), "{watch}");
            break;
        }
        watches.push(watch["watcherId"].clone());
        assert!(watches.len() <= MAX_WATCHES);
    }
    assert_eq!(watches.len(), MAX_WATCHES);
    // None of another's name, nor by a name that is none.
    let other = Tenant::new("other watcher").await;
    for id in [watches[0].clone(), json!(""), json!("x".repeat(100_000)), json!("../1")] {
        let (status, said) = other.call("/filesystem.Filesystem/GetWatcherEvents", json!({ "watcherId": id })).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{said}");
    }
    for id in watches {
        tenant.call("/filesystem.Filesystem/RemoveWatcher", json!({ "watcherId": id })).await;
    }
    files_are_well(&tenant).await;
    other.leave().await;
    tenant.leave().await;
}
