//! Rows of each tenant, before and after a restart.

use std::time::Duration;

use aludel_store::{
    DailyBudget, Error, MeteredDay, MeteredWork, NewUpload, Order, PageQuery, QuotaCheck, ResponseId, ResponseRecord,
    ResponseText, SessionFileId, SessionId, Store, Tenant, UploadStatus, UsedUp, today,
};
use serde_json::json;

use super::{blob, content, count, file, new_file, new_session, tenants};

#[tokio::test]
async fn a_session_without_one_of_its_files_is_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let (kept, lost) = (file(&store, &Tenant::local(), b"1").await, file(&store, &Tenant::local(), b"2").await);
    assert!(store.delete_file(&Tenant::local(), &lost.id).await.unwrap());
    let files = vec![(new_file("a"), kept.blob), (new_file("b"), lost.blob)];
    let refused = store.add_session(&Tenant::local(), new_session(Duration::from_secs(60)), files).await;
    assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
    assert!(store.sessions(&Tenant::local(), None, PageQuery::first(9)).await.unwrap().data.is_empty());
    assert_eq!(count(&directory.path().join("blobs")), 1);
}

#[tokio::test]
async fn files_of_a_session_are_written_and_forgotten_together() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    let session = store.add_session(&tenant, new_session(Duration::from_secs(60)), vec![]).await.unwrap().id;
    let write = async |files: Vec<(&'static str, &'static str)>, gone: Vec<SessionFileId>| {
        let files = files.into_iter().map(|(path, text)| (new_file(path), Some(text.as_bytes())));
        let mut files = store.write_session_files(&tenant, &session, files, gone).await.unwrap().unwrap().records;
        files.sort_by(|one, other| one.path.cmp(&other.path));
        files
    };
    let first = write(vec![("a", "1"), ("b", "2"), ("c", "3")], vec![]).await;
    let second = write(vec![("a", "1"), ("b", "22")], vec![first[2].id.clone()]).await;
    assert_eq!((&second[0], &second[1].id), (&first[0], &first[1].id));
    assert_ne!(second[1].blob, first[1].blob);
    assert_eq!(store.all_session_files(&tenant, &session).await.unwrap(), second);
    assert_eq!(count(&directory.path().join("blobs")), 2);
    let elsewhere = vec![(new_file("d"), Some(&b"4"[..]))];
    let other = store.write_session_files(&tenant, &SessionId::new(), elsewhere, vec![second[0].id.clone()]).await;
    assert_eq!(other.unwrap(), None);
    assert_eq!(count(&directory.path().join("blobs")), 2);
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
    let session = store.add_session(&mine, new_session(Duration::from_secs(60)), vec![]).await.unwrap();
    let put = async |tenant: &Tenant, path: &str, content: &[u8]| {
        let files = vec![(new_file(path), blob(&store, content).await)];
        store.put_session_files(tenant, &session.id, files).await.unwrap().and_then(|mut files| files.pop())
    };
    let first = put(&mine, "a.txt", b"1").await.unwrap();
    let second = put(&mine, "a.txt", b"22").await.unwrap();
    assert_eq!((first.id, second.bytes), (second.id.clone(), 2));
    assert_eq!(count(&directory.path().join("blobs")), 1);
    assert!(put(&other, "b.txt", b"3").await.is_none());
    assert_eq!(count(&directory.path().join("blobs")), 1);
    assert!(store.session_file(&other, &session.id, &second.id).await.unwrap().is_none());
    let copy = store.copy_blob(&Tenant::local(), &second.blob).await.unwrap();
    assert_eq!(copy.sha256(), second.sha256);
    drop(copy);
    assert!(store.delete_session(&mine, &session.id).await.unwrap());
    assert!(store.session_file(&mine, &session.id, &second.id).await.unwrap().is_none());
    assert_eq!(count(&directory.path().join("blobs")), 0);
}

#[tokio::test]
async fn a_session_expires_and_is_forgotten_later() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let tenant = Tenant::local();
    // Long enough for a write on a disk that is busy.
    let idle = Duration::from_secs(3);
    let session = store.add_session(&tenant, new_session(idle), vec![]).await.unwrap();
    assert!(!session.is_expired());
    tokio::time::sleep(idle + Duration::from_millis(50)).await;
    assert!(store.session(&tenant, &session.id).await.unwrap().unwrap().is_expired());
    store.touch_session(&tenant, &session.id).await.unwrap();
    assert!(!store.session(&tenant, &session.id).await.unwrap().unwrap().is_expired());
    store.remove_sessions_unused_for(Duration::from_secs(60)).await.unwrap();
    assert!(store.session(&tenant, &session.id).await.unwrap().is_some());
    tokio::time::sleep(Duration::from_millis(20)).await;
    store.remove_sessions_unused_for(Duration::from_millis(1)).await.unwrap();
    assert!(store.session(&tenant, &session.id).await.unwrap().is_none());
}

#[tokio::test]
async fn expired_sessions_of_one_tenant_can_be_removed() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open_beside(data.path()).await.unwrap();
    let (mine, others) = (Tenant::terminal(), Tenant::local());
    let mut left = Vec::new();
    for (tenant, idle) in [(&mine, 0), (&mine, 60), (&others, 0)] {
        let session = store.add_session(tenant, new_session(Duration::from_secs(idle)), vec![]).await.unwrap();
        let file = (new_file("a"), blob(&store, b"x").await);
        store.put_session_files(tenant, &session.id, vec![file]).await.unwrap().unwrap();
        left.push(session.id);
    }
    store.remove_expired_sessions(&mine).await.unwrap();
    assert_eq!(store.session(&mine, &left[0]).await.unwrap(), None);
    assert!(store.session(&mine, &left[1]).await.unwrap().is_some());
    assert!(store.session(&others, &left[2]).await.unwrap().is_some());
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
        name: None,
    };
    let upload = store.add_upload(&mine, new()).await.unwrap();
    assert!(store.add_part(&other, &upload.id, blob(&store, b"x").await).await.unwrap().is_none());
    store.add_part(&mine, &upload.id, blob(&store, b"a").await).await.unwrap().unwrap();
    for (offset, fits) in [(0, false), (1, true), (1, false)] {
        let part = blob(&store, b"b").await;
        assert_eq!(store.add_part_at(&mine, &upload.id, Some(offset), part).await.unwrap().is_some(), fits);
    }
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
    let page = store.items(&mine, &conversation.id, page).await.unwrap().unwrap();
    assert_eq!((page.data, page.has_more), (vec![("a".to_owned(), r#"{"id":"a"}"#.to_owned())], true));
    let all = store.all_items(&mine, &conversation.id, 1000).await.unwrap().unwrap();
    assert_eq!(all, [r#"{"id":"z"}"#, r#"{"id":"a"}"#, r#"{"id":"m"}"#]);
    assert!(store.all_items(&mine, &conversation.id, 10).await.unwrap().is_none());
    assert!(store.item(&other, &conversation.id, "a").await.unwrap().is_none());
    assert!(store.delete_item(&mine, &conversation.id, "a").await.unwrap());
    assert!(!store.delete_item(&mine, &conversation.id, "a").await.unwrap(), "an item is deleted once");
    assert!(store.item(&mine, &conversation.id, "a").await.unwrap().is_none());
    let after = async |id: &str, order| {
        let page = PageQuery { after: Some(id.into()), limit: 5, order };
        let page = store.items(&mine, &conversation.id, page).await.unwrap();
        page.map(|page| page.data.into_iter().map(|(id, _)| id).collect::<Vec<_>>())
    };
    assert_eq!(after("a", Order::Ascending).await.unwrap(), ["m"], "a list goes on behind an item that was deleted");
    assert_eq!(after("a", Order::Descending).await.unwrap(), ["z"]);
    assert_eq!(after("q", Order::Ascending).await, None);
    assert!(store.add_items(&mine, &conversation.id, vec![item("a")], QuotaCheck::Checked).await.unwrap());
    let all = store.all_items(&mine, &conversation.id, 1000).await.unwrap().unwrap();
    assert_eq!(all, [r#"{"id":"z"}"#, r#"{"id":"m"}"#, r#"{"id":"a"}"#], "an item that comes back is the newest");
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
        object: json!({ "status": status }).to_string(),
        input: json!([{ "type": "message" }]).to_string(),
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
        object: json!({ "output": [{ "id": output }] }).to_string(),
        input: json!([{ "id": input }, {}, { "id": 1 }]).to_string(),
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
    let text = |record: &ResponseRecord| ResponseText { object: record.object.clone(), input: record.input.clone() };
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
