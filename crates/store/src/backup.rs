//! Copies of the whole state, made while it is in use.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use aludel_ignore::Ignore;
use rusqlite::Connection;

use crate::blobs::{named, path_in};
use crate::{Error, Store, make_directory};

/// Attempts to copy the database. Another one is necessary if blobs were deleted meanwhile; most blobs are copied by then.
const ATTEMPTS: usize = 20;
/// End of the name of a directory that is not whole yet.
const PARTIAL: &str = ".partial";

/// Fails if there is no state in the directory, only what a broken-off backup to it has left.
pub(crate) fn check_whole(directory: &Path) -> Result<(), Error> {
    let partial = partial(directory);
    if !directory.exists() && partial.exists() { Err(Error::Partial(partial)) } else { Ok(()) }
}

fn partial(directory: &Path) -> PathBuf {
    let mut path = directory.as_os_str().to_owned();
    path.push(PARTIAL);
    PathBuf::from(path)
}

/// A copy that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Number of blobs.
    pub blobs: usize,
    /// Bytes of the database and of the blobs.
    pub bytes: u64,
    /// True if the blobs are hard links, because the copy is in the same file system: only the database took room.
    pub is_linked: bool,
    /// Blobs that the state names and that are gone, so that the copy has none of them: a disk or somebody else has lost them.
    pub lost: Vec<PathBuf>,
}

impl Store {
    /// Copies a consistent state to a directory that must not exist, while others read and write. The directory gets its name when
    /// everything has reached the disk; until then, and after an error, there may be one whose name ends in `.partial`, which the next call
    /// replaces.
    pub async fn back_up(&self, into: &Path) -> Result<Backup, Error> {
        let into = into.to_path_buf();
        self.run(move |store| store.back_up_now(&into)).await
    }

    fn back_up_now(&self, into: &Path) -> Result<Backup, Error> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| Error::Io { path, source }
        };
        if into.symlink_metadata().is_ok() {
            return Err(failed(into)(io::ErrorKind::AlreadyExists.into()));
        }
        let state = self.0.blobs.parent().unwrap_or(&self.0.blobs);
        let state = state.canonicalize().map_err(failed(state))?;
        let whole = std::path::absolute(into).map_err(failed(into))?;
        let there = whole.ancestors().find_map(|path| path.canonicalize().ok());
        if there.is_some_and(|there| there.starts_with(&state)) {
            return Err(failed(into)(io::Error::other("a copy cannot be inside of what it is of")));
        }
        let partial = partial(into);
        if partial.symlink_metadata().is_ok() {
            std::fs::remove_dir_all(&partial).map_err(failed(&partial))?;
        }
        let blobs = partial.join("blobs");
        make_directory(&blobs)?;
        let database = partial.join("aludel.db");
        let mut copied = BlobCopies::default();
        let (named, lost) = self.copy_all(&database, &blobs, &mut copied)?;
        for name in copied.names.difference(&named) {
            let path = path_in(&blobs, name);
            copied.bytes -= path.metadata().map_err(failed(&path))?.len();
            std::fs::remove_file(&path).map_err(failed(&path))?;
        }
        let bytes = copied.bytes + database.metadata().map_err(failed(&database))?.len();
        let synced = File::open(&partial).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
        synced.map_err(failed(&partial))?;
        std::fs::rename(&partial, into).map_err(failed(into))?;
        let parent = into.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|directory| directory.sync_all()).map_err(failed(parent))?;
        let lost = lost.iter().map(|name| path_in(&self.0.blobs, name)).collect();
        Ok(Backup { blobs: copied.names.intersection(&named).count(), bytes, is_linked: !copied.is_copied, lost })
    }

    /// Copies the database and all blobs that the copy names. Returns their names, and those of the blobs that are gone.
    fn copy_all(
        &self,
        database: &Path,
        into: &Path,
        copied: &mut BlobCopies,
    ) -> Result<(HashSet<String>, HashSet<String>), Error> {
        let mut missing = HashSet::new();
        for _ in 0..ATTEMPTS {
            match std::fs::remove_file(database) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::Io { path: database.to_path_buf(), source });
                }
                _ => {}
            }
            self.0.database.copy_to(database)?;
            let named = named(&Connection::open(database)?)?;
            let missing_before = std::mem::take(&mut missing);
            for name in &named {
                if !copied.names.contains(name) && !copied.take(&self.0.blobs, into, name)? {
                    missing.insert(name.clone());
                }
            }
            // One that is named again after it was missing was not deleted with its row.
            if missing.is_subset(&missing_before) {
                return Ok((named, missing));
            }
        }
        let source = io::Error::other("files were deleted faster than they could be copied; try again");
        Err(Error::Io { path: into.to_path_buf(), source })
    }
}

/// Blobs that are in the copy.
#[derive(Debug, Default)]
struct BlobCopies {
    names: HashSet<String>,
    bytes: u64,
    /// True if they could not be linked.
    is_copied: bool,
}

impl BlobCopies {
    /// Takes a blob; false if it is not there any more.
    fn take(&mut self, from: &Path, into: &Path, name: &str) -> Result<bool, Error> {
        let (from, to) = (path_in(from, name), path_in(into, name));
        if let Some(fan) = to.parent() {
            make_directory(fan)?;
        }
        let linked =
            if self.is_copied { Err(io::ErrorKind::CrossesDevices.into()) } else { std::fs::hard_link(&from, &to) };
        let taken = match linked {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.is_copied = true;
                // One that is gone now may have been emptied while it was copied.
                std::fs::copy(&from, &to).and_then(|_| from.symlink_metadata()).map(drop)
            }
            linked => linked,
        };
        match taken {
            Ok(()) => {
                self.bytes += to.metadata().map_err(|source| Error::Io { path: to, source })?.len();
                self.names.insert(name.to_owned());
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::remove_file(&to).ignore("it is not there, or no row names it");
                Ok(false)
            }
            Err(source) => Err(Error::Io { path: to, source }),
        }
    }
}
