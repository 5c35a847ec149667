//! The files of a session, which outlive the sandbox.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Error, guest_threads};

/// The longest path that is reported, bytes.
pub(crate) const MAX_PATH: usize = 1024;
/// The most files that one execution reports.
const MAX_REPORTED: usize = 1000;
/// Files and directories of a workspace that is small.
pub(crate) const SMALL: u64 = 64;
/// Directories that are known to be unreadable; with more, nothing is certainly gone.
const MAX_UNSEEN: usize = 100;
/// Bytes that are copied at once.
const COPY_BUFFER: usize = 256 << 10;

/// The files of a session. It is made with a sandbox and outlives it. Dropping the last reference removes the files.
///
/// The guest chose the names and may change anything at the same time. All methods block; async callers use `blocking`.
pub trait Workspace: Any + fmt::Debug + Send + Sync {
    /// Lists all regular files.
    fn listing(&self) -> Result<WorkspaceListing, Error>;

    /// Opens a regular file for reading, and returns it with its size. It may grow meanwhile.
    fn open(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error>;

    /// Writes a file of at most `limit` bytes under a plain relative path, replacing an existing one. On failure there is no such file.
    fn write(&self, name: &str, source: &mut dyn Read, limit: u64) -> Result<FileEntry, Error>;

    /// Removes a regular file. Success if it does not exist.
    fn remove(&self, name: &str) -> Result<(), Error>;

    /// Returns its usage and limit.
    fn usage(&self) -> Result<WorkspaceUsage, Error>;

    /// Returns true if a program can make calls on its files last.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns true if it contains so little that visiting everything is cheaper than starting a thread.
    fn is_small(&self) -> bool {
        false
    }

    /// Visits everything, at most a little more than `most` entries.
    fn walk(&self, most: u64, visit: &mut dyn FnMut(WorkspaceEntry)) -> Result<(), Error>;
}

impl dyn Workspace {
    /// Returns all regular files, by path. Blocks.
    pub fn files(&self) -> Result<Vec<FileEntry>, Error> {
        Ok(self.listing()?.files)
    }

    /// Works with the files on a thread that may block.
    pub async fn blocking<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&dyn Workspace) -> T + Send + 'static,
    ) -> T {
        let thread = if self.is_shared() { guest_threads::spawn } else { tokio::task::spawn_blocking };
        thread(move || work(&*self)).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// Visits at most `most` entries. There may be few, and no program that holds them up, unless it `is_touched`: then they are visited at
    /// once.
    pub(crate) async fn walk_async<T: Send + 'static>(
        self: Arc<Self>,
        most: u64,
        is_touched: bool,
        walk: impl FnOnce(&dyn Workspace, u64) -> T + Send + 'static,
    ) -> T {
        if !is_touched && self.is_small() {
            return walk(&*self, most);
        }
        self.blocking(move |workspace| walk(workspace, most)).await
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

    /// Writes a file of known size; one of more than `limit` bytes is refused before anything is replaced. Blocks.
    pub fn add(&self, name: &str, bytes: u64, source: &mut dyn Read, limit: u64) -> Result<FileEntry, Error> {
        if bytes > limit {
            return Err(file_error(Path::new(name), &too_large(bytes, limit)));
        }
        self.write(name, source, limit)
    }
}

/// The regular files of a workspace.
#[derive(Debug, Default)]
pub struct WorkspaceListing {
    /// The files, by path.
    pub files: Vec<FileEntry>,
    /// The beginnings of paths below which there may be others.
    unseen: Vec<String>,
}

impl WorkspaceListing {
    /// A whole listing of these files, which are sorted by path.
    pub(crate) fn whole(files: Vec<FileEntry>) -> Self {
        Self { files, unseen: Vec::new() }
    }

    /// Lists the files among about `most` entries of a workspace, each once: a file may be seen twice while its directory changes.
    pub(crate) fn of(workspace: &dyn Workspace, most: u64) -> Result<Self, Error> {
        let Self { mut files, mut unseen } = Self::default();
        workspace.walk(most, &mut |found| match found {
            WorkspaceEntry::File(entry, _) => files.push(entry),
            WorkspaceEntry::Unseen(prefix) if unseen.len() < MAX_UNSEEN => unseen.push(prefix),
            WorkspaceEntry::Unseen(_) => unseen = vec![String::new(); MAX_UNSEEN],
            WorkspaceEntry::Unreportable(_) => {}
        })?;
        files.sort_by(|one, other| one.path.cmp(&other.path));
        files.dedup_by(|one, other| one.path == other.path);
        Ok(Self { files, unseen })
    }

    /// Returns true if there is certainly no file of this path.
    pub fn lacks(&self, path: &str) -> bool {
        let is_listed = || self.files.binary_search_by(|file| file.path.as_str().cmp(path)).is_ok();
        !self.unseen.iter().any(|prefix| path.starts_with(prefix)) && !is_listed()
    }
}

/// One regular file of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileEntry {
    /// Path relative to the workspace, `/` between parts, never absolute, never with `..`. The guest chose it: it may contain any
    /// character.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// MIME type, guessed from the name's ending.
    pub mime: &'static str,
}

impl<'de> Deserialize<'de> for FileEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The name has the MIME type.
        #[derive(Deserialize)]
        struct Entry {
            path: String,
            size: u64,
        }
        let Entry { path, size } = Entry::deserialize(deserializer)?;
        Ok(Self { mime: mime_of(&path), path, size })
    }
}

/// Use of a workspace and its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceUsage {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that it may hold.
    pub limit: u64,
    /// True if another file fits.
    pub takes_files: bool,
}

/// Figures that differ when a file has changed: for example its inode, size and times.
pub type Fingerprint = [u64; 6];

/// Something in a workspace.
#[derive(Debug)]
pub enum WorkspaceEntry {
    /// A regular file.
    File(FileEntry, Fingerprint),
    /// A file or directory that cannot be reported: its name is not UTF-8, or its path is too long or too deep.
    Unreportable(Fingerprint),
    /// The beginning of paths that were not all seen: a directory with its `/` that cannot be read, or nothing if there are too many
    /// entries.
    Unseen(String),
}

/// The state of a workspace at one moment, as far as it is needed to detect changes. It keeps no names: there may be 50,000 of a thousand
/// bytes each.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// The files, by keyed hashes of their paths, which the guest cannot predict.
    files: HashMap<u64, Fingerprint>,
    unreportable: BTreeSet<Fingerprint>,
    hasher: RandomState,
}

impl Snapshot {
    /// Takes a snapshot of a workspace, of at most a little more than `most` entries. Blocks.
    pub(crate) fn of(workspace: &dyn Workspace, most: u64) -> Result<Self, Error> {
        let mut snapshot = Self::default();
        workspace.walk(most, &mut |found| match found {
            WorkspaceEntry::File(entry, print) => {
                snapshot.files.insert(snapshot.hasher.hash_one(&entry.path), print);
            }
            WorkspaceEntry::Unreportable(print) => {
                snapshot.unreportable.insert(print);
            }
            WorkspaceEntry::Unseen(_) => {}
        })?;
        Ok(snapshot)
    }

    /// Returns the new and changed files since then, the first ones by path, and the number of those left out. Blocks.
    pub(crate) fn changes(&self, workspace: &dyn Workspace, most: u64) -> Result<(Vec<FileEntry>, u64), Error> {
        let (mut changed, mut unreportable, mut left_out) = (BTreeMap::new(), BTreeSet::new(), 0);
        workspace.walk(most, &mut |found| match found {
            WorkspaceEntry::File(entry, print) => {
                if self.files.get(&self.hasher.hash_one(&entry.path)) == Some(&print) {
                    return;
                }
                changed.insert(entry.path.clone(), entry);
                if changed.len() > MAX_REPORTED {
                    changed.pop_last();
                    left_out += 1;
                }
            }
            WorkspaceEntry::Unreportable(print) => {
                if !self.unreportable.contains(&print) {
                    unreportable.insert(print);
                }
            }
            WorkspaceEntry::Unseen(_) => {}
        })?;
        Ok((changed.into_values().collect(), left_out + unreportable.len() as u64))
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

/// The reason why a full workspace takes no file.
pub(crate) const FULL: &str = "there is no room beside the workspace's other files; delete some, or raise sandbox.disk";

fn too_large(size: u64, limit: u64) -> String {
    format!("{size} bytes are more than the workspace takes ({limit}); raise sandbox.disk")
}

/// Returns a plain relative path, or says why it is none.
pub(crate) fn relative(name: &str) -> Result<PathBuf, Error> {
    let path = Path::new(name);
    // Only the form in which it would be listed: `Path` also accepts others, such as `a/.` for `a`.
    let plain = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if name.len() > MAX_PATH || name.contains('\0') || !plain {
        return Err(file_error(path, "not a plain relative path"));
    }
    Ok(path.into())
}

pub(crate) fn file_error(path: &Path, reason: &str) -> Error {
    Error::File { path: path.display().to_string(), reason: reason.to_owned() }
}

/// File extensions and their MIME types; the usual extension of a type first.
const TYPES: [(&str, &str); 28] = [
    ("csv", "text/csv"),
    ("tsv", "text/tab-separated-values"),
    ("txt", "text/plain"),
    ("log", "text/plain"),
    ("md", "text/markdown"),
    ("html", "text/html"),
    ("htm", "text/html"),
    ("json", "application/json"),
    ("xml", "application/xml"),
    ("py", "text/x-python"),
    ("ipynb", "application/x-ipynb+json"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("svg", "image/svg+xml"),
    ("webp", "image/webp"),
    ("pdf", "application/pdf"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xls", "application/vnd.ms-excel"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("parquet", "application/vnd.apache.parquet"),
    ("zip", "application/zip"),
    ("gz", "application/gzip"),
    ("mp3", "audio/mpeg"),
    ("wav", "audio/wav"),
    ("mp4", "video/mp4"),
];

/// The MIME type by a name's ending; what is not known is bytes.
pub fn mime_of(path: &str) -> &'static str {
    let ending = path.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase()).unwrap_or_default();
    let known = TYPES.iter().find(|(of, _)| *of == ending);
    known.map_or("application/octet-stream", |(_, mime)| mime)
}

/// The usual extension for this MIME type, if known.
pub fn ending_of(mime: &str) -> Option<&'static str> {
    let known = mime.split(';').next().unwrap_or_default().trim();
    TYPES.iter().find(|(_, of)| of.eq_ignore_ascii_case(known)).map(|(ending, _)| *ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace with these fingerprints, for `walk` only. A directory was not seen.
    #[derive(Debug)]
    struct ListedWorkspace(Vec<(String, u64)>);

    impl Workspace for ListedWorkspace {
        fn listing(&self) -> Result<WorkspaceListing, Error> {
            Err(Error::NotSupported("files"))
        }

        fn open(&self, _path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
            Err(Error::NotSupported("files"))
        }

        fn write(&self, _name: &str, _source: &mut dyn Read, _limit: u64) -> Result<FileEntry, Error> {
            Err(Error::NotSupported("files"))
        }

        fn remove(&self, _name: &str) -> Result<(), Error> {
            Err(Error::NotSupported("files"))
        }

        fn usage(&self) -> Result<WorkspaceUsage, Error> {
            Err(Error::NotSupported("files"))
        }

        fn walk(&self, _most: u64, visit: &mut dyn FnMut(WorkspaceEntry)) -> Result<(), Error> {
            for (path, version) in &self.0 {
                let print = [*version, 0, 0, 0, 0, 0];
                if path.is_empty() {
                    visit(WorkspaceEntry::Unreportable(print));
                } else if path.ends_with('/') {
                    visit(WorkspaceEntry::Unseen(path.clone()));
                } else {
                    visit(WorkspaceEntry::File(FileEntry { path: path.clone(), size: 0, mime: mime_of(path) }, print));
                }
            }
            Ok(())
        }
    }

    #[test]
    fn files_that_could_not_be_seen_are_not_taken_for_gone() {
        let listing = |paths: Vec<String>| {
            let entries = paths.into_iter().map(|path| (path, 1)).collect();
            WorkspaceListing::of(&ListedWorkspace(entries), 0).unwrap()
        };
        let some = listing(["b", "a", "locked/"].map(str::to_owned).into());
        let gone = ["a", "b", "c", "locked", "locked/x/y"].map(|path| some.lacks(path));
        assert_eq!(gone, [false, false, true, true, false]);
        let many = listing((0..=MAX_UNSEEN).map(|number| format!("{number}/")).collect());
        assert!(!many.lacks("c"), "with too many, nothing is certain");
    }

    #[test]
    fn the_first_changed_files_are_reported_and_the_others_counted() {
        let mut files: Vec<(String, u64)> = (0..3000).rev().map(|number| (format!("{number:04}"), 1)).collect();
        files.extend([(String::new(), 1), (String::new(), 2)]);
        let before = Snapshot::of(&ListedWorkspace(files.clone()), 0).unwrap();
        assert_eq!(before.changes(&ListedWorkspace(files.clone()), 0).unwrap(), (Vec::new(), 0));
        for (path, version) in files.iter_mut().filter(|(path, _)| path.as_str() >= "0500") {
            *version = if path.is_empty() { *version } else { 2 };
        }
        files.extend([("new".to_owned(), 1), (String::new(), 3), (String::new(), 3)]);
        let (reported, left_out) = before.changes(&ListedWorkspace(files), 0).unwrap();
        let paths: Vec<&str> = reported.iter().map(|file| file.path.as_str()).collect();
        assert_eq!((paths.len(), paths[0], paths[999], left_out), (1000, "0500", "1499", 1502));
        assert!(paths.is_sorted());
    }
}
