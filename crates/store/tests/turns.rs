//! Turns as rows: who may write for them, what is stored of them, and who goes on with them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::time::Duration;

use aludel_store::{
    AppendOutcome, BlobName, Error, NewBlob, NewTurn, ResponseId, ResponseRecord, RowChange, Store, SweepOutcome,
    Tenant, TurnEventRecord, TurnId, TurnLease, TurnRecord, TurnState, TurnUpdate, now, now_ms,
};

/// Length of a new turn's lease, milliseconds.
const LEASE_MS: i64 = 60_000;

fn new(id: &str) -> NewTurn {
    NewTurn {
        id: TurnId::parse(id).unwrap(),
        dialect: "openai.responses".into(),
        lease_until_ms: now_ms() + LEASE_MS,
        expires_at: None,
        session: None,
        spec: r#"{"version":1}"#.into(),
        dialect_state: "{}".into(),
        items: vec!["question".into()],
    }
}

async fn create(store: &Store, id: &str) -> TurnRecord {
    store.create_turn(&Tenant::local(), new(id)).await.unwrap().unwrap()
}

fn event(sequence: u64, event: &str) -> TurnEventRecord {
    TurnEventRecord { sequence, at_ms: 1000, event: event.into() }
}

fn update(events: Vec<TurnEventRecord>, items: &[&str]) -> TurnUpdate {
    TurnUpdate { events, items: items.iter().map(|&item| item.into()).collect(), ..TurnUpdate::default() }
}

/// Everything that is stored of a turn.
async fn all(store: &Store, turn: &TurnRecord) -> (Option<TurnRecord>, Vec<TurnEventRecord>, Vec<String>) {
    let row = store.turn(&turn.tenant, &turn.id).await.unwrap();
    let events = store.turn_events(&turn.tenant, &turn.id, None, usize::MAX).await.unwrap();
    (row, events, store.turn_items(&turn.tenant, &turn.id).await.unwrap())
}

/// The least number that no event of a turn has had.
async fn next_sequence(store: &Store, turn: &TurnRecord) -> u64 {
    store.turn(&turn.tenant, &turn.id).await.unwrap().unwrap().next_sequence
}

async fn blob(store: &Store, content: &'static [u8]) -> (BlobName, NewBlob) {
    let blob = store.write_blobs(store.no_room(&Tenant::local()), vec![content]).await.unwrap().remove(0);
    (blob.name().clone(), blob)
}

fn blobs_in(directory: &Path) -> usize {
    let fans = std::fs::read_dir(directory.join("blobs")).unwrap();
    fans.map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap().count()).sum()
}

#[tokio::test]
async fn blobs_of_a_turn_come_and_go_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let expired = create(&store, "resp_1").await;
    let kept = create(&store, "resp_2").await;
    let mut names = Vec::new();
    for turn in [&expired, &kept] {
        let (name, blob) = blob(&store, b"large").await;
        let update = TurnUpdate { blobs: vec![blob], ..update(vec![event(0, "a")], &[]) };
        assert_eq!(store.append_turn(&turn.lease(), update).await.unwrap(), AppendOutcome::Stored { next_sequence: 1 });
        assert_eq!(store.turn_blobs(&turn.tenant, &turn.id).await.unwrap(), std::slice::from_ref(&name));
        names.push(name);
    }
    assert_eq!(store.turn_blobs(&Tenant::terminal(), &kept.id).await.unwrap(), []);
    // A refused update is not kept.
    let fenced = TurnLease { epoch: 9, ..kept.lease() };
    let update = TurnUpdate { blobs: vec![blob(&store, b"late").await.1], ..TurnUpdate::default() };
    assert_eq!(store.append_turn(&fenced, update).await.unwrap(), AppendOutcome::Fenced);
    assert_eq!(blobs_in(directory.path()), 2);
    // As if it were killed with a blob in flight.
    std::mem::forget(blob(&store, b"lost").await.1);
    drop(store);
    let store = Store::open(directory.path()).await.unwrap();
    assert_eq!(store.sweep(Duration::ZERO).await.unwrap(), SweepOutcome { removed: 1, young: 0 });
    let content = store.read_blob(&names[1]).await.unwrap();
    assert_eq!(content.read_whole(5).await.unwrap(), b"large");
    assert!(store.read_blob(&names[1]).await.unwrap().read_whole(4).await.is_err());
    rusqlite::Connection::open(directory.path().join("aludel.db"))
        .and_then(|database| {
            database.execute("UPDATE turns SET expires_at = 1, state = 'ended' WHERE id = 'resp_1'", [])
        })
        .unwrap();
    store.remove_expired().await.unwrap();
    assert_eq!((blobs_in(directory.path()), store.turn(&expired.tenant, &expired.id).await.unwrap()), (1, None));
    assert!(store.delete_turn(&kept.tenant, &kept.id).await.unwrap());
    assert_eq!(blobs_in(directory.path()), 0);
}

#[tokio::test]
async fn a_turn_and_all_of_it_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let turn = create(&store, "resp_1").await;
    assert_eq!(store.create_turn(&Tenant::local(), new("resp_1")).await.unwrap(), None);
    let lease = turn.lease();
    let stored = store.append_turn(&lease, update(vec![event(0, "a"), event(1, "b")], &["answer"])).await.unwrap();
    assert_eq!(stored, AppendOutcome::Stored { next_sequence: 2 });
    let waits = TurnUpdate {
        state: Some(TurnState::WaitingApproval),
        dialect_state: Some("open".into()),
        ..update(vec![event(5, "c")], &["call", "output"])
    };
    assert_eq!(store.append_turn(&lease, waits).await.unwrap(), AppendOutcome::Stored { next_sequence: 6 });
    drop(store);
    let store = Store::open(directory.path()).await.unwrap();
    let (row, events, items) = all(&store, &turn).await;
    let row = row.unwrap();
    let (state, dialect_state) = (TurnState::WaitingApproval, "open".into());
    let expected = TurnRecord { state, dialect_state, next_sequence: 6, ..turn.clone() };
    // Its owner is known to have ended.
    assert_eq!(row, TurnRecord { updated_at_ms: row.updated_at_ms, lease_until_ms: 0, ..expected });
    assert_eq!(events, [event(0, "a"), event(1, "b"), event(5, "c")]);
    assert_eq!(items, ["question", "answer", "call", "output"]);
    let page = store.turn_events(&turn.tenant, &turn.id, Some(0), 1).await.unwrap();
    assert_eq!(page, [event(1, "b")]);
    assert_eq!(store.turn_events(&turn.tenant, &turn.id, Some(u64::MAX), 1).await.unwrap(), []);
}

#[tokio::test]
async fn turns_are_their_tenants_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let key = store.create_key("other", None).await.unwrap();
    let other = store.tenant_of_key(&key.secret).await.unwrap().unwrap();
    let turn = create(&store, "resp_1").await;
    assert!(matches!(
        store.append_turn(&turn.lease(), update(vec![event(0, "a")], &[])).await.unwrap(),
        AppendOutcome::Stored { .. }
    ));
    assert_eq!(store.create_turn(&other, new("resp_1")).await.unwrap(), None);
    let theirs = TurnRecord { tenant: other.clone(), ..turn.clone() };
    assert_eq!(all(&store, &theirs).await, (None, vec![], vec![]));
    assert_eq!(store.append_turn(&theirs.lease(), TurnUpdate::default()).await.unwrap(), AppendOutcome::Gone);
    assert!(!store.delete_turn(&other, &turn.id).await.unwrap());
    assert!(store.delete_turn(&turn.tenant, &turn.id).await.unwrap());
    assert_eq!(
        store.append_turn(&turn.lease(), update(vec![event(1, "b")], &["x"])).await.unwrap(),
        AppendOutcome::Gone
    );
    let database = rusqlite::Connection::open(directory.path().join("aludel.db")).unwrap();
    let query = "SELECT (SELECT count(*) FROM turn_events) + (SELECT count(*) FROM turn_items)";
    assert_eq!(database.query_row(query, [], |row| row.get::<_, u64>(0)).unwrap(), 0);
}

/// Stores a response with this object.
fn response(id: &ResponseId, object: &str) -> RowChange {
    let (object, input) = (object.to_owned(), "[]".to_owned());
    RowChange::response(&Tenant::local(), ResponseRecord { id: id.clone(), object, input, expires_at: None })
}

#[tokio::test]
async fn an_update_and_its_changes_are_stored_together() {
    let directory = tempfile::tempdir().unwrap();
    let (store, other) = both(directory.path()).await;
    let (turn, id) = (create(&store, "resp_1").await, ResponseId::new());
    let object = async || store.response_text(&Tenant::local(), &id).await.unwrap().map(|text| text.object);
    let with = |changes, sequence| TurnUpdate { changes, ..update(vec![event(sequence, "a")], &[]) };

    let before = all(&store, &turn).await;
    let broken = with(vec![response(&id, r#"{"status":"completed"}"#), response(&id, "{")], 0);
    assert!(store.append_turn(&turn.lease(), broken).await.is_err());
    let late = with(vec![response(&id, r#"{"status":"completed"}"#)], 0);
    let fenced = TurnLease { epoch: 2, ..turn.lease() };
    assert_eq!(store.append_turn(&fenced, late).await.unwrap(), AppendOutcome::Fenced);
    assert_eq!((all(&store, &turn).await, object().await), (before, None));

    let whole = with(vec![response(&id, "{}"), response(&id, r#"{"status":"completed"}"#)], 0);
    assert_eq!(store.append_turn(&turn.lease(), whole).await.unwrap(), AppendOutcome::Stored { next_sequence: 1 });
    assert_eq!(object().await.as_deref(), Some(r#"{"status":"completed"}"#));

    let row = rusqlite::Connection::open(directory.path().join("aludel.db")).unwrap();
    row.execute_batch("CREATE TRIGGER no BEFORE UPDATE ON responses BEGIN SELECT RAISE(ABORT, 'no'); END").unwrap();
    let before = all(&store, &turn).await;
    assert!(store.append_turn(&turn.lease(), with(vec![response(&id, "{}")], 1)).await.is_err());
    assert_eq!(all(&store, &turn).await, before, "the event alone");
    row.execute_batch("DROP TRIGGER no").unwrap();

    // Its document is still wanted.
    assert!(matches!(store.end_turn(&turn.lease()).await.unwrap(), AppendOutcome::Stored { .. }));
    let late = |status: &str| with(vec![response(&id, &format!(r#"{{"status":"{status}"}}"#))], 1);
    assert_eq!(store.append_turn(&turn.lease(), late("failed")).await.unwrap(), AppendOutcome::Ended);
    assert_eq!(object().await.as_deref(), Some(r#"{"status":"failed"}"#));

    // A client that deletes it means its document as well.
    assert!(other.delete_turn(&turn.tenant, &turn.id).await.unwrap());
    assert!(other.delete_response(&turn.tenant, &id).await.unwrap());
    assert_eq!(store.append_turn(&turn.lease(), late("cancelled")).await.unwrap(), AppendOutcome::Gone);
    assert_eq!(object().await, None);
}

#[tokio::test]
async fn who_lost_a_turn_or_ended_it_writes_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let (store, other) = both(directory.path()).await;
    let turn = create(&store, "resp_1").await;
    assert_eq!(other.take_over_turns(now_ms(), now_ms() + 60_000, 9).await.unwrap(), []);
    let later = turn.lease_until_ms + 1;
    let [taken] = <[_; 1]>::try_from(other.take_over_turns(later, later + 60_000, 9).await.unwrap()).unwrap();
    assert_eq!((taken.epoch, &taken.owner, taken.lease_until_ms), (2, other.owner(), later + 60_000));
    let before = all(&store, &turn).await;
    let lost = TurnUpdate { state: Some(TurnState::Ended), ..update(vec![event(0, "lost")], &["lost"]) };
    assert_eq!(store.append_turn(&turn.lease(), lost).await.unwrap(), AppendOutcome::Fenced);
    assert_eq!(all(&store, &turn).await, before);
    assert_eq!(store.renew_leases(store.owner(), later).await.unwrap(), []);
    assert_eq!(other.renew_leases(other.owner(), later).await.unwrap(), [taken.lease()]);
    assert_eq!(store.turns_of_owner(store.owner()).await.unwrap(), []);
    assert_eq!(other.turns_of_owner(other.owner()).await.unwrap().len(), 1);
    assert_eq!(other.end_turn(&taken.lease()).await.unwrap(), AppendOutcome::Stored { next_sequence: 0 });
    assert_eq!(
        other.append_turn(&taken.lease(), update(vec![event(0, "a")], &[])).await.unwrap(),
        AppendOutcome::Ended
    );
    let ended = store.turn(&turn.tenant, &turn.id).await.unwrap().unwrap();
    assert_eq!((ended.state, ended.ended_at_ms), (TurnState::Ended, Some(ended.updated_at_ms)));
    assert_eq!(store.take_over_turns(i64::MAX, later, 9).await.unwrap(), []);
    assert_eq!(other.turns_of_owner(other.owner()).await.unwrap(), []);
}

/// A server's store, and that of another process beside it.
async fn both(directory: &std::path::Path) -> (Store, Store) {
    (Store::open(directory).await.unwrap(), Store::open_beside(directory).await.unwrap())
}

#[tokio::test]
async fn no_number_is_used_twice() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let turn = create(&store, "resp_1").await;
    let lease = turn.lease();
    assert!(matches!(
        store.append_turn(&lease, update(vec![event(3, "a")], &[])).await.unwrap(),
        AppendOutcome::Stored { next_sequence: 4 }
    ));
    let before = all(&store, &turn).await;
    for events in [vec![event(3, "b")], vec![event(0, "b")], vec![event(4, "b"), event(4, "c")]] {
        let refused = store.append_turn(&lease, update(events, &["b"])).await;
        assert!(matches!(refused, Err(Error::Sequence { .. })), "{refused:?}");
        assert_eq!(all(&store, &turn).await, before);
    }
    assert_eq!(next_sequence(&store, &turn).await, 4);
}

#[tokio::test]
async fn only_turns_that_nobody_drives_expire() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let expired = |id: &str| NewTurn { expires_at: Some(now() - 1), ..new(id) };
    let running = store.create_turn(&Tenant::local(), expired("resp_1")).await.unwrap().unwrap();
    let ended = store.create_turn(&Tenant::local(), expired("resp_2")).await.unwrap().unwrap();
    let kept = create(&store, "resp_3").await;
    let left = NewTurn { lease_until_ms: now_ms() - 1, ..expired("resp_4") };
    let left = store.create_turn(&Tenant::local(), left).await.unwrap().unwrap();
    for turn in [&ended, &kept] {
        assert!(matches!(store.end_turn(&turn.lease()).await.unwrap(), AppendOutcome::Stored { .. }));
    }
    store.remove_expired().await.unwrap();
    for (turn, there) in [(running, true), (ended, false), (kept, true), (left, false)] {
        assert_eq!(store.turn(&turn.tenant, &turn.id).await.unwrap().is_some(), there, "{}", turn.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_who_take_over_each_turn_goes_to_one() {
    const TURNS: usize = 60;
    let directory = tempfile::tempdir().unwrap();
    let (store, second) = both(directory.path()).await;
    let third = Store::open_beside(directory.path()).await.unwrap();
    for turn in 0..TURNS {
        create(&store, &format!("resp_{turn}")).await;
    }
    let takers = [store, second, third].map(|store| {
        tokio::spawn(async move {
            let mut taken = Vec::new();
            loop {
                let (expired, until) = (now_ms() + LEASE_MS + 1000, now_ms() + 10 * LEASE_MS);
                let turns = store.take_over_turns(expired, until, 7).await.unwrap();
                if turns.is_empty() {
                    return taken;
                }
                assert!(turns.iter().all(|turn| turn.epoch == 2 && turn.owner == *store.owner()));
                taken.extend(turns.into_iter().map(|turn| turn.id));
            }
        })
    });
    let mut taken = Vec::new();
    for taker in takers {
        taken.extend(taker.await.unwrap());
    }
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), TURNS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_was_taken_over_from_is_cut_off_between_two_writes() {
    let directory = tempfile::tempdir().unwrap();
    let (store, other) = both(directory.path()).await;
    let turn = create(&store, "resp_1").await;
    let old = tokio::spawn({
        let (store, lease) = (store.clone(), turn.lease());
        async move {
            let mut next = 0;
            loop {
                let events = vec![event(next, "old"), event(next + 1, "old")];
                match store.append_turn(&lease, update(events, &["old"])).await.unwrap() {
                    AppendOutcome::Stored { next_sequence } => next = next_sequence,
                    AppendOutcome::Fenced => return next,
                    refused => panic!("{refused:?}"),
                }
            }
        }
    });
    while next_sequence(&store, &turn).await < 20 {
        tokio::task::yield_now().await;
    }
    let taken = other.take_over_turns(i64::MAX, i64::MAX, 1).await.unwrap().remove(0);
    for next in taken.next_sequence..taken.next_sequence + 10 {
        let stored = other.append_turn(&taken.lease(), update(vec![event(next, "new")], &["new"])).await.unwrap();
        assert_eq!(stored, AppendOutcome::Stored { next_sequence: next + 1 });
    }
    assert_eq!(old.await.unwrap(), taken.next_sequence);
    let (_, events, items) = all(&store, &turn).await;
    let old = usize::try_from(taken.next_sequence).unwrap();
    assert!(events.iter().enumerate().all(|(number, event)| (event.event == "old") == (number < old)));
    assert_eq!((events.len(), items.len()), (old + 10, 1 + old / 2 + 10));
}

#[tokio::test]
async fn a_queued_turn_of_an_earlier_version_is_running() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let turn = create(&store, "resp_1").await;
    rusqlite::Connection::open(directory.path().join("aludel.db"))
        .and_then(|database| database.execute("UPDATE turns SET state = 'queued'", []))
        .unwrap();
    assert_eq!(store.turn(&turn.tenant, &turn.id).await.unwrap().unwrap().state, TurnState::Running);
}
