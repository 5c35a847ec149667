//! Files in a sandbox: the service `filesystem.Filesystem`.

use std::sync::Arc;
use std::time::Duration;

use aludel_engine::permits::Permit;
use aludel_engine::sandboxes::files::{Change, ChangeKind, DirectoryWatch, Files};
use aludel_wire::e2b::filesystem::{
    CreateWatcherResponse, EntryResponse, EventType, FilesystemEvent, ListDirRequest, ListDirResponse, MoveRequest,
    PathRequest, WatchMessage, WatchRequest, WatcherEvents, WatcherRequest,
};
use aludel_wire::e2b::process::Empty;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::connect::{Client, Failure, FirstFrame, Message, StreamFailure, keepalive, stream};
use super::describe;
use super::target::TargetSandbox;
use crate::app::App;
use crate::client_sandboxes::listing::listing;
use crate::error::ApiError;
use crate::http::{GuardedBody, memory};

/// Bytes of the changes of a watched directory that are told at once, in all copies.
const MAX_CHANGES: usize = 8 << 20;
/// Levels of directories that are listed at once.
const MAX_DEPTH: u32 = 64;

async fn files(reached: &TargetSandbox) -> Result<Files, Failure> {
    Ok(reached.sandbox.files().await?)
}

/// `Stat`
pub(super) async fn stat(
    reached: TargetSandbox,
    Message(request): Message<PathRequest>,
) -> Result<Json<EntryResponse>, Failure> {
    let entry = files(&reached).await?.stat(&request.path).await?;
    Ok(Json(EntryResponse { entry: describe::entry(entry) }))
}

/// `ListDir`
pub(super) async fn list_dir(
    State(app): State<Arc<App>>,
    reached: TargetSandbox,
    Message(request): Message<ListDirRequest>,
) -> Result<Response, Failure> {
    let depth = request.depth.clamp(1, MAX_DEPTH);
    let files = files(&reached).await?;
    let list = async {
        let entries = files.list(&request.path, depth).await?;
        Ok::<_, Failure>(ListDirResponse { entries: entries.into_iter().map(describe::entry).collect() })
    };
    listing(&app, &reached.sandbox, list).await
}

/// `MakeDir`
pub(super) async fn make_dir(
    reached: TargetSandbox,
    Message(request): Message<PathRequest>,
) -> Result<Json<EntryResponse>, Failure> {
    let entry = files(&reached).await?.make_directory(&request.path).await?;
    Ok(Json(EntryResponse { entry: describe::entry(entry) }))
}

/// `Move`
pub(super) async fn rename(
    reached: TargetSandbox,
    Message(request): Message<MoveRequest>,
) -> Result<Json<EntryResponse>, Failure> {
    let entry = files(&reached).await?.rename(&request.source, &request.destination).await?;
    Ok(Json(EntryResponse { entry: describe::entry(entry) }))
}

/// `Remove`
pub(super) async fn remove(
    reached: TargetSandbox,
    Message(request): Message<PathRequest>,
) -> Result<Json<Empty>, Failure> {
    files(&reached).await?.remove(&request.path).await?;
    Ok(Json(Empty {}))
}

fn event(change: Change) -> FilesystemEvent {
    let Change { kind, name, entry } = change;
    let r#type = match kind {
        ChangeKind::Create => EventType::Create,
        ChangeKind::Write => EventType::Write,
        ChangeKind::Remove => EventType::Remove,
        ChangeKind::Rename => EventType::Rename,
        ChangeKind::Chmod => EventType::Chmod,
    };
    FilesystemEvent { name, r#type, entry: entry.map(describe::entry) }
}

/// `CreateWatcher`
pub(super) async fn create_watcher(
    reached: TargetSandbox,
    Message(request): Message<WatchRequest>,
) -> Result<Json<CreateWatcherResponse>, Failure> {
    let watch = files(&reached).await?.watch(&request.path, request.recursive, request.include_entry).await?;
    Ok(Json(CreateWatcherResponse { watcher_id: reached.sandbox.watches().add(watch)? }))
}

/// `GetWatcherEvents`
pub(super) async fn watcher_events(
    State(app): State<Arc<App>>,
    reached: TargetSandbox,
    Message(request): Message<WatcherRequest>,
) -> Result<Response, Failure> {
    // Before they are fetched, because they come only once.
    let counted = memory(&app, reached.sandbox.tenant(), MAX_CHANGES)?;
    let watch = reached.sandbox.watches().get(&request.watcher_id).ok_or_else(|| no_watcher(&request))?;
    // Of too many changes only the first are sent; no client could use more.
    let (changes, _dropped) = watch.changes().await?;
    let events = Json(WatcherEvents { events: changes.into_iter().map(event).collect() });
    Ok(events.into_response().map(|body| Body::new(GuardedBody::new(body, counted))))
}

/// `RemoveWatcher`
pub(super) async fn remove_watcher(
    reached: TargetSandbox,
    Message(request): Message<WatcherRequest>,
) -> Result<Json<Empty>, Failure> {
    if reached.sandbox.watches().remove(&request.watcher_id) { Ok(Json(Empty {})) } else { Err(no_watcher(&request)) }
}

fn no_watcher(request: &WatcherRequest) -> Failure {
    let id: String = request.watcher_id.chars().take(64).collect();
    Failure::not_found(format!("watcher with id {id} not found"))
}

/// `WatchDir`
pub(super) async fn watch_dir(
    State(app): State<Arc<App>>,
    reached: TargetSandbox,
    headers: HeaderMap,
    FirstFrame(request): FirstFrame<WatchRequest>,
) -> Result<Response, StreamFailure> {
    let watch = files(&reached).await?.watch(&request.path, request.recursive, request.include_entry).await?;
    let pause = keepalive(&headers);
    let count = move |bytes| memory(&app, reached.sandbox.tenant(), bytes);
    Ok(stream(move |client| tell(client, watch, pause, count)))
}

/// Sends changes to a client for as long as it listens.
async fn tell(
    client: Client,
    mut watch: DirectoryWatch,
    pause: Duration,
    count: impl Fn(usize) -> Result<Permit, ApiError>,
) -> Result<(), Failure> {
    client.send(&WatchMessage::Start(Empty {})).await;
    loop {
        let next = watch.next();
        tokio::pin!(next);
        let read = loop {
            // The same future is polled again: a dropped one could lose changes.
            match tokio::time::timeout(pause, &mut next).await {
                Ok(read) => break read,
                Err(_) => client.send(&WatchMessage::Keepalive(Empty {})).await,
            }
        };
        match read {
            Err(error) => return Err(error.into()),
            Ok((changes, _dropped)) => {
                // As long as the client takes to read them.
                let _counted = count(changes.iter().map(Change::bytes).sum())?;
                for change in changes {
                    client.send(&WatchMessage::Filesystem(Box::new(event(change)))).await;
                }
            }
        }
    }
}
