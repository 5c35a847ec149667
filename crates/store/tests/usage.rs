//! Bytes that tenants store, and the bound on them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use aludel_store::{
    AddOutcome, AppendOutcome, ApprovalStatus, ApprovalUpdate, AssistantId, AuditChain, AuditEntry, AuditEvent,
    BlobName, ConversationId, Error, FileId, FileLocation, FileOrigin, MessageId, NewApproval, NewBlob, NewFile,
    NewRun, NewSessionFile, NewSessionRecord, NewTurn, NewUpload, QuotaCheck, ResponseId, ResponseRecord, RunId,
    RunUpdate, SessionFileId, SessionId, StepId, Store, Tenant, ThreadId, TurnEventRecord, TurnId, TurnState,
    TurnUpdate, now, now_ms, program_digest,
};
use serde_json::json;

const MB: u64 = 1 << 20;

#[tokio::test]
async fn blobs_that_began_first_are_written_whole() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    store.limit_storage(MB);
    let mut writers = Vec::new();
    for _ in 0..3 {
        writers.push(store.new_blob(&Tenant::local(), 400_000).await.unwrap());
    }
    let mut refused = [false; 3];
    for _ in 0..8 {
        for (writer, refused) in writers.iter_mut().zip(&mut refused) {
            *refused |= writer.write(&[7; 50_000]).await.is_err();
        }
    }
    assert_eq!(refused, [false, false, true]);
}

async fn blob(store: &Store, tenant: &Tenant, bytes: usize) -> Result<NewBlob, Error> {
    let mut writer = store.new_blob(tenant, 0).await?;
    for chunk in vec![7; bytes].chunks(50_000) {
        writer.write(chunk).await?;
    }
    writer.finish().await
}

async fn file(store: &Store, tenant: &Tenant, bytes: usize) -> Result<FileId, Error> {
    let new = NewFile { filename: "a".into(), purpose: "p".into(), mime: "m".into(), expires_at: None };
    Ok(store.add_file(tenant, new, blob(store, tenant, bytes).await?).await?.id)
}

async fn session(store: &Store, tenant: &Tenant, files: Vec<(NewSessionFile, BlobName)>) -> Option<SessionId> {
    let new = NewSessionRecord { name: "c".into(), memory_limit: None, idle: Duration::from_secs(60), variables: None };
    Some(store.add_session(tenant, new, files).await.ok()?.id)
}

fn named(path: &str) -> NewSessionFile {
    let (id, source, location) = (SessionFileId::new(), FileOrigin::Assistant, FileLocation::Workspace);
    NewSessionFile { id, path: path.into(), mime: "m".into(), source, location }
}

fn update(sequence: u64, text: &str) -> TurnUpdate {
    let event = TurnEventRecord { sequence, at_ms: 1, event: text.into() };
    TurnUpdate { events: vec![event], items: vec![text.into()], ..TurnUpdate::default() }
}

fn new_turn(id: &TurnId) -> NewTurn {
    NewTurn {
        id: id.clone(),
        dialect: "d".into(),
        lease_until_ms: now_ms() + 60_000,
        expires_at: None,
        session: None,
        spec: "spec".into(),
        dialect_state: "state".into(),
        items: vec!["item".into()],
    }
}

fn entry(event: AuditEvent, code: &str) -> AuditEntry {
    let (request, session) = ("resp_1".into(), "cntr_1".into());
    AuditEntry { event, request, session, code: code.into(), actor: "nobody".into(), outcome: "fine".into() }
}

/// Returns the bytes of all files in a directory.
fn bytes_in(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| if entry.path().is_dir() { bytes_in(&entry.path()) } else { entry.metadata().unwrap().len() })
        .sum()
}

/// Counts what a tenant stores from the rows themselves.
fn recounted(data: &Path, tenant: &Tenant) -> u64 {
    let database = rusqlite::Connection::open(data.join("aludel.db")).unwrap();
    let mut tables = database
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%cost INTEGER AS%'")
        .unwrap();
    let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(tables.len(), 20);
    let sum = |query: &str| database.query_row(query, [tenant.as_str()], |row| row.get::<_, u64>(0)).unwrap();
    let rows: u64 =
        tables.iter().map(|table| sum(&format!("SELECT coalesce(sum(cost), 0) FROM {table} WHERE tenant = ?1"))).sum();
    let of_turns = |table: &str, cost: &str| {
        sum(&format!("SELECT coalesce(sum({cost}), 0) FROM {table} JOIN turns ON turns.id = turn WHERE tenant = ?1"))
    };
    let children = of_turns("turn_events", "128 + octet_length(event)")
        + of_turns("turn_items", "128 + octet_length(item)")
        + of_turns("turn_blobs", "4096 + turn_blobs.bytes");
    assert_eq!(sum("SELECT coalesce(sum(bytes), 0) FROM turns WHERE tenant = ?1"), children);
    rows
}

#[tokio::test]
async fn what_is_counted_is_what_is_there_whatever_was_done() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    store.limit_storage(MB / 8);
    let tenants = [Tenant::local(), Tenant::terminal()];
    let (mut files, mut sessions, mut conversations, mut responses, mut turns, mut uploads) = (
        Vec::<FileId>::new(),
        Vec::new(),
        Vec::<ConversationId>::new(),
        Vec::<ResponseId>::new(),
        Vec::new(),
        Vec::new(),
    );
    let mut threads: Vec<(Tenant, ThreadId)> = Vec::new();
    let mut seed = 1_u64;
    let mut refused = 0;
    for step in 0..500_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (pick, random) = ((seed >> 33) % 26, (seed >> 40) as usize);
        let tenant = &tenants[random % 2];
        let text = "x".repeat(random % 3000);
        let any = |length: usize| random.checked_rem(length);
        match pick {
            0 => match file(&store, tenant, random % 60_000).await {
                Ok(id) => files.push(id),
                Err(error) => refused += u64::from(matches!(error, Error::Full { .. })),
            },
            1 => {
                if let Some(index) = any(files.len()) {
                    store.delete_file(tenant, &files[index]).await.unwrap();
                }
            }
            2 => {
                let mut inside = Vec::new();
                if let Some(index) = any(files.len())
                    && let Some(file) = store.file(tenant, &files[index]).await.unwrap()
                {
                    inside.push((named("a"), file.blob));
                }
                sessions.extend(session(&store, tenant, inside).await);
            }
            3 => {
                if let Some(index) = any(sessions.len()) {
                    store.delete_session(tenant, &sessions[index]).await.unwrap();
                }
            }
            4..=6 => {
                if let Some(index) = any(sessions.len()) {
                    let made = [("a", random % 9000), ("b", random % 900), ("c", 5)];
                    let made = made.map(|(path, bytes)| (named(path), Some(Cursor::new(vec![1; bytes]))));
                    let there = store.all_session_files(tenant, &sessions[index]).await.unwrap();
                    let gone = there.into_iter().filter(|_| random % 3 == 0).map(|file| file.id).collect();
                    store.write_session_files(tenant, &sessions[index], made, gone).await.unwrap();
                }
            }
            7 => {
                let items = vec![("i1".to_owned(), json!(text)), ("i1".to_owned(), json!("twice"))];
                conversations.extend(store.add_conversation(tenant, json!({}), items).await.map(|made| made.id));
            }
            8 => {
                if let Some(index) = any(conversations.len()) {
                    let items = vec![(format!("i{step}"), json!(text)), ("i1".to_owned(), json!("again"))];
                    let room = if random % 2 == 0 { QuotaCheck::Checked } else { QuotaCheck::Reserved };
                    let _full = store.add_items(tenant, &conversations[index], items, room).await;
                    let _full = store.update_conversation(tenant, &conversations[index], &json!({ "a": text })).await;
                }
            }
            9 => {
                if let Some(index) = any(conversations.len()) {
                    store.delete_item(tenant, &conversations[index], "i1").await.unwrap();
                }
            }
            10 => {
                if let Some(index) = any(conversations.len()) {
                    store.delete_conversation(tenant, &conversations[index]).await.unwrap();
                }
            }
            11 | 12 => {
                let id = any(responses.len()).filter(|_| random % 3 == 0).map(|index| responses[index].clone());
                let id = id.unwrap_or_else(ResponseId::new);
                let object = json!({ "output": [{ "id": "o1", "text": text }, { "id": "o1" }] }).to_string();
                let expires_at = (random % 5 == 0).then(|| now() - 1);
                let record =
                    ResponseRecord { id: id.clone(), object, input: json!([{ "id": "i" }]).to_string(), expires_at };
                let _full = store.put_response(tenant, record, QuotaCheck::Checked).await;
                responses.push(id);
            }
            13 => {
                if let Some(index) = any(responses.len()) {
                    store.delete_response(tenant, &responses[index]).await.unwrap();
                }
            }
            14 => {
                let id = TurnId::parse(&format!("turn_{step}")).unwrap();
                if let Ok(Some(turn)) = store.create_turn(tenant, new_turn(&id)).await {
                    turns.push((turn.lease(), 0));
                }
            }
            15..=17 => {
                if let Some(index) = any(turns.len()) {
                    let (lease, next) = &mut turns[index];
                    let blobs = blob(&store, &lease.tenant, random % 5000).await.ok();
                    let (dialect_state, state) = (Some(text.clone()), (random % 9 == 0).then_some(TurnState::Ended));
                    let made =
                        TurnUpdate { blobs: blobs.into_iter().collect(), dialect_state, state, ..update(*next, &text) };
                    let _appended = store.append_turn(lease, made).await.unwrap();
                    *next += 1;
                }
            }
            18 => {
                if let Some(index) = any(turns.len()) {
                    store.delete_turn(&turns[index].0.tenant, &turns[index].0.turn).await.unwrap();
                }
            }
            19 => {
                let new = NewUpload {
                    bytes: 10,
                    filename: "u".into(),
                    purpose: "p".into(),
                    mime: "m".into(),
                    expires_at: now() + if random % 4 == 0 { -90_000 } else { 100 },
                    file_lives: None,
                    name: None,
                };
                uploads.extend(store.add_upload(tenant, new).await);
            }
            20 => {
                if let Some(index) = any(uploads.len()) {
                    let upload = &uploads[index];
                    if let Ok(part) = blob(&store, tenant, random % 9000).await {
                        store.add_part(tenant, &upload.id, part).await.unwrap();
                    }
                    if random % 5 == 0
                        && let Ok(whole) = blob(&store, tenant, 10).await
                    {
                        store.complete_upload(tenant, upload, whole).await.unwrap();
                    } else if random % 5 == 1 {
                        store.cancel_upload(tenant, &upload.id).await.unwrap();
                    }
                }
            }
            21 => {
                let patience = if random % 2 == 0 { -40 * 86_400 } else { 100 };
                let _full = store.ask_tenant(tenant, "r", &format!("c{}", random % 9), &text, patience).await;
                let (request, call_id, session) = ("r".into(), "c".into(), "cntr_1".into());
                let (code, reasons) = (text.clone(), vec!["why".into()]);
                let new = NewApproval { request, call_id, session, model: "m".into(), code, reasons, patience };
                if let Ok(asked) = store.add_approval(tenant, new).await {
                    let (status, by, reason) = (ApprovalStatus::Denied, "me".into(), Some("because".into()));
                    let decision = ApprovalUpdate { sha256: program_digest(&text), status, by, reason };
                    store.decide(None, &asked.id, decision).await.unwrap();
                }
            }
            22 => {
                let entries = vec![entry(AuditEvent::Started, &text), entry(AuditEvent::Ended, &text)];
                store.audit(tenant, entries).await.unwrap();
            }
            23 => {
                let (id, object) = (ThreadId::new(), json!({ "text": text }));
                let _full = store.add_assistant(tenant, AssistantId::new(), &object).await;
                let messages = vec![(MessageId::new(), object.clone())];
                if matches!(
                    store.add_thread(tenant, id.clone(), &object, messages.clone()).await,
                    Ok(AddOutcome::Added)
                ) {
                    threads.push((tenant.clone(), id.clone()));
                    let (run, turn) = (RunId::new(), TurnId::new());
                    let new = NewRun {
                        id: run.clone(),
                        thread: id,
                        turn: turn.clone(),
                        expires_at: 1,
                        object: object.clone(),
                        messages: Vec::new(),
                    };
                    if let Ok(AddOutcome::Added) = store.begin_run(tenant, new).await {
                        let steps = vec![(StepId::new(), object.clone())];
                        let has_ended = random % 2 == 0;
                        let update =
                            RunUpdate { object: Some(json!({})), has_ended, steps, messages, ..RunUpdate::default() };
                        let _full = store.update_run(tenant, &run, &turn, update, QuotaCheck::Checked).await;
                    }
                }
            }
            24 => {
                if let Some(location) = any(threads.len()) {
                    let (owner, thread) = threads.swap_remove(location);
                    assert_eq!(store.delete_thread(tenant, &thread).await.unwrap().is_some(), owner == *tenant);
                }
            }
            _ => {
                store.remove_expired().await.unwrap();
                store.remove_sessions_unused_for(Duration::ZERO).await.unwrap();
                let log = store.audit_log(0, 1).await.unwrap();
                if let Some(first) = log.first() {
                    let end = AuditChain { number: first.number, chain: first.chain.clone() };
                    store.remove_archived(end).await.unwrap();
                }
            }
        }
        if step % 20 == 0 {
            for tenant in &tenants {
                assert_eq!(store.bytes_of(tenant).await.unwrap(), recounted(data.path(), tenant), "step {step}");
            }
        }
    }
    assert!(refused > 0, "the bound was never reached");
    for tenant in &tenants {
        assert_eq!(store.bytes_of(tenant).await.unwrap(), recounted(data.path(), tenant));
        let free = (MB / 8).saturating_sub(store.bytes_of(tenant).await.unwrap());
        store.reserve(tenant, free..=free).await.expect("nothing is reserved any more");
    }
}

#[tokio::test]
async fn what_is_written_at_once_shares_the_room() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    store.limit_storage(MB);
    let (mine, other) = (Tenant::local(), Tenant::terminal());
    let writing = (0..8).map(|_| {
        let (store, tenant) = (store.clone(), mine.clone());
        tokio::spawn(async move { file(&store, &tenant, 300_000).await })
    });
    let mut stored = 0;
    for writing in writing.collect::<Vec<_>>() {
        match writing.await.unwrap() {
            Ok(_) => stored += 1,
            Err(error) => assert!(matches!(error, Error::Full { limit: MB }), "{error}"),
        }
    }
    assert!((1..=3).contains(&stored), "{stored}");
    assert!(bytes_in(&data.path().join("blobs")) <= MB);
    assert_eq!(bytes_in(&data.path().join("scratch")), 0);
    file(&store, &other, 900_000).await.unwrap();
    // While it is written, and as long as nobody keeps it, it takes room, too.
    for id in store.files(&mine, None, aludel_store::PageQuery::first(9)).await.unwrap().data {
        store.delete_file(&mine, &id.id).await.unwrap();
    }
    let mut writer = store.new_blob(&mine, 0).await.unwrap();
    writer.write(&vec![0; 700_000]).await.unwrap();
    assert!(matches!(file(&store, &mine, 400_000).await, Err(Error::Full { .. })));
    let kept = writer.finish().await.unwrap();
    assert!(matches!(file(&store, &mine, 400_000).await, Err(Error::Full { .. })));
    drop(kept);
    file(&store, &mine, 400_000).await.unwrap();
}

#[tokio::test]
async fn small_things_count_more_than_their_content() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    store.limit_storage(64 << 10);
    let tenant = Tenant::local();
    let mut files = 0;
    while file(&store, &tenant, 0).await.is_ok() {
        files += 1;
    }
    assert_eq!(files, 16);
}

#[tokio::test]
async fn files_of_a_program_are_kept_as_far_as_there_is_room() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    store.limit_storage(MB);
    let tenant = Tenant::local();
    let id = session(&store, &tenant, Vec::new()).await.unwrap();
    let made = [("a", Some(400_000)), ("b", Some(800_000)), ("c", Some(400_000)), ("d", None)];
    let made = made.map(|(path, bytes)| (named(path), bytes.map(|bytes| Cursor::new(vec![1; bytes]))));
    let written = store.write_session_files(&tenant, &id, made, Vec::new()).await.unwrap().unwrap();
    assert_eq!(written.without_room, ["b", "d"]);
    assert_eq!(written.records.iter().map(|file| &*file.path).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(bytes_in(&data.path().join("blobs")), 800_000);
}

#[tokio::test]
async fn texts_beyond_the_bound_are_refused_whole_and_deletions_are_not() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let tenant = Tenant::local();
    let small = store.add_conversation(&tenant, json!({ "a": "x".repeat(1000) }), vec![]).await.unwrap().id;
    store.limit_storage(store.bytes_of(&tenant).await.unwrap() + 10_000);
    let items = |bytes: usize| vec![("i".to_owned(), json!("x".repeat(bytes)))];
    for bytes in [20_000, 9_999] {
        let full = store.add_items(&tenant, &small, items(bytes), QuotaCheck::Checked).await;
        assert!(matches!(full, Err(Error::Full { .. })), "{full:?}");
    }
    assert!(store.item(&tenant, &small, "i").await.unwrap().is_none());
    assert!(store.add_items(&tenant, &small, items(9_000), QuotaCheck::Checked).await.unwrap());
    store.limit_storage(10);
    assert!(store.update_conversation(&tenant, &small, &json!({})).await.unwrap(), "it shrinks");
    assert!(store.update_conversation(&tenant, &small, &json!({ "a": "b" })).await.is_err());
    store.audit(&tenant, vec![entry(AuditEvent::Started, "1")]).await.unwrap();
    assert!(store.delete_conversation(&tenant, &small).await.unwrap());
}

#[tokio::test]
async fn a_turn_that_is_removed_in_part_counts_what_remains() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let (tenant, id) = (Tenant::local(), TurnId::new());
    let lease = store.create_turn(&tenant, new_turn(&id)).await.unwrap().unwrap().lease();
    let appended = store.append_turn(&lease, update(0, "text")).await.unwrap();
    assert!(matches!(appended, AppendOutcome::Stored { .. }));
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let stop = "CREATE TRIGGER stop BEFORE DELETE ON turns BEGIN SELECT RAISE(ABORT, 'the power is cut'); END";
    database.execute_batch(stop).unwrap();
    store.delete_turn(&tenant, &id).await.unwrap_err();
    assert_eq!(store.bytes_of(&tenant).await.unwrap(), recounted(data.path(), &tenant));
    database.execute_batch("DROP TRIGGER stop").unwrap();
    assert!(store.delete_turn(&tenant, &id).await.unwrap());
    assert_eq!(store.bytes_of(&tenant).await.unwrap(), 0);
}

#[tokio::test]
async fn what_is_large_is_deleted_in_pieces_and_whole() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let (mine, other) = (Tenant::local(), Tenant::of_signed("other"));
    let items = || (0..1_234).map(|number| (format!("item_{number}"), json!("x"))).collect::<Vec<_>>();
    let mut conversations = Vec::new();
    for tenant in [&mine, &mine, &other] {
        let id = store.add_conversation(tenant, json!({}), vec![]).await.unwrap().id;
        assert!(store.add_items(tenant, &id, items(), QuotaCheck::Checked).await.unwrap());
        conversations.push(id);
    }
    let (each, all) = (store.bytes_of(&other).await.unwrap(), store.bytes_of(&mine).await.unwrap());
    assert_eq!(all, 2 * each);
    assert!(!store.delete_conversation(&other, &conversations[0]).await.unwrap(), "it is another's");
    assert!(store.delete_conversation(&mine, &conversations[0]).await.unwrap());
    assert_eq!((store.bytes_of(&mine).await.unwrap(), store.bytes_of(&other).await.unwrap()), (each, each));
    assert_eq!(store.all_items(&mine, &conversations[1], 1 << 20).await.unwrap().unwrap().len(), 1_234);
}
