//! The state in the data directory: everything that outlives a process, and the audit log.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aludel_store::{Store, Tenant};
use anyhow::Context as _;

use crate::context::CommandContext;
use crate::exit::usage;

/// Returns the directory of the state. It is a separate one, so that other users cannot read it.
pub(crate) fn directory(data: &Path) -> PathBuf {
    data.join("state")
}

/// Opens the state of a server, which may be running. Fails if there is none, and makes none, because the directory may be mistyped.
pub(crate) async fn open_beside(context: &CommandContext) -> anyhow::Result<Store> {
    let state = directory(&context.config.server.data);
    if !state.is_dir() {
        return Err(usage(format!(
            "no server has kept anything in {} (server.data: {}); --data names another directory",
            state.display(),
            context.config.server.data.origin
        )));
    }
    Store::open_beside(&state).await.with_context(|| format!("cannot open the server's state in {}", state.display()))
}

/// Opens the state for questions from the terminal, beside a running server if there is one. Makes it if there is none.
pub(crate) async fn open(context: &CommandContext) -> anyhow::Result<Store> {
    make_data_directory(context)?;
    let state = directory(&context.config.server.data);
    // The server could not read blobs of another user afterwards.
    if let Ok(metadata) = std::fs::metadata(&state)
        && metadata.uid() != rustix::process::geteuid().as_raw()
    {
        let (shown, owner) = (state.display(), metadata.uid());
        return Err(usage(format!(
            "the state in {shown} belongs to the user {owner}; run this as that user (sudo -u '#{owner}'), or give another \
             directory with --data DIR"
        )));
    }
    let opened = async {
        let store = Store::open_beside(&state).await?;
        store.remove_expired_sessions(&Tenant::terminal()).await?;
        Ok::<_, anyhow::Error>(store)
    };
    opened.await.map_err(|error| explain(error, context))
}

/// Makes the data directory, unless it is there.
pub(crate) fn make_data_directory(context: &CommandContext) -> anyhow::Result<()> {
    let data = &context.config.server.data;
    std::fs::create_dir_all(&***data).with_context(|| {
        format!("cannot make the data directory {} ({}); give another with --data DIR", data.display(), data.origin)
    })
}

/// A failure of the state in the engine's words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct StateError(pub(crate) String);

/// Adds the place of the state and a remedy to an error about it.
pub(crate) fn explain(error: anyhow::Error, context: &CommandContext) -> anyhow::Error {
    let data = &context.config.server.data;
    let state = directory(data);
    let is_of_state = error.chain().any(|cause| match cause.downcast_ref() {
        Some(aludel_engine::Error::Store(_)) => true,
        Some(aludel_engine::Error::Io { path, .. }) => path.starts_with(&state),
        _ => cause.is::<aludel_store::Error>() || cause.is::<StateError>(),
    });
    if !is_of_state {
        return error;
    }
    error.context(format!(
        "the state in {}, with the audit log, needs room and must be writable (server.data: {}; --data DIR names another directory)",
        state.display(),
        data.origin
    ))
}
