//! A workspace that is a map.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use crate::Error;
use crate::workspace::{
    FULL, FileEntry, Workspace, WorkspaceEntry, WorkspaceListing, WorkspaceUsage, copy, file_error, mime_of, relative,
};
use parking_lot::Mutex;

/// The files of a session, in this process.
#[derive(Debug)]
pub(super) struct MemoryWorkspace {
    files: Mutex<FileTable>,
    bytes: u64,
    entries: u64,
    /// Times that the backend had lost everything before this was made.
    losses: u64,
}

#[derive(Debug, Default)]
struct FileTable {
    by_path: BTreeMap<String, File>,
    /// Writes so far.
    version: u64,
}

#[derive(Debug)]
struct File {
    bytes: Arc<[u8]>,
    version: u64,
}

impl MemoryWorkspace {
    pub(super) fn new(bytes: u64, entries: u64, losses: u64) -> Self {
        Self { files: Mutex::default(), bytes, entries, losses }
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// The workspace, if it is of this backend.
    pub(super) fn of(workspace: Arc<dyn Workspace>) -> Option<Arc<Self>> {
        (workspace as Arc<dyn Any + Send + Sync>).downcast().ok()
    }

    pub(super) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        self.files.lock().by_path.get(path).map(|file| file.bytes.to_vec())
    }

    /// Writes a file as a program does: cuts off what does not fit, and then returns `false`.
    pub(super) fn write_some(&self, path: &str, bytes: &[u8]) -> bool {
        let mut files = self.files.lock();
        let before = files.by_path.remove(path);
        if files.by_path.len() as u64 >= self.entries {
            return false;
        }
        drop(before);
        let room = self.bytes - files.used().min(self.bytes);
        let kept = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        files.insert(path, bytes.get(..kept).unwrap_or_default());
        kept == bytes.len()
    }
}

impl File {
    fn entry(&self, path: &str) -> FileEntry {
        FileEntry { path: path.to_owned(), size: self.bytes.len() as u64, mime: mime_of(path) }
    }
}

impl FileTable {
    fn used(&self) -> u64 {
        self.by_path.values().map(|file| file.bytes.len() as u64).sum()
    }

    fn insert(&mut self, path: &str, bytes: &[u8]) {
        self.version += 1;
        let file = File { bytes: bytes.into(), version: self.version };
        self.by_path.insert(path.to_owned(), file);
    }
}

impl Workspace for MemoryWorkspace {
    fn listing(&self) -> Result<WorkspaceListing, Error> {
        let files = self.files.lock();
        Ok(WorkspaceListing::whole(files.by_path.iter().map(|(path, file)| file.entry(path)).collect()))
    }

    fn open(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
        let files = self.files.lock();
        let file =
            files.by_path.get(path).ok_or_else(|| file_error(Path::new(path), "no such file in the workspace"))?;
        let size = file.bytes.len() as u64;
        Ok((Box::new(Cursor::new(Arc::clone(&file.bytes))), size))
    }

    fn write(&self, name: &str, source: &mut dyn Read, limit: u64) -> Result<FileEntry, Error> {
        let path = relative(name)?;
        self.files.lock().by_path.remove(name);
        let mut bytes = Vec::new();
        let size = copy(source, &mut bytes, limit).map_err(|error| file_error(&path, &error.to_string()))?;
        let mut files = self.files.lock();
        if files.used() + size > self.bytes || files.by_path.len() as u64 >= self.entries {
            return Err(file_error(&path, FULL));
        }
        files.insert(name, &bytes);
        Ok(FileEntry { path: name.to_owned(), size, mime: mime_of(name) })
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        relative(name)?;
        self.files.lock().by_path.remove(name);
        Ok(())
    }

    fn usage(&self) -> Result<WorkspaceUsage, Error> {
        let files = self.files.lock();
        let takes_files = (files.by_path.len() as u64) < self.entries;
        Ok(WorkspaceUsage { used: files.used(), limit: self.bytes, takes_files })
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn walk(&self, most: u64, visit: &mut dyn FnMut(WorkspaceEntry)) -> Result<(), Error> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        for (path, file) in self.files.lock().by_path.iter().take(most) {
            visit(WorkspaceEntry::File(file.entry(path), [file.version, 0, 0, 0, 0, 0]));
        }
        Ok(())
    }
}
