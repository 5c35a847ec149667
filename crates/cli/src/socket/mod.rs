//! The Unix socket of a server, in its data directory: `aludel run` uses the server's sandboxes through it, and `aludel sandbox` speaks
//! HTTP with the server there.
//!
//! Both ends must be the same executable of the same user; so messages have no versions. Files are sent as descriptors that the client
//! opened, and returned as bytes.

mod client;
mod connection;
mod frames;
mod listener;
mod message;

use std::path::{Path, PathBuf};

pub(crate) use client::{ProgramUpdate, ServerLookup, ServerProgram, reach};
pub(crate) use listener::SocketListener;

/// The name of the socket in the data directory.
const NAME: &str = "aludel.sock";

/// Bytes of the longest path that the system takes for a socket.
const LONGEST: usize = 107;

/// Returns the path of the socket, or what is wrong with it.
pub(crate) fn path(data: &Path) -> Result<PathBuf, String> {
    let path = data.join(NAME);
    let bytes = path.as_os_str().len();
    if bytes > LONGEST {
        let shown = path.display();
        return Err(format!("the path {shown} has {bytes} bytes, and a socket's has {LONGEST} at most"));
    }
    Ok(path)
}
