//! The files of a session, which outlive the sandbox.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::Error;

/// The longest path that is reported, bytes.
pub(crate) const MAX_PATH: usize = 1024;
/// The most files that one execution reports.
const MAX_REPORTED: usize = 1000;
/// Bytes that are copied at once.
const COPY_BUFFER: usize = 256 << 10;

/// The files of a session. It is made with a sandbox and outlives it; whoever drops the last hold on it removes the files.
///
/// Names were chosen by the guest, and the guest may be changing anything at the same time. All methods block; async callers go through
/// `blocking`.
pub trait Workspace: Any + fmt::Debug + Send + Sync {
    /// Returns all regular files, by path.
    fn files(&self) -> Result<Vec<FileEntry>, Error>;

    /// Opens a regular file for reading, and returns it with its size. It may grow meanwhile.
    fn open(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error>;

    /// Writes a file of at most `limit` bytes under a plain relative path, replacing what is there. On failure there is no such file.
    fn write(&self, name: &str, source: &mut dyn Read, limit: u64) -> Result<FileEntry, Error>;

    /// Removes a regular file; one that is not there is fine.
    fn remove(&self, name: &str) -> Result<(), Error>;

    /// Returns how full it is.
    fn room(&self) -> Result<Room, Error>;

    /// Looks at everything, at most a little more than `most` entries.
    fn snapshot(&self, most: u64) -> Result<Snapshot, Error>;
}

impl dyn Workspace {
    /// Works with the files on a thread that may block.
    pub async fn blocking<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&dyn Workspace) -> T + Send + 'static,
    ) -> T {
        tokio::task::spawn_blocking(move || work(&*self))
            .await
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// Reads a regular file of at most `limit` bytes. Blocks.
    pub fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let too_large = || file_error(Path::new(path), &format!("more than {limit} bytes"));
        let (file, size) = self.open(path)?;
        if size > limit {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        // It may grow while it is read.
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| file_error(Path::new(path), &error.to_string()))?;
        if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
    }

    /// Writes a file whose size is known, so that one of more than `limit` bytes is refused before anything is replaced. Blocks.
    pub fn add(&self, name: &str, bytes: u64, source: &mut dyn Read, limit: u64) -> Result<FileEntry, Error> {
        if bytes > limit {
            return Err(file_error(Path::new(name), &too_large(bytes, limit)));
        }
        self.write(name, source, limit)
    }
}

/// One regular file of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileEntry {
    /// Path relative to the workspace, `/` between parts, never absolute, never with `..`. The guest chose it: it may hold any character.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// MIME type, guessed from the name's ending.
    pub mime: &'static str,
}

impl<'de> Deserialize<'de> for FileEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The name tells the MIME type.
        #[derive(Deserialize)]
        struct Entry {
            path: String,
            size: u64,
        }
        let Entry { path, size } = Entry::deserialize(deserializer)?;
        Ok(Self { mime: mime_of(&path), path, size })
    }
}

/// How full a workspace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that it may hold.
    pub limit: u64,
    /// Whether another file fits.
    pub takes_files: bool,
}

/// Figures that differ when a file has changed: for example its inode, size and times.
pub type Fingerprint = [u64; 6];

/// The state of a workspace at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    files: BTreeMap<String, (FileEntry, Fingerprint)>,
    unreportable: BTreeSet<Fingerprint>,
    entries: u64,
}

impl Snapshot {
    /// Notes a regular file.
    pub fn insert(&mut self, entry: FileEntry, fingerprint: Fingerprint) {
        self.files.insert(entry.path.clone(), (entry, fingerprint));
    }

    /// Notes a file or directory that cannot be reported: its name is not UTF-8, or its path too long or too deep.
    pub fn insert_unreportable(&mut self, fingerprint: Fingerprint) {
        self.unreportable.insert(fingerprint);
    }

    /// Counts an entry that was looked at, and returns how many there are.
    pub fn count(&mut self) -> u64 {
        self.entries += 1;
        self.entries
    }

    /// Returns the files, by path.
    pub fn into_entries(self) -> Vec<FileEntry> {
        self.files.into_values().map(|(entry, _)| entry).collect()
    }

    /// Returns the files that are new or different since `before`, and how many more there are that are not reported.
    pub(crate) fn changed_since(&self, before: &Self) -> (Vec<FileEntry>, u64) {
        let changed = |(path, (_, print)): &(&String, &(FileEntry, Fingerprint))| {
            before.files.get(*path).is_none_or(|(_, old)| old != print)
        };
        let mut changed = self.files.iter().filter(changed).map(|(_, (entry, _))| entry);
        let reported = changed.by_ref().take(MAX_REPORTED).cloned().collect();
        let left_out = changed.count() + self.unreportable.difference(&before.unreportable).count();
        (reported, left_out as u64)
    }
}

/// Copies at most `limit` bytes; more is an error.
pub(crate) fn copy(source: &mut dyn Read, target: &mut dyn io::Write, limit: u64) -> io::Result<u64> {
    let mut buffer = vec![0; COPY_BUFFER];
    let mut copied = 0;
    loop {
        let count = match source.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        copied += count as u64;
        if copied > limit {
            return Err(io::Error::other(too_large(copied, limit)));
        }
        target.write_all(buffer.get(..count).unwrap_or_default())?;
    }
}

fn too_large(size: u64, limit: u64) -> String {
    format!("{size} bytes are more than the workspace takes ({limit}); raise sandbox.disk")
}

/// Returns a plain relative path, or says why it is none.
pub(crate) fn relative(name: &str) -> Result<PathBuf, Error> {
    let path = Path::new(name);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || name.len() > MAX_PATH || name.contains('\0') || name.ends_with('/') || !plain {
        return Err(file_error(path, "not a plain relative path"));
    }
    Ok(path.into())
}

pub(crate) fn file_error(path: &Path, reason: &str) -> Error {
    Error::File { path: path.display().to_string(), reason: reason.to_owned() }
}

/// The MIME type by a name's ending; what is not known is bytes.
pub fn mime_of(path: &str) -> &'static str {
    let ending = path.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase()).unwrap_or_default();
    match ending.as_str() {
        "csv" => "text/csv",
        "tsv" => "text/tab-separated-values",
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "html" | "htm" => "text/html",
        "json" => "application/json",
        "xml" => "application/xml",
        "py" => "text/x-python",
        "ipynb" => "application/x-ipynb+json",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "xls" => "application/vnd.ms-excel",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "parquet" => "application/vnd.apache.parquet",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    }
}
