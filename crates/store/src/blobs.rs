//! Blobs: contents of files, each named by exactly one row.
//!
//! A blob appears under its name only whole and synced. One that no row names, because the process died in between, is removed at the next
//! start. The same content under two rows is two names of one inode.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use crate::database::all;
use crate::id::{fresh, hex};
use crate::{Error, Store, blocking};

/// Of more files than this, each waiting for the disk on its own would take longer than waiting once for everything.
const SYNCED_ONE_BY_ONE: usize = 4;

/// The tables that name blobs.
const OWNERS: [&str; 3] = ["files", "upload_parts", "container_files"];

/// The name of a blob, which clients never see.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlobName(String);

impl ToSql for BlobName {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

impl FromSql for BlobName {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        String::column_result(value).map(Self)
    }
}

/// A blob that no row names yet. Dropping it removes it.
#[derive(Debug)]
pub struct NewBlob {
    name: BlobName,
    path: PathBuf,
    bytes: u64,
    sha256: String,
    kept: bool,
}

impl NewBlob {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The hash of its content, in hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Where it is. It must not be written to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn name(&self) -> &BlobName {
        &self.name
    }

    /// A row names it now.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for NewBlob {
    fn drop(&mut self) {
        if !self.kept {
            // If it stays, the next start removes it.
            let _gone = std::fs::remove_file(&self.path);
        }
    }
}

/// A place for a file that becomes a blob. Dropping it removes what is there.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Usually it was renamed to its blob.
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// A blob that is being written. Dropping it gives up.
#[derive(Debug)]
pub struct BlobWriter {
    store: Store,
    scratch: Scratch,
    file: tokio::fs::File,
    hash: Sha256,
    bytes: u64,
}

impl BlobWriter {
    /// Adds to the end.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        let written = self.file.write_all(bytes).await;
        written.map_err(|source| Error::Io { path: self.scratch.0.clone(), source })
    }

    /// How much was written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Syncs what was written.
    pub async fn finish(mut self) -> Result<NewBlob, Error> {
        let flushed = self.file.flush().await;
        flushed.map_err(|source| Error::Io { path: self.scratch.0.clone(), source })?;
        let Self { store, scratch, file, hash, bytes } = self;
        let file = file.into_std().await;
        blocking(move || store.place(&scratch, Some(&file), bytes, hex(&hash.finalize()))).await
    }
}

impl Store {
    /// A place for a file that is to become a blob.
    pub fn scratch(&self) -> Scratch {
        Scratch(self.0.scratch.join(fresh("", 32)))
    }

    /// Begins a blob.
    pub async fn new_blob(&self) -> Result<BlobWriter, Error> {
        let scratch = self.scratch();
        let file = tokio::fs::File::create_new(scratch.path()).await;
        let file = file.map_err(|source| Error::Io { path: scratch.0.clone(), source })?;
        Ok(BlobWriter { store: self.clone(), scratch, file, hash: Sha256::new(), bytes: 0 })
    }

    /// Makes blobs of what was written, in the same order.
    pub async fn adopt(&self, scratches: Vec<Scratch>) -> Result<Vec<NewBlob>, Error> {
        let store = self.clone();
        blocking(move || {
            let each = scratches.len() <= SYNCED_ONE_BY_ONE;
            let mut blobs = Vec::new();
            for scratch in scratches {
                let failed = |source| Error::Io { path: scratch.0.clone(), source };
                let mut file = File::open(scratch.path()).map_err(failed)?;
                let mut hash = Sha256::new();
                let bytes = io::copy(&mut file, &mut hash).map_err(failed)?;
                let sync = each.then_some(&file);
                blobs.push(store.place(&scratch, sync, bytes, hex(&hash.finalize()))?);
            }
            if !each {
                let directory = &store.0.blobs;
                let synced = File::open(directory).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
                synced.map_err(|source| Error::Io { path: directory.clone(), source })?;
            }
            Ok(blobs)
        })
        .await
    }

    /// Another name for what a blob holds.
    pub async fn copy_blob(&self, of: &BlobName, bytes: u64) -> Result<NewBlob, Error> {
        let (store, of) = (self.clone(), of.clone());
        blocking(move || {
            let from = store.blob_path(&of);
            let failed = |source| Error::Io { path: from.clone(), source };
            let mut hash = Sha256::new();
            io::copy(&mut File::open(&from).map_err(failed)?, &mut hash).map_err(failed)?;
            let name = BlobName(fresh("", 32));
            let path = store.blob_path(&name);
            let parent = make_parent(&path)?;
            std::fs::hard_link(&from, &path).map_err(failed)?;
            sync_directory(&parent)?;
            Ok(NewBlob { name, path, bytes, sha256: hex(&hash.finalize()), kept: false })
        })
        .await
    }

    /// Opens what a blob holds.
    pub async fn open_blob(&self, name: &BlobName) -> Result<tokio::fs::File, Error> {
        let path = self.blob_path(name);
        tokio::fs::File::open(&path).await.map_err(|source| Error::Io { path, source })
    }

    /// Where a blob is. It must not be written to, and is there as long as its row.
    pub fn blob_path(&self, BlobName(name): &BlobName) -> PathBuf {
        // The first digits of a name are its time, the last ones are random.
        let fan = name.get(name.len().saturating_sub(2)..).unwrap_or("00");
        self.0.blobs.join(fan).join(name)
    }

    /// Gives what was written its name. Without a file to sync, the caller syncs everything.
    fn place(&self, scratch: &Scratch, sync: Option<&File>, bytes: u64, sha256: String) -> Result<NewBlob, Error> {
        if let Some(file) = sync {
            file.sync_all().map_err(|source| Error::Io { path: scratch.0.clone(), source })?;
        }
        let name = BlobName(fresh("", 32));
        let path = self.blob_path(&name);
        let parent = make_parent(&path)?;
        std::fs::rename(scratch.path(), &path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let blob = NewBlob { name, path, bytes, sha256, kept: false };
        if sync.is_some() {
            sync_directory(&parent)?;
        }
        Ok(blob)
    }

    /// Removes blobs whose rows are gone.
    pub(crate) fn remove_blobs(&self, names: &[BlobName]) {
        for name in names {
            // If it stays, the next start removes it.
            let _gone = std::fs::remove_file(self.blob_path(name));
        }
    }

    /// Removes what was half-written or lost its row when the process died.
    pub(crate) fn remove_leftovers(&self) -> Result<(), Error> {
        for path in entries(&self.0.scratch)? {
            remove(&path)?;
        }
        let mut named: HashSet<String> = HashSet::new();
        self.0.database.read(None, |database| {
            for table in OWNERS {
                named.extend(all(database, &format!("SELECT blob FROM {table}"), [], |row| row.get::<_, String>(0))?);
            }
            Ok(())
        })?;
        for fan in entries(&self.0.blobs)? {
            for path in entries(&fan)? {
                let name = path.file_name().and_then(|name| name.to_str());
                if !name.is_some_and(|name| named.contains(name)) {
                    remove(&path)?;
                }
            }
        }
        Ok(())
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Io { path: directory.to_path_buf(), source };
    let read = std::fs::read_dir(directory).map_err(failed)?;
    read.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>().map_err(failed)
}

fn remove(path: &Path) -> Result<(), Error> {
    std::fs::remove_file(path).map_err(|source| Error::Io { path: path.to_path_buf(), source })
}

fn make_parent(path: &Path) -> Result<PathBuf, Error> {
    let parent = path.parent().unwrap_or(Path::new("/")).to_path_buf();
    if !parent.exists() {
        crate::make_directory(&parent)?;
        sync_directory(parent.parent().unwrap_or(Path::new("/")))?;
    }
    Ok(parent)
}

/// Makes sure that a new name in a directory is there after a power cut.
fn sync_directory(path: &Path) -> Result<(), Error> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|source| Error::Io { path: path.to_path_buf(), source })
}
