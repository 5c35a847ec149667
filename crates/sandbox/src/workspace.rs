//! The files of a session, seen from the host.

/// One regular file of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Path relative to the workspace, `/` between parts, never absolute, never with `..`.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// MIME type, guessed from the name's ending.
    pub mime: &'static str,
}

/// A directory on the host that holds one session's files.
#[derive(Debug)]
pub struct Workspace;
