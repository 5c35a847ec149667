//! State of each tenant, before and after a restart.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use aludel_store::{
    ApprovalStatus, ApprovalUpdate, AuditChain, AuditEntry, AuditEvent, ContainerFileId, ContainerId, DailyBudget,
    DecisionOutcome, Error, FileLocation, FileOrigin, FileRecord, MeteredDay, MeteredWork, NewApproval, NewBlob,
    NewContainer, NewContainerFile, NewFile, NewUpload, Order, PageQuery, QuotaCheck, ResponseId, ResponseRecord,
    ResponseText, Store, SweepOutcome, TamperEvidence, Tenant, UploadStatus, UsedUp, program_digest, today,
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

async fn blob(store: &Store, content: &[u8]) -> NewBlob {
    store.write_blob(&Tenant::local(), content).await.unwrap()
}

async fn file(store: &Store, tenant: &Tenant, content: &[u8]) -> FileRecord {
    let new =
        NewFile { filename: "a.txt".into(), purpose: "user_data".into(), mime: "text/plain".into(), expires_at: None };
    store.add_file(tenant, new, blob(store, content).await).await.unwrap()
}

fn new_file(path: &str) -> NewContainerFile {
    NewContainerFile {
        id: ContainerFileId::new(),
        path: path.into(),
        mime: "text/plain".into(),
        source: FileOrigin::Assistant,
        place: FileLocation::Workspace,
    }
}

fn new_container(idle: Duration) -> NewContainer {
    NewContainer { name: "c".into(), memory_limit: None, idle, variables: None }
}

async fn content(store: &Store, file: &FileRecord) -> Vec<u8> {
    let mut reader = store.read_blob(&file.blob).await.unwrap();
    let mut content = Vec::new();
    reader.read_to_end(&mut content).await.unwrap();
    assert_eq!(reader.bytes(), content.len() as u64);
    content
}

fn count(directory: &Path) -> usize {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| if path.is_dir() { count(&path) } else { 1 })
        .sum()
}

/// Two tenants that both have keys.
async fn tenants(store: &Store) -> (Tenant, Tenant) {
    let (first, second) = (store.create_key("a", None).await.unwrap(), store.create_key("b", None).await.unwrap());
    let first = store.tenant_of_key(&first.secret).await.unwrap().unwrap();
    let second = store.tenant_of_key(&second.secret).await.unwrap().unwrap();
    assert_ne!(first, second);
    (first, second)
}

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
        container: "cntr_1".into(),
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
    let container = store.add_container(&tenant, new_container(Duration::from_secs(60)), vec![]).await.unwrap().id;
    let files = Vec::from(["a", "b"].map(|path| (new_file(path), path.as_bytes())));
    begin_and_drop(store.write_container_files(&tenant, &container, files, vec![]));
    until(async || store.all_container_files(&tenant, &container).await.unwrap().len() == 2).await;
    assert_eq!(count(&directory.path().join("blobs")), 2);
    let copies = store.all_container_files(&tenant, &container).await.unwrap().into_iter();
    let copies = copies.map(|file| (new_file(&file.path), file.blob)).collect();
    begin_and_drop(store.add_container(&tenant, new_container(Duration::from_secs(60)), copies));
    let containers = async || store.containers(&tenant, None, PageQuery::first(9)).await.unwrap().data;
    until(async || containers().await.len() == 2).await;
    for container in containers().await {
        assert_eq!(store.all_container_files(&tenant, &container.id).await.unwrap().len(), 2);
    }
    assert_eq!(count(&directory.path().join("blobs")), 4);
}

#[tokio::test]
async fn a_container_without_one_of_its_files_is_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (kept, lost) = (file(&store, &Tenant::local(), b"1").await, file(&store, &Tenant::local(), b"2").await);
    assert!(store.delete_file(&Tenant::local(), &lost.id).await.unwrap());
    let files = vec![(new_file("a"), kept.blob), (new_file("b"), lost.blob)];
    let refused = store.add_container(&Tenant::local(), new_container(Duration::from_secs(60)), files).await;
    assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
    assert!(store.containers(&Tenant::local(), None, PageQuery::first(9)).await.unwrap().data.is_empty());
    assert_eq!(count(&directory.path().join("blobs")), 1);
}

#[tokio::test]
async fn files_of_a_container_are_written_and_forgotten_together() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    let container = store.add_container(&tenant, new_container(Duration::from_secs(60)), vec![]).await.unwrap().id;
    let write = async |files: Vec<(&'static str, &'static str)>, gone: Vec<ContainerFileId>| {
        let files = files.into_iter().map(|(path, text)| (new_file(path), text.as_bytes()));
        let mut files = store.write_container_files(&tenant, &container, files, gone).await.unwrap().unwrap().records;
        files.sort_by(|one, other| one.path.cmp(&other.path));
        files
    };
    let first = write(vec![("a", "1"), ("b", "2"), ("c", "3")], vec![]).await;
    let second = write(vec![("a", "1"), ("b", "22")], vec![first[2].id.clone()]).await;
    assert_eq!((&second[0], &second[1].id), (&first[0], &first[1].id));
    assert_ne!(second[1].blob, first[1].blob);
    assert_eq!(store.all_container_files(&tenant, &container).await.unwrap(), second);
    assert_eq!(count(&directory.path().join("blobs")), 2);
    let elsewhere = vec![(new_file("d"), &b"4"[..])];
    let other = store.write_container_files(&tenant, &ContainerId::new(), elsewhere, vec![second[0].id.clone()]).await;
    assert_eq!(other.unwrap(), None);
    assert_eq!(count(&directory.path().join("blobs")), 2);
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
async fn a_revoked_key_is_no_key_and_no_key_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    assert!(!store.has_keys().await.unwrap());
    let key = store.create_key("laptop", None).await.unwrap();
    assert!(store.tenant_of_key(&key.secret).await.unwrap().is_some());
    assert!(store.tenant_of_key("sk-aludel-0000").await.unwrap().is_none());
    assert!(store.revoke_key(key.id.clone()).await.unwrap());
    assert!(store.tenant_of_key(&key.secret).await.unwrap().is_none());
    assert!(store.has_keys().await.unwrap());
    drop(store);
    for name in ["aludel.db", "aludel.db-wal"] {
        let bytes = std::fs::read(directory.path().join(name)).unwrap_or_default();
        let found = bytes.windows(key.secret.len()).any(|window| window == key.secret.as_bytes());
        assert!(!found, "{name} holds the key");
    }
}

#[tokio::test]
async fn files_are_their_tenants_alone_and_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (mine, other) = tenants(&store).await;
    let kept = file(&store, &mine, b"hello").await;
    assert!(store.file(&other, &kept.id).await.unwrap().is_none());
    assert!(!store.delete_file(&other, &kept.id).await.unwrap());
    assert!(store.files(&other, None, PageQuery::first(10)).await.unwrap().data.is_empty());
    drop(store);
    let store = Store::open(directory.path()).await.unwrap();
    let again = store.file(&mine, &kept.id).await.unwrap().unwrap();
    assert_eq!(again, kept);
    assert_eq!(content(&store, &again).await, b"hello");
    assert_eq!(store.bytes_of(&mine).await.unwrap(), 4096 + 5);
    assert!(store.delete_file(&mine, &kept.id).await.unwrap());
    assert_eq!(count(&directory.path().join("blobs")), 0);
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
async fn pages_walk_through_a_list_both_ways() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(file(&store, &tenant, b"x").await.id);
    }
    for order in [Order::Ascending, Order::Descending] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = store.files(&tenant, None, PageQuery { after, limit: 2, order }).await.unwrap();
            seen.extend(page.data.iter().map(|file| file.id.clone()));
            after = seen.last().map(ToString::to_string);
            if !page.has_more {
                break;
            }
        }
        if order == Order::Descending {
            seen.reverse();
        }
        assert_eq!(seen, ids);
    }
    let none = store.files(&tenant, Some("batch".into()), PageQuery::first(9)).await.unwrap();
    assert!(none.data.is_empty() && !none.has_more);
}

#[tokio::test]
async fn a_file_of_the_same_path_takes_the_id_over_and_the_blob_away() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (mine, other) = tenants(&store).await;
    let container = store.add_container(&mine, new_container(Duration::from_secs(60)), vec![]).await.unwrap();
    let put = async |tenant: &Tenant, path: &str, content: &[u8]| {
        let files = vec![(new_file(path), blob(&store, content).await)];
        store.put_container_files(tenant, &container.id, files).await.unwrap().and_then(|mut files| files.pop())
    };
    let first = put(&mine, "a.txt", b"1").await.unwrap();
    let second = put(&mine, "a.txt", b"22").await.unwrap();
    assert_eq!((first.id, second.bytes), (second.id.clone(), 2));
    assert_eq!(count(&directory.path().join("blobs")), 1);
    assert!(put(&other, "b.txt", b"3").await.is_none());
    assert_eq!(count(&directory.path().join("blobs")), 1);
    assert!(store.container_file(&other, &container.id, &second.id).await.unwrap().is_none());
    let copy = store.copy_blob(&Tenant::local(), &second.blob).await.unwrap();
    assert_eq!(copy.sha256(), second.sha256);
    drop(copy);
    assert!(store.delete_container(&mine, &container.id).await.unwrap());
    assert!(store.container_file(&mine, &container.id, &second.id).await.unwrap().is_none());
    assert_eq!(count(&directory.path().join("blobs")), 0);
}

#[tokio::test]
async fn a_container_expires_and_is_forgotten_later() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    // Long enough for a write on a disk that is busy.
    let idle = Duration::from_secs(3);
    let container = store.add_container(&tenant, new_container(idle), vec![]).await.unwrap();
    assert!(!container.is_expired());
    tokio::time::sleep(idle + Duration::from_millis(50)).await;
    assert!(store.container(&tenant, &container.id).await.unwrap().unwrap().is_expired());
    store.touch_container(&tenant, &container.id).await.unwrap();
    assert!(!store.container(&tenant, &container.id).await.unwrap().unwrap().is_expired());
    store.remove_containers_unused_for(Duration::from_secs(60)).await.unwrap();
    assert!(store.container(&tenant, &container.id).await.unwrap().is_some());
    tokio::time::sleep(Duration::from_millis(20)).await;
    store.remove_containers_unused_for(Duration::from_millis(1)).await.unwrap();
    assert!(store.container(&tenant, &container.id).await.unwrap().is_none());
}

#[tokio::test]
async fn expired_containers_of_one_tenant_can_be_removed() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open_beside(data.path()).await.unwrap();
    let (mine, others) = (Tenant::terminal(), Tenant::local());
    let mut left = Vec::new();
    for (tenant, idle) in [(&mine, 0), (&mine, 60), (&others, 0)] {
        let container = store.add_container(tenant, new_container(Duration::from_secs(idle)), vec![]).await.unwrap();
        let file = (new_file("a"), blob(&store, b"x").await);
        store.put_container_files(tenant, &container.id, vec![file]).await.unwrap().unwrap();
        left.push(container.id);
    }
    store.remove_expired_containers(&mine).await.unwrap();
    assert_eq!(store.container(&mine, &left[0]).await.unwrap(), None);
    assert!(store.container(&mine, &left[1]).await.unwrap().is_some());
    assert!(store.container(&others, &left[2]).await.unwrap().is_some());
    assert_eq!(count(&data.path().join("blobs")), 2);
}

#[tokio::test]
async fn an_upload_becomes_one_file_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (mine, other) = tenants(&store).await;
    let new = || NewUpload {
        bytes: 2,
        filename: "big".into(),
        purpose: "user_data".into(),
        mime: "text/plain".into(),
        expires_at: aludel_store::now() + 60,
        file_lives: None,
    };
    let upload = store.add_upload(&mine, new()).await.unwrap();
    assert!(store.add_part(&other, &upload.id, blob(&store, b"x").await).await.unwrap().is_none());
    store.add_part(&mine, &upload.id, blob(&store, b"a").await).await.unwrap().unwrap();
    let file = store.complete_upload(&mine, &upload, blob(&store, b"ab").await).await.unwrap().unwrap();
    assert!(store.complete_upload(&mine, &upload, blob(&store, b"ab").await).await.unwrap().is_none());
    assert!(store.add_part(&mine, &upload.id, blob(&store, b"b").await).await.unwrap().is_none());
    let done = store.upload(&mine, &upload.id).await.unwrap().unwrap();
    assert_eq!((done.status, done.file), (UploadStatus::Completed, Some(file.id)));
    assert_eq!(count(&directory.path().join("blobs")), 1);
    assert!(!store.cancel_upload(&mine, &upload.id).await.unwrap());
    let upload = store.add_upload(&mine, new()).await.unwrap();
    store.add_part(&mine, &upload.id, blob(&store, b"a").await).await.unwrap().unwrap();
    assert!(store.cancel_upload(&mine, &upload.id).await.unwrap());
    assert_eq!(count(&directory.path().join("blobs")), 1);
}

#[tokio::test]
async fn conversations_keep_their_items_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (mine, other) = tenants(&store).await;
    let item = |id: &str| (id.to_owned(), json!({ "id": id }));
    // Ids of items come from clients too, so their order is not the order of time.
    let conversation = store.add_conversation(&mine, json!({}), vec![item("z"), item("a")]).await.unwrap();
    assert!(store.add_items(&mine, &conversation.id, vec![item("m"), item("a")], QuotaCheck::Checked).await.unwrap());
    assert!(!store.add_items(&other, &conversation.id, vec![item("q")], QuotaCheck::Checked).await.unwrap());
    let page = PageQuery { after: Some("z".into()), limit: 1, order: Order::Ascending };
    let page = store.items(&mine, &conversation.id, page).await.unwrap();
    assert_eq!((page.data, page.has_more), (vec![json!({ "id": "a" })], true));
    let all = store.all_items(&mine, &conversation.id, 1000).await.unwrap().unwrap();
    assert_eq!(all, [r#"{"id":"z"}"#, r#"{"id":"a"}"#, r#"{"id":"m"}"#]);
    assert!(store.all_items(&mine, &conversation.id, 10).await.unwrap().is_none());
    assert!(store.item(&other, &conversation.id, "a").await.unwrap().is_none());
    assert!(store.delete_item(&mine, &conversation.id, "a").await.unwrap());
    assert!(store.delete_conversation(&mine, &conversation.id).await.unwrap());
    assert!(store.item(&mine, &conversation.id, "m").await.unwrap().is_none());
}

#[tokio::test]
async fn a_response_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (mine, other) = tenants(&store).await;
    let id = ResponseId::new();
    let record = |status: &str| ResponseRecord {
        id: id.clone(),
        object: json!({ "status": status }),
        input: vec![json!({ "type": "message" })],
        expires_at: None,
    };
    store.put_response(&mine, record("in_progress"), QuotaCheck::Checked).await.unwrap();
    drop(store);
    let store = Store::open(directory.path()).await.unwrap();
    let unfinished = store.responses_with_status(&["queued", "in_progress"]).await.unwrap();
    assert_eq!(unfinished, [(mine.clone(), id.clone())]);
    // Another tenant that guesses an id neither reads nor overwrites.
    store.put_response(&other, record("stolen"), QuotaCheck::Checked).await.unwrap();
    assert!(store.response(&other, &id).await.unwrap().is_none());
    store.put_response(&mine, record("completed"), QuotaCheck::Checked).await.unwrap();
    assert_eq!(store.response(&mine, &id).await.unwrap().unwrap(), record("completed"));
    assert!(store.delete_response(&mine, &id).await.unwrap());
    assert!(store.response(&mine, &id).await.unwrap().is_none());
}

#[tokio::test]
async fn items_are_found_by_their_ids_among_what_their_tenant_stored() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (mine, other) = tenants(&store).await;
    let record = |input: &str, output: &str| ResponseRecord {
        id: ResponseId::new(),
        object: json!({ "output": [{ "id": output }] }),
        input: vec![json!({ "id": input }), json!({})],
        expires_at: None,
    };
    let (first, second, third) = (record("msg_1", "msg_2"), record("msg_2", "msg_3"), record("msg_4", "msg_5"));
    for record in [&first, &second, &third] {
        store.put_response(&mine, record.clone(), QuotaCheck::Checked).await.unwrap();
    }
    let of = async |tenant: &Tenant, ids: &[&str]| {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        store.responses_of_items(tenant, ids, 1000).await.unwrap().unwrap()
    };
    let text = |record: &ResponseRecord| ResponseText {
        object: record.object.to_string(),
        input: json!(record.input).to_string(),
    };
    assert_eq!(of(&mine, &["msg_1"]).await, [text(&first)]);
    assert_eq!(of(&mine, &["msg_2", "msg_3", "msg_5", "msg_6"]).await, [text(&third), text(&second)]);
    assert_eq!(store.response_text(&mine, &first.id).await.unwrap(), Some(text(&first)));
    assert_eq!(store.response_text(&other, &first.id).await.unwrap(), None);
    assert_eq!(of(&other, &["msg_1"]).await, []);
    assert_eq!(store.responses_of_items(&mine, vec!["msg_1".to_owned()], 10).await.unwrap(), None);
    store.delete_response(&mine, &second.id).await.unwrap();
    assert_eq!(of(&mine, &["msg_2", "msg_3"]).await, [text(&first)]);
    let expired = ResponseRecord { expires_at: Some(1), ..third };
    store.put_response(&mine, expired, QuotaCheck::Checked).await.unwrap();
    assert_eq!(of(&mine, &["msg_5"]).await, []);
    let items = vec![("msg_7".to_owned(), json!({ "id": "msg_7" }))];
    store.add_conversation(&mine, json!({}), items.clone()).await.unwrap();
    store.add_conversation(&mine, json!({}), items).await.unwrap();
    let item =
        async |tenant: &Tenant, limit| store.items_of_ids(tenant, vec!["msg_7".to_owned()], limit).await.unwrap();
    assert_eq!(item(&mine, 100).await, Some(vec![r#"{"id":"msg_7"}"#.to_owned()]));
    assert_eq!(item(&mine, 10).await, None);
    assert_eq!(item(&other, 100).await, Some(Vec::new()));
}

#[tokio::test]
async fn a_program_is_decided_once_by_its_tenant_and_by_what_was_seen() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let key = store.create_key("other", None).await.unwrap();
    let (ada, eve) = (Tenant::local(), store.tenant_of_key(&key.secret).await.unwrap().unwrap());
    let new = NewApproval {
        request: "resp_1".into(),
        call_id: "call_1".into(),
        container: "cntr_1".into(),
        model: "m".into(),
        code: "print(1)".into(),
        reasons: vec!["line 1".into()],
        patience: 60,
    };
    let asked = store.add_approval(&ada, new.clone()).await.unwrap();
    let decision =
        |status, sha256: &str| ApprovalUpdate { sha256: sha256.into(), status, by: "ada".into(), reason: None };
    let yes = || decision(ApprovalStatus::Approved, &asked.sha256);
    let (pending, id) = (Some(ApprovalStatus::Pending), &asked.id);
    assert_eq!(store.decide(Some(&eve), id, yes()).await.unwrap(), DecisionOutcome::Unknown);
    assert_eq!(store.approval(Some(&eve), id).await.unwrap(), None);
    assert_eq!(store.approvals(Some(&eve), None, PageQuery::first(10)).await.unwrap().data, []);
    let other = decision(ApprovalStatus::Approved, &program_digest("print(2)"));
    assert_eq!(store.decide(Some(&ada), id, other).await.unwrap(), DecisionOutcome::OtherProgram);
    assert_eq!(store.approvals(None, pending, PageQuery::first(10)).await.unwrap().data, std::slice::from_ref(&asked));
    let DecisionOutcome::Now(approved) = store.decide(Some(&ada), id, yes()).await.unwrap() else { panic!() };
    assert_eq!((approved.status, approved.decided_by.as_deref()), (ApprovalStatus::Approved, Some("ada")));
    let late = decision(ApprovalStatus::Refused, &asked.sha256);
    assert_eq!(store.decide(None, id, late).await.unwrap(), DecisionOutcome::Before(approved.clone()));
    store.expire_approval(id).await.unwrap();
    assert_eq!(store.approval_of_call("resp_1", "call_1").await.unwrap(), Some(approved));
    assert_eq!(store.approvals(Some(&ada), pending, PageQuery::first(10)).await.unwrap().data, []);
    store.start_approved(id).await.unwrap();
    let second = store.add_approval(&ada, new.clone()).await.unwrap();
    store.expire_approvals_except(vec!["resp_1".into()]).await.unwrap();
    assert_eq!(store.approval(None, &second.id).await.unwrap().unwrap().status, ApprovalStatus::Pending);
    store.expire_approvals_except(vec!["resp_2".into()]).await.unwrap();
    assert_eq!(store.approval(None, &second.id).await.unwrap().unwrap().status, ApprovalStatus::Expired);
}

#[tokio::test]
async fn a_program_that_was_cut_off_has_an_end_in_the_audit_log() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path()).await.unwrap();
    let tenant = Tenant::local();
    let entry = |event, code: &str| AuditEntry {
        event,
        request: "resp_1".into(),
        container: "cntr_1".into(),
        code: code.into(),
        actor: "nobody".into(),
        outcome: String::new(),
    };
    let (started, ended) = (AuditEvent::Started, AuditEvent::Ended);
    store.end_what_was_cut_off("cut off").await.unwrap();
    let entries = [(started, "1"), (started, "2"), (ended, "1"), (started, "1"), (AuditEvent::Refused, "3")];
    store.audit(&tenant, entries.map(|(event, code)| entry(event, code)).to_vec()).await.unwrap();
    for _ in 0..2 {
        store.end_what_was_cut_off("cut off").await.unwrap();
        let log = store.audit_log(5, 10).await.unwrap();
        let added: Vec<_> = log.iter().map(|entry| (entry.event.as_str(), &*entry.code, &*entry.outcome)).collect();
        assert_eq!(added, [("ended", "2", "cut off"), ("ended", "1", "cut off")]);
    }
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(7));
}

#[tokio::test]
async fn a_program_of_a_living_process_is_not_taken_for_cut_off() {
    let place = tempfile::tempdir().unwrap();
    let (other, tenant) = (Store::open_beside(place.path()).await.unwrap(), Tenant::terminal());
    let request = other.owned_turn_id("ask").await.unwrap().to_string();
    let entry = AuditEntry {
        event: AuditEvent::Started,
        request,
        container: "cntr_1".into(),
        code: "1".into(),
        actor: String::new(),
        outcome: String::new(),
    };
    other.audit(&tenant, vec![entry]).await.unwrap();
    let store = Store::open(place.path()).await.unwrap();
    store.end_what_was_cut_off("cut off").await.unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(1));
    drop(other);
    store.end_what_was_cut_off("cut off").await.unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(2));
}

#[tokio::test]
async fn the_audit_log_only_grows_and_shows_what_was_changed() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let entry = |event, code: &str| AuditEntry {
        event,
        request: "resp_1".into(),
        container: "cntr_1".into(),
        code: code.into(),
        actor: "rules".into(),
        outcome: String::new(),
    };
    let tenant = Tenant::local();
    store.audit(&tenant, vec![entry(AuditEvent::Started, "1"), entry(AuditEvent::Ended, "1")]).await.unwrap();
    store.audit(&tenant, vec![entry(AuditEvent::Refused, "2")]).await.unwrap();
    let log = store.audit_log(0, 10).await.unwrap();
    assert_eq!(
        log.iter().map(|record| (record.number, &*record.event)).collect::<Vec<_>>(),
        [(1, "started"), (2, "ended"), (3, "refused")]
    );
    assert_eq!(log[2].sha256, program_digest("2"));
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(3));
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let replace = "INSERT OR REPLACE INTO audit SELECT number, at_ms, tenant, event, request, container, sha256, '3', actor, \
                   outcome, chain FROM audit WHERE number = 2";
    for query in ["DELETE FROM audit", "UPDATE audit SET code = '3' WHERE number = 2", replace] {
        assert!(database.execute(query, []).unwrap_err().to_string().contains("only be added to"), "{query}");
    }
    // Whoever can write the file can take the guard away, but is found out.
    for (query, number) in
        [("UPDATE audit SET outcome = 'x' WHERE number = 2", 2), ("DELETE FROM audit WHERE number = 1", 1)]
    {
        database
            .execute_batch("SAVEPOINT before; DROP TRIGGER audit_is_not_changed; DROP TRIGGER audit_is_not_shortened")
            .unwrap();
        database.execute(query, []).unwrap();
        database.execute_batch("RELEASE before").unwrap();
        assert_eq!(store.verify_audit_log().await.unwrap(), Err(TamperEvidence { number }));
        database
            .execute_batch(
                "CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT 1; END;
                                CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit BEGIN SELECT 1; END",
            )
            .unwrap();
    }
}

#[tokio::test]
async fn the_beginning_of_the_audit_log_can_be_archived_and_the_rest_follows_from_it() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let entry = |event, code: &str| AuditEntry {
        event,
        request: "resp_1".into(),
        container: "cntr_1".into(),
        code: code.into(),
        actor: "rules".into(),
        outcome: String::new(),
    };
    let tenant = Tenant::local();
    for code in ["1", "", "2", "3"] {
        let entries = vec![entry(AuditEvent::Started, code), entry(AuditEvent::Ended, code)];
        store.audit(&tenant, entries).await.unwrap();
    }
    store.audit(&tenant, vec![entry(AuditEvent::Started, "2")]).await.unwrap();
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let programs = || {
        let mut query = database.prepare("SELECT code FROM programs ORDER BY code").unwrap();
        query.query_map([], |row| row.get::<_, String>(0)).unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    };
    assert_eq!(programs(), ["", "1", "2", "3"], "each once");
    // As an earlier version wrote it: the program in the entry.
    let trigger = "SELECT sql FROM sqlite_master WHERE name = 'audit_is_not_changed'";
    let trigger: String = database.query_row(trigger, [], |row| row.get(0)).unwrap();
    database.execute_batch("DROP TRIGGER audit_is_not_changed; UPDATE audit SET code = '1' WHERE number = 1;").unwrap();
    database.execute_batch(&trigger).unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(9));

    let log = store.audit_log(0, 100).await.unwrap();
    assert_eq!(log.iter().map(|entry| &*entry.code).collect::<String>(), "1122332");
    let used = store.bytes_of(&tenant).await.unwrap();
    let end = AuditChain { number: 6, chain: log[5].chain.clone() };
    let other = AuditChain { chain: log[4].chain.clone(), ..end.clone() };
    assert!(store.remove_archived(other).await.is_err(), "the digest of another entry");
    store.remove_archived(end.clone()).await.unwrap();
    assert_eq!(store.audit_log_start().await.unwrap(), end);
    assert_eq!(store.audit_log(0, 100).await.unwrap(), log[6..]);
    assert_eq!(programs(), ["2", "3"]);
    assert!(store.bytes_of(&tenant).await.unwrap() < used);
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(9));
    assert!(store.remove_archived(end).await.is_err(), "it is gone");
    for query in [
        "DELETE FROM audit WHERE number = 8",
        "DELETE FROM audit_archives",
        "UPDATE audit_archives SET number = 8",
        "INSERT INTO audit SELECT 5, at_ms, tenant, event, request, container, sha256, code, actor, outcome, chain FROM audit",
        "UPDATE programs SET code = 'x'",
        "INSERT OR REPLACE INTO programs SELECT number, tenant, sha256, 'x' FROM programs",
        "DELETE FROM programs WHERE code = '3'",
    ] {
        assert!(database.execute(query, []).unwrap_err().to_string().contains("only be added to"), "{query}");
    }
    store.remove_archived(AuditChain { number: 9, chain: log[8].chain.clone() }).await.unwrap();
    store.audit(&tenant, vec![entry(AuditEvent::Ended, "2")]).await.unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap(), Ok(10));
    assert_eq!(programs(), ["2"]);
    // The archive itself tells that it is whole, and that the log goes on from it.
    let mut chain = AuditChain::default();
    for record in &log {
        chain.follow(record).unwrap();
    }
    assert_eq!(chain, store.audit_log_start().await.unwrap());
    assert_eq!(AuditChain::default().follow(&log[1]), Err(TamperEvidence { number: 1 }));
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
}

#[tokio::test]
async fn a_page_of_large_rows_is_cut_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (tenant, thread) = (Tenant::local(), aludel_store::ThreadId::new());
    let text = "x".repeat(7 << 20);
    let messages = (0..8).map(|_| (aludel_store::MessageId::new(), serde_json::json!({ "text": text }))).collect();
    store.add_thread(&tenant, thread.clone(), &serde_json::json!({}), messages).await.unwrap();
    let page = |limit| aludel_store::PageQuery::first(limit);
    let read = async |limit| store.messages(&tenant, &thread, None, page(limit)).await.unwrap();
    let found = read(100).await;
    assert_eq!((found.data.len(), found.has_more), (3, true));
    assert_eq!((read(2).await.data.len(), read(2).await.has_more), (2, true));
    // Few bytes of text that take much memory when they are read.
    let thread = aludel_store::ThreadId::new();
    let crowded = serde_json::json!({ "crowd": vec![serde_json::json!({}); 5000] });
    let messages = (0..8).map(|_| (aludel_store::MessageId::new(), crowded.clone())).collect();
    store.add_thread(&tenant, thread.clone(), &serde_json::json!({}), messages).await.unwrap();
    let found = store.messages(&tenant, &thread, None, page(100)).await.unwrap();
    assert_eq!((found.data.len(), found.has_more), (5, true));
}

#[tokio::test]
async fn a_budget_is_used_up_by_the_work_of_today() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let key = store.create_key("a", None).await.unwrap();
    let tenant = store.tenant_of_key(&key.secret).await.unwrap().unwrap();
    let work =
        MeteredWork { requests: 2, input_tokens: 60, output_tokens: 40, program_ms: 3999, ..MeteredWork::default() };
    let on = |day, model: &str| MeteredDay { tenant: tenant.clone(), day, model: model.to_owned(), work };
    store.meter(vec![on(today(), "m"), on(today() - 1, "m"), on(today(), "n")]).await.unwrap();
    assert_eq!(store.used_up(&tenant).await.unwrap(), None);
    let none = DailyBudget::default();
    for (budget, used_up) in [
        (DailyBudget { requests: Some(5), tokens: Some(201), program_seconds: Some(8) }, None),
        (DailyBudget { requests: Some(4), ..none }, Some(UsedUp::Requests(4))),
        (DailyBudget { tokens: Some(200), ..none }, Some(UsedUp::Tokens(200))),
        (DailyBudget { program_seconds: Some(7), ..none }, Some(UsedUp::ProgramSeconds(7))),
        (none, None),
    ] {
        assert!(store.set_budget(key.id.clone(), budget).await.unwrap());
        assert_eq!(store.used_up(&tenant).await.unwrap(), used_up, "{budget:?}");
        assert_eq!(store.keys().await.unwrap()[0].budget, budget);
    }
    assert_eq!(store.used_up(&Tenant::local()).await.unwrap(), None);
}

#[tokio::test]
async fn whatever_a_models_server_tells_is_counted_and_bounded() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let key = store.create_key("a", None).await.unwrap();
    let tenant = store.tenant_of_key(&key.secret).await.unwrap().unwrap();
    let budget = DailyBudget { tokens: Some(1000), ..DailyBudget::default() };
    assert!(store.set_budget(key.id.clone(), budget).await.unwrap());
    for input_tokens in [u64::MAX, i64::MAX as u64, i64::MAX as u64] {
        let work = MeteredWork { requests: 1, input_tokens, output_tokens: input_tokens, ..MeteredWork::default() };
        let of = |model: &str| MeteredDay { tenant: tenant.clone(), day: today(), model: model.to_owned(), work };
        store.meter((0..20).map(|model| of(&model.to_string())).collect()).await.unwrap();
    }
    assert_eq!(store.used_up(&tenant).await.unwrap(), Some(UsedUp::Tokens(1000)));
    let metered = store.metered(0).await.unwrap();
    assert_eq!((metered.len(), metered[0].work.requests), (20, 3));
    assert!(metered.iter().all(|row| row.work.input_tokens > 1 << 50 && row.work.input_tokens < 1 << 60));
}
