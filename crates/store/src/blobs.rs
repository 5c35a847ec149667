//! Blobs: contents of files, each named by exactly one row.
//!
//! A blob gets its name only once it is complete and synced. Until a row names it, it is in flight: its name contains the id of the process
//! that owns it, and a sweep removes it if that process has died. Two rows with the same content are two hard links.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, SeekFrom};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aludel_ignore::Ignore;
use rusqlite::Connection;
use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rustix::fs::XattrFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeek, ReadBuf};
use tokio::task::JoinHandle;
use tracing::warn;

use crate::database::all;
use crate::id::hex;
use crate::quota::FILE_COST;
use crate::synced_file::SyncedFile;
use crate::{Error, Reservation, Store, Tenant};

/// The tables that name blobs.
pub(crate) const NAMING_BLOBS: [&str; 4] = ["files", "upload_parts", "container_files", "turn_blobs"];

/// Most files that are synced one by one. For more, syncing the whole file system is faster.
const SYNCED_ONE_BY_ONE: usize = 4;

/// Bytes that are copied and hashed at a time.
const CHUNK: usize = 128 << 10;

/// Bytes that a writer collects before it hands them to its file.
const WRITTEN_AT_ONCE: usize = 512 << 10;

/// The attribute of a blob's file that has its SHA-256, in hexadecimal.
const DIGEST: &str = "user.aludel.sha256";

/// Most bytes that a writer reserves ahead.
const AHEAD: u64 = 1 << 20;

/// The name of a blob, which clients never see.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
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
    room: Reservation,
    committed: bool,
}

impl NewBlob {
    /// Returns the size, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the reserved bytes, which are those that it will count.
    pub(crate) fn reserved(&self) -> u64 {
        self.room.bytes()
    }

    /// Returns the SHA-256 of the content, in hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Returns the name by which it can be read.
    pub fn name(&self) -> &BlobName {
        &self.name
    }

    /// Keeps the blob: a row names it, and counts it, now.
    pub(crate) fn commit(mut self) {
        self.committed = true;
    }
}

impl Drop for NewBlob {
    fn drop(&mut self) {
        if !self.committed {
            std::fs::remove_file(&self.path).ignore("a sweep removes it otherwise");
        }
    }
}

/// Path of a file before it becomes a blob. Dropping it removes the file.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn failed(&self, source: io::Error) -> Error {
        Error::Io { path: self.0.clone(), source }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ignore("it was usually renamed to its blob");
    }
}

/// Content of a blob, from its start. Reading fails once the blob was removed: its bytes count for nobody any more.
#[derive(Debug)]
pub struct BlobReader {
    file: tokio::fs::File,
    position: u64,
    bytes: u64,
}

/// The same for a thread that may block.
#[derive(Debug)]
struct BlockingBlobReader {
    file: File,
    position: u64,
    bytes: u64,
}

/// Goes on by so many bytes, none of which can be missing before the end.
fn advance(position: &mut u64, count: usize, wanted: usize, bytes: u64) -> io::Result<()> {
    if count == 0 && wanted > 0 && *position < bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file was deleted while it was read"));
    }
    *position += count as u64;
    Ok(())
}

impl BlobReader {
    /// Returns the size of the whole blob, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads it whole; fails if it has more than `limit` bytes.
    pub async fn read_whole(self, limit: u64) -> io::Result<Vec<u8>> {
        if self.bytes > limit {
            return Err(io::Error::other(format!(
                "{} bytes are more than the {limit} that are read at once",
                self.bytes
            )));
        }
        let mut content = Vec::new();
        self.take(limit).read_to_end(&mut content).await?;
        Ok(content)
    }

    /// Turns it into a reader that blocks.
    pub async fn into_blocking(self) -> impl Read + io::Seek + Send + 'static {
        BlockingBlobReader { file: self.file.into_std().await, position: self.position, bytes: self.bytes }
    }
}

impl Read for BlockingBlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        advance(&mut self.position, count, buffer.len(), self.bytes)?;
        Ok(count)
    }
}

impl io::Seek for BlockingBlobReader {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.position = self.file.seek(position)?;
        Ok(self.position)
    }
}

impl AsyncRead for BlobReader {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (before, wanted) = (buffer.filled().len(), buffer.remaining());
        ready!(Pin::new(&mut self.file).poll_read(cx, buffer))?;
        let (count, bytes) = (buffer.filled().len() - before, self.bytes);
        Poll::Ready(advance(&mut self.position, count, wanted, bytes))
    }
}

impl AsyncSeek for BlobReader {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.file).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        self.position = ready!(Pin::new(&mut self.file).poll_complete(cx))?;
        Poll::Ready(Ok(self.position))
    }
}

/// A blob that is being written. Dropping it gives up.
#[derive(Debug)]
pub struct BlobWriter {
    store: Store,
    scratch: Scratch,
    progress: WriteProgress,
    /// Bytes that were not handed to the file.
    buffer: Vec<u8>,
    hash: Sha256,
    bytes: u64,
    tenant: Tenant,
    room: Reservation,
}

/// The file of a blob, which is written on another thread while more of its content comes. An empty buffer goes with it.
#[derive(Debug)]
enum WriteProgress {
    Idle(SyncedFile, Vec<u8>),
    Writing(JoinHandle<io::Result<(SyncedFile, Vec<u8>)>>),
    Failed,
}

impl WriteProgress {
    /// Waits for what is being written, and returns the file and the empty buffer. Loses nothing if it is given up.
    async fn idle(&mut self) -> io::Result<(SyncedFile, Vec<u8>)> {
        if let Self::Writing(task) = self {
            let written = task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            *self = Self::Failed;
            return written;
        }
        match std::mem::replace(self, Self::Failed) {
            Self::Idle(file, buffer) => Ok((file, buffer)),
            Self::Writing(_) | Self::Failed => Err(io::Error::other("an earlier write failed")),
        }
    }
}

/// A file that was written whole and is not a blob yet.
#[derive(Debug)]
struct WrittenFile {
    scratch: Scratch,
    /// The file, where it is to be synced on its own.
    file: Option<SyncedFile>,
    bytes: u64,
    sha256: String,
    room: Reservation,
}

impl BlobWriter {
    /// Appends bytes. Fails, and writes nothing, if the tenant has no room for them.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.bytes + bytes.len() as u64;
        if let Some(wanted) = missing(&self.room, written) {
            self.room.add(self.store.reserve(&self.tenant, wanted).await?);
        }
        for bytes in bytes.chunks(WRITTEN_AT_ONCE) {
            self.buffer.extend_from_slice(bytes);
            self.hash.update(bytes);
            if self.buffer.len() >= WRITTEN_AT_ONCE {
                self.begin_write().await?;
            }
        }
        self.bytes = written;
        Ok(())
    }

    /// Returns the number of bytes that were written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Syncs what was written.
    pub async fn finish(self) -> Result<NewBlob, Error> {
        let store = self.store.clone();
        let written = self.close().await?;
        store.run(move |store| store.publish(written)).await
    }

    /// Hands the buffer to the file, once it is idle.
    async fn begin_write(&mut self) -> Result<(), Error> {
        let (mut file, empty) = self.progress.idle().await.map_err(|source| self.scratch.failed(source))?;
        let (mut buffer, store) = (std::mem::replace(&mut self.buffer, empty), self.store.clone());
        self.progress = WriteProgress::Writing(tokio::task::spawn_blocking(move || {
            file.write(&buffer, &store.0.disk)?;
            buffer.clear();
            Ok((file, buffer))
        }));
        Ok(())
    }

    async fn close(mut self) -> Result<WrittenFile, Error> {
        if !self.buffer.is_empty() {
            self.begin_write().await?;
        }
        let (file, _) = self.progress.idle().await.map_err(|source| self.scratch.failed(source))?;
        let Self { store: _, scratch, progress: _, buffer: _, hash, bytes, tenant: _, mut room } = self;
        room.shrink_to(bytes + FILE_COST);
        Ok(WrittenFile { scratch, file: Some(file), bytes, sha256: hex(&hash.finalize()), room })
    }
}

/// Returns the bytes that a blob of this size lacks in its reservation: the minimum, and a larger amount so that not every piece reserves
/// again.
fn missing(room: &Reservation, bytes: u64) -> Option<RangeInclusive<u64>> {
    let least = (bytes + FILE_COST).checked_sub(room.bytes()).filter(|least| *least > 0)?;
    Some(least..=least + bytes.min(AHEAD))
}

/// Files that are written in turn, and become blobs together.
pub(crate) struct FileBatch {
    /// Room that was reserved in advance. More is reserved as the files grow.
    room: Reservation,
    written: Vec<WrittenFile>,
    buffer: Vec<u8>,
}

impl FileBatch {
    pub(crate) fn new(room: Reservation) -> Self {
        Self { room, written: Vec::new(), buffer: vec![0; CHUNK] }
    }

    fn reserve(&mut self, store: &Store, wanted: RangeInclusive<u64>) -> Result<Reservation, Error> {
        if self.room.bytes() >= *wanted.start() {
            return Ok(self.room.split(*wanted.start()));
        }
        store.reserve_now(self.room.tenant(), wanted)
    }

    /// Writes a reader's content. After an error nothing of it is left, and others can still be written.
    pub(crate) fn add(&mut self, store: &Store, mut reader: impl Read) -> Result<(), Error> {
        let mut room = self.reserve(store, FILE_COST..=FILE_COST)?;
        let (scratch, file) = store.new_scratch()?;
        let mut file = SyncedFile::new(file);
        let (mut hash, mut bytes) = (Sha256::new(), 0);
        loop {
            let count = match reader.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::Source(error)),
            };
            bytes += count as u64;
            if let Some(wanted) = missing(&room, bytes) {
                room.add(self.reserve(store, wanted)?);
            }
            let chunk = self.buffer.get(..count).unwrap_or(&self.buffer);
            file.write(chunk, &store.0.disk).map_err(|source| scratch.failed(source))?;
            hash.update(chunk);
        }
        room.shrink_to(bytes + FILE_COST);
        // Many files are not kept open: they are synced together.
        let file = (self.written.len() <= SYNCED_ONE_BY_ONE).then_some(file);
        self.written.push(WrittenFile { scratch, file, bytes, sha256: hex(&hash.finalize()), room });
        Ok(())
    }

    pub(crate) fn finish(self, store: &Store) -> Result<Vec<NewBlob>, Error> {
        store.publish_all(self.written)
    }
}

impl Store {
    /// Begins a blob of a tenant. Room for the `expected` bytes is reserved at once, so that of several blobs that together exceed the
    /// room, the first ones are written whole. Zero stands for an unknown size: then, or without room for all of it, room is reserved as
    /// the blob grows.
    pub async fn new_blob(&self, tenant: &Tenant, expected: u64) -> Result<BlobWriter, Error> {
        let tenant = tenant.clone();
        self.run(move |store| {
            let room = store.reserve_now(&tenant, FILE_COST..=FILE_COST.saturating_add(expected))?;
            let (scratch, file) = store.new_scratch()?;
            Ok(BlobWriter {
                store: store.clone(),
                scratch,
                progress: WriteProgress::Idle(SyncedFile::new(file), Vec::new()),
                buffer: Vec::new(),
                hash: Sha256::new(),
                bytes: 0,
                tenant,
                room,
            })
        })
        .await
    }

    /// Makes a blob of bytes that are there.
    pub async fn write_blob(&self, tenant: &Tenant, bytes: &[u8]) -> Result<NewBlob, Error> {
        let mut blob = self.new_blob(tenant, bytes.len() as u64).await?;
        blob.write(bytes).await?;
        blob.finish().await
    }

    /// Opens a blob.
    pub async fn read_blob(&self, name: &BlobName) -> Result<BlobReader, Error> {
        let path = self.blob_path(name);
        self.run(move |_| {
            let failed = |source| Error::Io { path: path.clone(), source };
            let file = File::open(&path).map_err(failed)?;
            let bytes = file.metadata().map_err(failed)?.len();
            Ok(BlobReader { file: tokio::fs::File::from_std(file), position: 0, bytes })
        })
        .await
    }

    /// Makes blobs of readers' contents, in the same order, with a single sync if they are many. They use the reserved room, and more if
    /// they need it. A failing reader is [`Error::Source`], and nothing is kept.
    pub async fn write_blobs<R: Read + Send + 'static>(
        &self,
        room: Reservation,
        readers: Vec<R>,
    ) -> Result<Vec<NewBlob>, Error> {
        self.run(move |store| {
            let mut writing = FileBatch::new(room);
            readers.into_iter().try_for_each(|reader| writing.add(store, reader))?;
            writing.finish(store)
        })
        .await
    }

    /// Makes a second blob with the same content, without copying it. It counts its full size.
    pub async fn copy_blob(&self, tenant: &Tenant, of: &BlobName) -> Result<NewBlob, Error> {
        let (tenant, of) = (tenant.clone(), of.clone());
        self.run(move |store| store.copy_blob_now(&tenant, &of)).await
    }

    pub(crate) fn copy_blob_now(&self, tenant: &Tenant, of: &BlobName) -> Result<NewBlob, Error> {
        self.0.owner.register()?;
        let from = self.blob_path(of);
        let failed = |source| Error::Io { path: from.clone(), source };
        let mut file = File::open(&from).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let room = self.reserve_now(tenant, bytes + FILE_COST..=bytes + FILE_COST)?;
        let sha256 = match noted_digest(&file) {
            Some(sha256) => sha256,
            None => {
                let mut hash = Sha256::new();
                io::copy(&mut file, &mut hash).map_err(failed)?;
                let sha256 = hex(&hash.finalize());
                note_digest(&from, &sha256);
                sha256
            }
        };
        self.link(&from, sha256, bytes, room)
    }

    /// Gives the file of a blob a second name.
    fn link(&self, from: &Path, sha256: String, bytes: u64, room: Reservation) -> Result<NewBlob, Error> {
        let name = BlobName(self.0.owner.name_in_flight());
        let path = self.blob_path(&name);
        let parent = make_parent(&path)?;
        std::fs::hard_link(from, &path).map_err(|source| Error::Io { path: from.to_path_buf(), source })?;
        let blob = NewBlob { name, path, bytes, sha256, room, committed: false };
        sync_directory(&parent)?;
        Ok(blob)
    }

    fn blob_path(&self, BlobName(name): &BlobName) -> PathBuf {
        path_in(&self.0.blobs, name)
    }

    fn new_scratch(&self) -> Result<(Scratch, File), Error> {
        self.0.owner.register()?;
        let scratch = Scratch(self.0.scratch.join(self.0.owner.name_in_flight()));
        let file = File::create_new(&scratch.0).map_err(|source| scratch.failed(source))?;
        Ok((scratch, file))
    }

    /// Renames written files to their blobs.
    fn publish_all(&self, mut written: Vec<WrittenFile>) -> Result<Vec<NewBlob>, Error> {
        let together = written.len() > SYNCED_ONE_BY_ONE;
        if together {
            for written in &mut written {
                written.file = None;
            }
        }
        let blobs = written.into_iter().map(|written| self.publish(written)).collect::<Result<_, _>>()?;
        if together {
            let directory = &self.0.blobs;
            let synced = File::open(directory).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
            synced.map_err(|source| Error::Io { path: directory.clone(), source })?;
        }
        Ok(blobs)
    }

    /// Renames a written file to its blob. Without a file to sync, the caller syncs everything.
    fn publish(&self, WrittenFile { scratch, file, bytes, sha256, room }: WrittenFile) -> Result<NewBlob, Error> {
        if let Some(file) = &file {
            file.sync(&self.0.disk).map_err(|source| scratch.failed(source))?;
        }
        let name = BlobName(self.0.owner.name_in_flight());
        let path = self.blob_path(&name);
        let parent = make_parent(&path)?;
        note_digest(&scratch.0, &sha256);
        std::fs::rename(&scratch.0, &path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let blob = NewBlob { name, path, bytes, sha256, room, committed: false };
        if file.is_some() {
            sync_directory(&parent)?;
        }
        Ok(blob)
    }

    /// Removes blobs whose rows are gone. Readers find no more of them, unless copies have the same file.
    pub(crate) fn remove_blobs(&self, names: &[BlobName]) {
        for name in names {
            let path = self.blob_path(name);
            let file = File::options().write(true).open(&path);
            let removed = std::fs::remove_file(&path);
            if let Ok(file) = file
                && file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
            {
                file.set_len(0).ignore("it takes no room once its readers are gone");
            }
            if let Err(error) = removed
                && error.kind() != io::ErrorKind::NotFound
            {
                let path = path.display();
                warn!(%path, %error, "a blob without a row cannot be removed; it is tried again when this process has ended");
            }
        }
    }
}

/// Returns the path of a blob in a directory of blobs.
pub(crate) fn path_in(blobs: &Path, name: &str) -> PathBuf {
    // A name begins with its time and ends with random digits.
    let fan = name.get(name.len().saturating_sub(2)..).unwrap_or("00");
    blobs.join(fan).join(name)
}

/// Returns the names of the blobs that rows name.
pub(crate) fn named(database: &Connection) -> Result<HashSet<String>, Error> {
    let mut named = HashSet::new();
    for table in NAMING_BLOBS {
        named.extend(all(database, &format!("SELECT blob FROM {table}"), [], |row| row.get::<_, String>(0))?);
    }
    Ok(named)
}

/// Notes the digest of a blob beside its content, so that copies of it need not be read.
fn note_digest(path: &Path, sha256: &str) {
    let noted = rustix::fs::setxattr(path, DIGEST, sha256.as_bytes(), XattrFlags::empty());
    noted.ignore("some file systems have no room for it");
}

/// Returns the digest of a blob, if it is noted.
fn noted_digest(file: &File) -> Option<String> {
    let mut noted = [0; 65];
    let count = rustix::fs::fgetxattr(file, DIGEST, &mut noted[..]).ok()?;
    let digest = std::str::from_utf8(noted.get(..count)?).ok()?;
    (count == 64 && digest.bytes().all(|digit| digit.is_ascii_hexdigit())).then(|| digest.to_owned())
}

fn make_parent(path: &Path) -> Result<PathBuf, Error> {
    let parent = path.parent().unwrap_or(Path::new("/")).to_path_buf();
    if !parent.exists() {
        crate::make_directory(&parent)?;
        sync_directory(parent.parent().unwrap_or(Path::new("/")))?;
    }
    Ok(parent)
}

/// Syncs a directory, so that a new name in it survives a power cut.
fn sync_directory(path: &Path) -> Result<(), Error> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|source| Error::Io { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_removed_blob_takes_no_room_though_somebody_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let (store, tenant) = (Store::open(directory.path()).await.unwrap(), Tenant::local());
        let blob = store.write_blob(&tenant, &[7; 100_000]).await.unwrap();
        let copied = store.copy_blob(&tenant, &blob.name).await.unwrap();
        assert_eq!(copied.sha256, blob.sha256);
        let digest = noted_digest(&File::open(&copied.path).unwrap());
        assert!(digest.is_none_or(|digest| digest == blob.sha256), "only file systems without attributes have none");
        for (name, length) in [(&blob.name, Ok(100_000)), (&copied.name, Err(io::ErrorKind::UnexpectedEof))] {
            let readers = [store.read_blob(name).await.unwrap(), store.read_blob(name).await.unwrap()];
            let [reader, other] = readers;
            store.remove_blobs(std::slice::from_ref(name));
            let read = reader.read_whole(1 << 20).await;
            assert_eq!(read.map(|bytes| bytes.len()).map_err(|error| error.kind()), length);
            let read = std::io::copy(&mut other.into_blocking().await, &mut io::sink());
            assert_eq!(read.map(|bytes| bytes as usize).map_err(|error| error.kind()), length);
        }
    }

    #[tokio::test]
    async fn a_write_that_fails_in_the_background_fails_the_blob() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).await.unwrap();
        let full =
            || WriteProgress::Idle(SyncedFile::new(File::options().write(true).open("/dev/full").unwrap()), Vec::new());

        let mut blob = store.new_blob(&Tenant::local(), 0).await.unwrap();
        blob.progress = full();
        blob.write(&[0; WRITTEN_AT_ONCE]).await.unwrap();
        let Error::Io { source, .. } = blob.write(&[0; WRITTEN_AT_ONCE]).await.unwrap_err() else {
            panic!("no error of a file")
        };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
        assert!(blob.finish().await.is_err(), "a part of it is missing");

        let mut small = store.new_blob(&Tenant::local(), 0).await.unwrap();
        small.progress = full();
        small.write(b"1").await.unwrap();
        assert!(small.finish().await.is_err());
    }
}
