//! What several processes leave each other, and what is left of one that is killed.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and its child processes answer on their output"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aludel_store::{Store, Swept};

/// Names the child's work, in its environment.
const WORK: &str = "ALUDEL_STORE_TEST_WORK";

/// Names the directory of the state, in its environment.
const STATE: &str = "ALUDEL_STORE_TEST_STATE";

/// A process that works on the same state. It is killed when it is dropped.
struct Other {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(work: &str, state: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "other_process", "--nocapture", "--test-threads=1"]).env(WORK, work).env(STATE, state);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The next line that it says to us. The test harness says others.
    fn said(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some((_, said)) = line.trim_end().split_once("said: ") {
                return Some(said.to_owned());
            }
            line.clear();
        }
        None
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended already.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn say(line: impl std::fmt::Display) {
    println!("said: {line}");
    std::io::stdout().flush().unwrap();
}

/// Work of the other processes. Without one to do, it is a test of nothing.
#[tokio::test]
async fn other_process() {
    let Ok(work) = std::env::var(WORK) else { return };
    let state = std::env::var(STATE).unwrap();
    let store = Store::open_beside(Path::new(&state)).await.unwrap();
    match &*work {
        "blob in flight" => {
            let blob = store.write_blobs(vec![&b"in flight"[..]]).await.unwrap();
            let mut writer = store.new_blob().await.unwrap();
            writer.write(b"half").await.unwrap();
            say("written");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            drop((blob, writer));
        }
        work => panic!("unknown work {work}"),
    }
}

#[tokio::test]
async fn what_a_living_process_has_in_flight_is_left_alone_and_a_dead_ones_goes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let mut other = Other::start("blob in flight", directory.path());
    assert_eq!(other.said().unwrap(), "written");
    let mine = store.write_blobs(vec![&b"mine"[..]]).await.unwrap();
    assert_eq!(store.sweep(Duration::ZERO).await.unwrap(), Swept::default());
    other.kill();
    assert_eq!(store.sweep(Duration::from_secs(60)).await.unwrap(), Swept { removed: 0, young: 2 });
    assert_eq!(store.sweep(Duration::ZERO).await.unwrap(), Swept { removed: 2, young: 0 });
    assert!(mine[0].path().exists());
    let owners = std::fs::read_dir(directory.path().join("owners")).unwrap();
    assert_eq!(owners.map(|owner| owner.unwrap().file_name()).collect::<Vec<_>>(), [store.owner().as_str()]);
}
