//! State of each tenant, before and after a restart.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod audit;
mod database;
mod rows;

use std::path::Path;
use std::time::Duration;

use aludel_store::{
    FileLocation, FileOrigin, FileRecord, NewBlob, NewFile, NewSessionFile, NewSessionRecord, SessionFileId, Store,
    Tenant,
};
use tokio::io::AsyncReadExt;

async fn blob(store: &Store, content: &[u8]) -> NewBlob {
    store.write_blob(&Tenant::local(), content).await.unwrap()
}

async fn file(store: &Store, tenant: &Tenant, content: &[u8]) -> FileRecord {
    let new =
        NewFile { filename: "a.txt".into(), purpose: "user_data".into(), mime: "text/plain".into(), expires_at: None };
    store.add_file(tenant, new, blob(store, content).await).await.unwrap()
}

fn new_file(path: &str) -> NewSessionFile {
    NewSessionFile {
        id: SessionFileId::new(),
        path: path.into(),
        mime: "text/plain".into(),
        source: FileOrigin::Assistant,
        location: FileLocation::Workspace,
    }
}

fn new_session(idle: Duration) -> NewSessionRecord {
    NewSessionRecord { name: "c".into(), memory_limit: None, idle, variables: None }
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
