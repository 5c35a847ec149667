//! What sandboxes that misbehave do to one that does not.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::time::Duration;

use aludel_sandbox::Limits;
use common::{backend, limits, run, sandbox};

const ABUSERS: [&str; 4] = [
    "import os, time\nwhile True:\n    try: os.fork() or time.sleep(1)\n    except OSError: pass",
    "n = 0\nwhile True:\n    try: open(f'f{n}', 'wb').write(bytes(1 << 20)); n += 1\n    except OSError: n = 0",
    "held = []\nwhile True:\n    try: held.append(bytearray(1 << 20))\n    except MemoryError: held.clear()",
    "while True: print('x' * 10000)",
];

/// That it works at all: how fast is measured by `cargo bench -p aludel-sandbox --bench neighbours`; a test that times fails at random.
#[tokio::test(flavor = "multi_thread")]
async fn a_fifth_sandbox_answers_while_four_misbehave() {
    let scratch = backend().await;
    let quiet = sandbox(&scratch.local, limits()).await;
    let mut abused = Vec::new();
    for abuser in ABUSERS {
        let hostile = sandbox(&scratch.local, Limits { timeout: Duration::from_secs(60), ..limits() }).await;
        abused.push(hostile.execute(abuser).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..20 {
        assert_eq!(run(&quiet, "print(1 + 1)").await.stdout, "2\n");
    }
    drop(abused);
}
