//! The state in the data directory: what outlives a process, and the audit log.

use std::path::{Path, PathBuf};

use aludel_store::Store;
use anyhow::Context as _;

use crate::commands::Context;
use crate::exit::usage;

/// Returns the directory of the state. It is one of its own, so that nobody else can read it.
pub(crate) fn directory(data: &Path) -> PathBuf {
    data.join("state")
}

/// Opens the state of a server, which may be running. There is none in a directory that was mistyped, and none is made there.
pub(crate) async fn open_beside(context: &Context) -> anyhow::Result<Store> {
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
