//! Reads and writes at the same time, blobs, and a directory after a crash.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use aludel_store::{AuditEntry, AuditEvent, Error, PageQuery, Store, SweepOutcome, Tenant, program_digest};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::{blob, content, count, file, new_file, new_session, tenants};

/// Begins what a caller asks for, and lets the caller go away.
fn begin_and_drop(future: impl Future) {
    assert!(pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// Waits until something is so.
async fn until(mut so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
}

#[tokio::test]
async fn who_reads_does_not_wait_for_who_writes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    let kept = file(&store, &tenant, b"kept").await;
    let other = rusqlite::Connection::open(directory.path().join("aludel.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let writing = tokio::spawn({
        let (store, tenant) = (store.clone(), tenant.clone());
        async move { store.add_conversation(&tenant, json!({}), vec![]).await.unwrap() }
    });
    // Time to begin, in which the writer waits for the other process.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let read = tokio::time::timeout(Duration::from_secs(5), store.file(&tenant, &kept.id)).await;
    assert_eq!(read.unwrap().unwrap(), Some(kept));
    assert!(!writing.is_finished());
    other.execute_batch("COMMIT").unwrap();
    let conversation = writing.await.unwrap();
    assert_eq!(store.conversation(&tenant, &conversation.id).await.unwrap(), Some(conversation));
}

#[tokio::test]
async fn more_readers_than_connections_all_get_their_turn() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (mine, other) = tenants(&store).await;
    let mut readers = Vec::new();
    for number in 0..100 {
        let (store, tenant) = (store.clone(), if number % 3 == 0 { other.clone() } else { mine.clone() });
        readers.push(tokio::spawn(async move {
            for _ in 0..20 {
                assert!(store.files(&tenant, None, PageQuery::first(1)).await.unwrap().data.is_empty());
                assert!(store.has_keys().await.unwrap());
            }
        }));
    }
    for reader in readers {
        tokio::time::timeout(Duration::from_secs(60), reader).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_write_that_began_is_finished_though_its_caller_goes_away() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    let started = |code: &str| AuditEntry {
        event: AuditEvent::Started,
        request: "resp_1".into(),
        session: "cntr_1".into(),
        code: code.into(),
        actor: "rules".into(),
        outcome: String::new(),
    };
    begin_and_drop(store.audit(&tenant, vec![started("1"), started("2")]));
    until(async || store.audit_log(0, 10).await.unwrap().len() == 2).await;
    // It looks first for what was cut off, and writes then.
    begin_and_drop(store.end_what_was_cut_off("cut off"));
    until(async || store.audit_log(0, 10).await.unwrap().len() == 4).await;
    // Blobs first, then their rows.
    let session = store.add_session(&tenant, new_session(Duration::from_secs(60)), vec![]).await.unwrap().id;
    let files = Vec::from(["a", "b"].map(|path| (new_file(path), Some(path.as_bytes()))));
    begin_and_drop(store.write_session_files(&tenant, &session, files, vec![]));
    until(async || store.all_session_files(&tenant, &session).await.unwrap().len() == 2).await;
    assert_eq!(count(&directory.path().join("blobs")), 2);
    let copies = store.all_session_files(&tenant, &session).await.unwrap().into_iter();
    let copies = copies.map(|file| (new_file(&file.path), file.blob)).collect();
    begin_and_drop(store.add_session(&tenant, new_session(Duration::from_secs(60)), copies));
    let sessions = async || store.sessions(&tenant, None, PageQuery::first(9)).await.unwrap().data;
    until(async || sessions().await.len() == 2).await;
    for session in sessions().await {
        assert_eq!(store.all_session_files(&tenant, &session.id).await.unwrap().len(), 2);
    }
    assert_eq!(count(&directory.path().join("blobs")), 4);
}

#[tokio::test]
async fn blobs_are_written_and_read_as_streams() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let hash = |text: &[u8]| program_digest(std::str::from_utf8(text).unwrap());
    // As many as are synced one by one, and more.
    for number in [1, 4, 9] {
        let texts: Vec<Vec<u8>> = (0..number).map(|text| vec![b'a' + text; 300_000]).collect();
        let blobs = store
            .write_blobs(store.no_room(&Tenant::local()), texts.iter().cloned().map(std::io::Cursor::new).collect())
            .await
            .unwrap();
        let mut others = Vec::new();
        for text in &texts {
            others.push(blob(&store, text).await);
        }
        for blobs in [&blobs, &others] {
            for (blob, text) in blobs.iter().zip(&texts) {
                assert_eq!((blob.bytes(), blob.sha256()), (300_000, &*hash(text)));
                let mut reader = store.read_blob(blob.name()).await.unwrap();
                reader.seek(std::io::SeekFrom::Start(299_999)).await.unwrap();
                let mut rest = Vec::new();
                reader.read_to_end(&mut rest).await.unwrap();
                assert_eq!(rest, text[..1]);
            }
        }
    }
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::NotFound.into())
        }
    }
    let readers: Vec<Box<dyn std::io::Read + Send>> = vec![Box::new(&b"whole"[..]), Box::new(Broken)];
    assert!(matches!(store.write_blobs(store.no_room(&Tenant::local()), readers).await, Err(Error::Source(_))));
    assert_eq!((count(&directory.path().join("blobs")), count(&directory.path().join("scratch"))), (0, 0));
}

#[tokio::test]
async fn what_was_half_written_is_gone_after_a_restart_and_the_rest_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    let kept = file(&store, &tenant, b"kept").await;
    // As a killed process leaves them: a blob without a row, and a file that never became one.
    std::mem::forget(blob(&store, b"orphan").await);
    let mut writer = store.new_blob(&Tenant::local(), 0).await.unwrap();
    writer.write(b"half").await.unwrap();
    std::mem::forget(writer);
    assert_eq!(count(&directory.path().join("blobs")), 2);
    // The forgotten writer keeps its store, and with it the lock: another directory holds the same files.
    let copy = tempfile::tempdir().unwrap();
    let copied = std::process::Command::new("cp").arg("-a").arg(directory.path().join(".")).arg(copy.path()).status();
    assert!(copied.unwrap().success());
    let store = Store::open(copy.path()).await.unwrap();
    // Not yet: it may have been made a moment ago by somebody whose lock cannot be seen here.
    let (blobs, scratch) = (copy.path().join("blobs"), copy.path().join("scratch"));
    assert_eq!((count(&blobs), count(&scratch)), (2, 1));
    std::fs::write(scratch.join("README"), "not ours").unwrap();
    assert_eq!(store.sweep(Duration::from_secs(60)).await.unwrap(), SweepOutcome { removed: 0, young: 2 });
    assert_eq!(store.sweep(Duration::ZERO).await.unwrap(), SweepOutcome { removed: 2, young: 0 });
    assert_eq!((count(&blobs), count(&scratch)), (1, 1));
    assert_eq!(content(&store, &kept).await, b"kept");
}

#[tokio::test]
async fn a_blob_that_no_row_took_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    drop(blob(&store, b"x").await);
    let mut writer = store.new_blob(&Tenant::local(), 0).await.unwrap();
    writer.write(b"x").await.unwrap();
    drop(writer);
    assert_eq!((count(&directory.path().join("blobs")), count(&directory.path().join("scratch"))), (0, 0));
}

#[tokio::test]
async fn an_opening_writes_nothing_so_that_a_full_disk_stops_no_command() {
    let directory = tempfile::tempdir().unwrap();
    let _serving = Store::open(directory.path()).await.unwrap();
    let database = rusqlite::Connection::open(directory.path().join("aludel.db")).unwrap();
    // It changes with each commit of another connection.
    let version = || database.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).unwrap();
    let before = version();
    Store::open_beside(directory.path()).await.unwrap();
    assert_eq!(version(), before);
}

#[tokio::test]
async fn a_command_of_a_newer_version_changes_nothing_under_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let serving = Store::open(directory.path()).await.unwrap();
    let database = rusqlite::Connection::open(directory.path().join("aludel.db")).unwrap();
    let undo = "DROP TRIGGER programs_are_open; DROP TRIGGER programs_are_over; DROP TABLE open_programs;
                PRAGMA user_version = 22";
    database.execute_batch(undo).unwrap();
    let version = || database.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).unwrap();
    assert!(matches!(Store::open_beside(directory.path()).await, Err(Error::OlderServer)));
    assert_eq!(version(), 22);
    drop(serving);
    Store::open_beside(directory.path()).await.unwrap();
    assert_eq!(version(), 23);
}

#[tokio::test]
async fn one_server_serves_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    assert!(matches!(Store::open(directory.path()).await, Err(Error::InUse(_))));
    let beside = Store::open_beside(directory.path()).await.unwrap();
    let key = beside.create_key("k", None).await.unwrap();
    assert!(store.tenant_of_key(&key.secret).await.unwrap().is_some());
    drop((store, beside));
    Store::open(directory.path()).await.unwrap();
}

#[tokio::test]
async fn a_backup_is_whole_while_files_come_and_go() {
    let (directory, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    let kept = file(&store, &tenant, b"kept").await;
    let (busy, mine) = (store.clone(), tenant.clone());
    let changing = tokio::spawn(async move {
        loop {
            let gone = file(&busy, &mine, b"for a moment").await;
            busy.delete_file(&mine, &gone.id).await.unwrap();
        }
    });
    for number in 0..10 {
        let into = copies.path().join(number.to_string());
        let made = store.back_up(&into).await.unwrap();
        let copy = Store::open(&into).await.unwrap();
        let files = copy.files(&tenant, None, aludel_store::PageQuery::first(9)).await.unwrap().data;
        assert_eq!((files.len(), made.is_linked), (made.blobs, true));
        assert!(files.iter().any(|file| file.id == kept.id));
        for file in &files {
            copy.read_blob(&file.blob).await.unwrap();
        }
        assert_eq!(count(&into.join("blobs")), files.len());
    }
    changing.abort();
    let again = store.back_up(&copies.path().join("0")).await;
    assert!(matches!(again, Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists));
    assert_eq!(std::fs::read_dir(copies.path()).unwrap().count(), 10);
    let inside = store.back_up(&directory.path().join("blobs/deeper/copy")).await.unwrap_err().to_string();
    assert!(inside.ends_with("a copy cannot be inside of what it is of"), "{inside}");
}

#[tokio::test]
async fn a_backup_has_all_but_the_blobs_that_are_lost() {
    let (directory, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    let lost = file(&store, &tenant, b"lost").await;
    let inside = |directory: &std::path::Path| std::fs::read_dir(directory).unwrap().next().unwrap().unwrap().path();
    let blob = inside(&inside(&directory.path().join("blobs")));
    std::fs::remove_file(&blob).unwrap();
    let kept = file(&store, &tenant, b"kept").await;
    let into = copies.path().join("copy");
    let made = store.back_up(&into).await.unwrap();
    assert_eq!((made.blobs, &made.lost), (1, &vec![blob]));
    let copy = Store::open(&into).await.unwrap();
    copy.read_blob(&kept.blob).await.unwrap();
    assert!(copy.read_blob(&lost.blob).await.is_err());
}

#[tokio::test]
async fn a_backup_that_was_broken_off_is_no_new_state() {
    let copies = tempfile::tempdir().unwrap();
    let state = copies.path().join("state");
    std::fs::create_dir(copies.path().join("state.partial")).unwrap();
    for opened in [Store::open(&state).await, Store::open_beside(&state).await] {
        assert!(matches!(opened, Err(Error::Partial(_))), "{opened:?}");
    }
    assert!(!state.exists());
    std::fs::remove_dir(copies.path().join("state.partial")).unwrap();
    Store::open(&state).await.unwrap();
}
