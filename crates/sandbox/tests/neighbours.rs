//! Effects of sandboxes that misbehave on one that does not.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use aludel_sandbox::Limits;
use common::{backend, limits, run, sandbox, shared};

const ABUSERS: [&str; 4] = [
    "import os, time\nwhile True:\n    try: os.fork() or time.sleep(1)\n    except OSError: pass",
    "n = 0\nwhile True:\n    try: open(f'f{n}', 'wb').write(bytes(1 << 20)); n += 1\n    except OSError: n = 0",
    "held = []\nwhile True:\n    try: held.append(bytearray(1 << 20))\n    except MemoryError: held.clear()",
    "while True: print('x' * 10000)",
];

/// That it works at all: how fast is measured by `cargo bench -p aludel-sandbox --bench neighbours`; a test that times fails at random.
#[tokio::test(flavor = "multi_thread")]
async fn a_fifth_sandbox_answers_while_four_misbehave() {
    let quiet = sandbox(shared().await, limits()).await;
    let mut abused = Vec::new();
    for abuser in ABUSERS {
        let hostile = sandbox(shared().await, Limits { timeout: Duration::from_secs(60), ..limits() }).await;
        abused.push(hostile.execute(abuser).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..20 {
        assert_eq!(run(&quiet, "print(1 + 1)").await.stdout, "2\n");
    }
    drop(abused);
}

#[tokio::test]
async fn a_program_that_has_run_for_long_gives_way_until_the_next_begins() {
    let scratch = backend().await;
    let busy = sandbox(&scratch.local, limits()).await;
    let instance = std::fs::read_dir(scratch.data.path().join("run")).unwrap().next().unwrap().unwrap().path();
    let groups = std::fs::read_to_string(instance.join("cgroups")).unwrap();
    let Some(share) = groups.lines().find_map(|group| share_of(Path::new(group))) else {
        eprintln!("not checked: there is no processor controller here");
        return;
    };
    // The full share, as the instance's own group has it. A program has more in its first moments.
    let full = number_in(&share.ancestors().nth(2).unwrap().join(share.file_name().unwrap()));
    let has_given_way = || number_in(&share) < full;
    let mut running = busy.execute("while True: pass").await.unwrap();
    wait_until("it gives way", has_given_way).await;
    running.interrupter().interrupt();
    while running.next().await.is_some() {}
    assert!(has_given_way(), "what it left behind stays in the background");
    // For a second from its beginning on, which a machine that is busy may miss.
    let mut beginnings = 0;
    let mut running = loop {
        let mut running = busy.execute("import time; time.sleep(20)").await.unwrap();
        if is_soon(Duration::from_millis(900), || !has_given_way()).await {
            break running;
        }
        beginnings += 1;
        assert!(beginnings < 10, "the next one comes first");
        running.interrupter().interrupt();
        while running.next().await.is_some() {}
    };
    wait_until("and gives way in its turn", has_given_way).await;
    running.interrupter().interrupt();
    while running.next().await.is_some() {}
}

/// The file with the share of the group of the first sandbox below the instance's.
fn share_of(group: &Path) -> Option<std::path::PathBuf> {
    ["cpu.shares", "cpu.weight"].iter().map(|name| group.join("s1").join(name)).find(|file| file.exists())
}

fn number_in(file: &Path) -> u64 {
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

async fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(is_soon(Duration::from_secs(20), is_so).await, "{what}");
}

async fn is_soon(time: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}
