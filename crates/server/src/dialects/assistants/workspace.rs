//! The files of a run, in its thread's session.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use aludel_engine::Session;
use aludel_engine::sessions::{SessionChoice, WORKSPACE, free_name};
use aludel_store::{FileId, Tenant, ThreadId};

use super::threads;
use crate::app::App;
use crate::error::ApiError;

/// Files of one run: of its assistant, its thread and all messages.
const MAX_FILES: usize = 200;
/// Attempts to give a thread its session while others try the same.
const ATTEMPTS: usize = 3;

/// Opens the session of a thread; the first run makes it.
pub(super) async fn open(app: &App, tenant: &Tenant, thread: &ThreadId) -> Result<Arc<Session>, ApiError> {
    for _ in 0..ATTEMPTS {
        let before = threads::find(app, tenant, thread).await?.session;
        let choice = match before.clone() {
            Some(session) => SessionChoice::Reuse(session),
            None => SessionChoice::Auto { file_ids: Vec::new(), memory: None },
        };
        let session = app.engine.sessions.open(tenant, choice).await?;
        if before.as_ref() == Some(session.id())
            || app.store.set_thread_session(tenant, thread, before, session.id().clone()).await?
        {
            return Ok(session);
        }
        let id = session.id().clone();
        drop(session);
        app.engine.sessions.delete(tenant, &id).await?;
    }
    Err(ApiError::internal("the session of a thread changes all the time"))
}

/// The paths of files in a session, by their ids.
#[derive(Debug, Default)]
pub(super) struct FilePaths(Vec<(String, String)>);

impl FilePaths {
    /// Copies files into a session that does not have them yet: each under its id and, unless a program uses it, under its name, with a
    /// number if an earlier file has the same. Deleted files are skipped.
    pub(super) async fn copy_into(
        app: &App,
        tenant: &Tenant,
        session: &Session,
        ids: impl IntoIterator<Item = String>,
    ) -> Result<Self, ApiError> {
        let present: HashSet<String> = session.files().await?.into_iter().map(|file| file.path).collect();
        let (mut seen, mut names, mut placed) = (HashSet::new(), HashSet::new(), Vec::new());
        for id in ids.into_iter().filter(|id| seen.insert(id.clone())).take(MAX_FILES) {
            let Some(parsed) = FileId::parse(&id) else { continue };
            let Some(file) = app.store.file(tenant, &parsed).await? else { continue };
            let filename = free_name(&file.filename, &names);
            let (by_id, by_name) = (format!("{WORKSPACE}/{id}"), format!("{WORKSPACE}/{filename}"));
            let is_new = !present.contains(&by_id);
            // A program may have used the name, or removed the file of that name.
            let is_named = present.contains(&by_name) != is_new;
            names.insert(filename.clone());
            if is_new {
                let wanted = [Some(id.as_str()), is_named.then_some(filename.as_str())];
                for name in wanted.into_iter().flatten() {
                    let blob = app.store.copy_blob(tenant, &file.blob).await?;
                    session.add_file(name, &file.mime, blob).await?;
                }
            }
            placed.push((id, if is_named { by_name } else { by_id }));
        }
        Ok(Self(placed))
    }

    /// The paths by the files' ids.
    pub(super) fn paths(&self) -> HashMap<&str, &str> {
        self.0.iter().map(|(id, path)| (id.as_str(), path.as_str())).collect()
    }

    /// Words for the model about them.
    pub(super) fn words(&self) -> Option<String> {
        let lines: Vec<String> = self.0.iter().map(|(id, path)| format!("- {path} (file id {id})")).collect();
        (!lines.is_empty()).then(|| format!("Files that programs can read:\n{}", lines.join("\n")))
    }
}
