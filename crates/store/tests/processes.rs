//! Several processes on one data directory, and one that is killed.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and its child processes answer on their output"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aludel_store::{
    AppendOutcome, NewTurn, Store, SweepOutcome, Tenant, TurnEventRecord, TurnId, TurnState, TurnUpdate, now_ms,
};

/// Names the child's work, in its environment.
const WORK: &str = "ALUDEL_STORE_TEST_WORK";

/// Names the directory of the state, in its environment.
const STATE: &str = "ALUDEL_STORE_TEST_STATE";

/// Events of one append.
const EVENTS: u64 = 5;

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
            let blob = store.write_blobs(store.no_room(&Tenant::local()), vec![&b"in flight"[..]]).await.unwrap();
            let mut writer = store.new_blob(&Tenant::local(), 0).await.unwrap();
            writer.write(b"half").await.unwrap();
            say("written");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            drop((blob, writer));
        }
        "appends" => {
            let new = NewTurn {
                id: TurnId::parse("resp_1").unwrap(),
                dialect: "openai.responses".into(),
                lease_until_ms: now_ms() + 3_600_000,
                expires_at: None,
                session: None,
                spec: "{}".into(),
                dialect_state: "0".into(),
                items: vec![],
            };
            let lease = store.create_turn(&Tenant::local(), new).await.unwrap().unwrap().lease();
            for number in 0.. {
                let event = |sequence| TurnEventRecord { sequence, at_ms: now_ms(), event: "x".repeat(2000) };
                let events = (number * EVENTS..(number + 1) * EVENTS).map(event).collect();
                let dialect_state = Some((number + 1).to_string());
                let update = TurnUpdate { events, items: vec!["item".into()], dialect_state, ..TurnUpdate::default() };
                assert!(matches!(store.append_turn(&lease, update).await.unwrap(), AppendOutcome::Stored { .. }));
                say(number + 1);
            }
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
    let mine = store.write_blobs(store.no_room(&Tenant::local()), vec![&b"mine"[..]]).await.unwrap();
    assert_eq!(store.sweep(Duration::ZERO).await.unwrap(), SweepOutcome::default());
    other.kill();
    assert_eq!(store.sweep(Duration::from_secs(60)).await.unwrap(), SweepOutcome { removed: 0, young: 2 });
    assert_eq!(store.sweep(Duration::ZERO).await.unwrap(), SweepOutcome { removed: 2, young: 0 });
    assert_eq!(store.read_blob(mine[0].name()).await.unwrap().bytes(), 4);
    let owners = std::fs::read_dir(directory.path().join("owners")).unwrap();
    assert_eq!(owners.map(|owner| owner.unwrap().file_name()).collect::<Vec<_>>(), [store.owner().as_str()]);
}

#[tokio::test]
async fn a_driver_that_is_killed_leaves_all_that_was_acknowledged_and_nothing_half() {
    for appends in [1, 3, 10, 25] {
        let directory = tempfile::tempdir().unwrap();
        // Its file is made, so that it need not be made by two at once.
        drop(Store::open(directory.path()).await.unwrap());
        let mut driver = Other::start("appends", directory.path());
        let mut acknowledged = 0;
        while acknowledged < appends {
            acknowledged = driver.said().unwrap().parse().unwrap();
        }
        let owners = std::fs::read_dir(directory.path().join("owners")).unwrap().count();
        assert_eq!(owners, 1);
        // In the middle of whatever it does now. What it acknowledged before it died counts, too.
        driver.child.kill().unwrap();
        while let Some(said) = driver.said() {
            acknowledged = said.parse().unwrap();
        }
        driver.kill();

        let store = Store::open(directory.path()).await.unwrap();
        let (tenant, id) = (Tenant::local(), TurnId::parse("resp_1").unwrap());
        // Its lease is long, but it is known to be dead.
        let turn = store.take_over_turns(now_ms(), now_ms() + 60_000, 9).await.unwrap().remove(0);
        assert_eq!((turn.epoch, turn.state), (2, TurnState::Running));
        let stored: u64 = turn.dialect_state.parse().unwrap();
        assert!(stored == acknowledged || stored == acknowledged + 1, "{stored} stored, {acknowledged} acknowledged");
        assert_eq!(turn.next_sequence, stored * EVENTS);
        let events = store.turn_events(&tenant, &id, None, usize::MAX).await.unwrap();
        let numbers: Vec<u64> = events.iter().map(|event| event.sequence).collect();
        assert_eq!(numbers, (0..stored * EVENTS).collect::<Vec<_>>());
        assert_eq!(store.turn_items(&tenant, &id).await.unwrap().len() as u64, stored);
    }
}

#[tokio::test]
async fn turns_of_a_living_process_are_not_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let mut driver = Other::start("appends", directory.path());
    assert_eq!(driver.said().unwrap(), "1");
    store.sweep(Duration::ZERO).await.unwrap();
    assert_eq!(store.take_over_turns(now_ms(), now_ms() + 60_000, 9).await.unwrap(), []);
    driver.kill();
    assert_eq!(store.take_over_turns(now_ms(), now_ms() + 60_000, 9).await.unwrap(), []);
    store.sweep(Duration::from_secs(60)).await.unwrap();
    assert_eq!(store.take_over_turns(now_ms(), now_ms() + 60_000, 9).await.unwrap().len(), 1);
}
