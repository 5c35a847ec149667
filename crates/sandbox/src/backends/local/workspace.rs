//! The files of a session, seen from the host.
//!
//! The guest controls every name, link and type in here, so the host walks by descriptor, follows no links, and reads regular files only.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawDir, ResolveFlags, Stat, Uid, fstat, fstatvfs, openat2, statat,
};

use super::slots::Slot;
use super::warden_client::WardenClient;
use crate::Error;

/// How many directories deep the host looks into a workspace.
const MAX_DEPTH: usize = 32;
/// The longest path it reports, bytes.
const MAX_PATH: usize = 1024;
/// The most files one execution reports.
const MAX_REPORTED: usize = 1000;

/// One regular file of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Path relative to the workspace, `/` between parts, never absolute, never with `..`. The guest chose it: it may hold any character.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// MIME type, guessed from the name's ending.
    pub mime: &'static str,
}

/// A file system in memory that holds one session's files. It is mounted where only the warden and the sandbox see it; the host reaches it
/// by descriptor alone. Dropping it removes the files, as does the end of the process.
#[derive(Debug)]
pub struct Workspace {
    root: Arc<OwnedFd>,
    owner: Option<u32>,
    mount: Option<Mount>,
}

/// A workspace at the warden, from before it is asked for. Dropping it removes the workspace, whether it was made already or not.
#[derive(Debug)]
pub(crate) struct Mount {
    id: u64,
    client: Arc<WardenClient>,
    /// The user id that owns the files. `None` once it was handed on to whoever waits for the end.
    slot: Option<Slot>,
    /// The files themselves, so that the warden is not the last to let go of them.
    root: Option<Arc<OwnedFd>>,
}

impl Mount {
    /// A workspace that is to be made.
    pub(super) fn new(client: &Arc<WardenClient>, slot: Slot) -> Self {
        Self { id: client.next_id(), client: Arc::clone(client), slot: Some(slot), root: None }
    }

    /// The number that the workspace has at the warden.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The number of its slot.
    pub(super) fn slot(&self) -> u32 {
        self.slot.as_ref().map_or(0, Slot::number)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.client.close_workspace(self.id, slot, self.root.take());
        }
    }
}

/// What tells whether a file changed: its inode, size, and times of content and of status.
type Fingerprint = (u64, i64, i64, u64, i64, u64);

/// The state of a workspace at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    files: BTreeMap<String, (FileEntry, Fingerprint)>,
    /// Files and directories that cannot be reported: their names are not UTF-8, or their paths too long or too deep.
    unreportable: BTreeSet<Fingerprint>,
    /// How many entries were looked at.
    entries: u64,
}

impl Snapshot {
    /// The files that are new or different since `before`, and how many more there are that are not reported.
    pub(crate) fn changed_since(&self, before: &Self) -> (Vec<FileEntry>, u64) {
        let changed = |(path, (_, print)): &(&String, &(FileEntry, Fingerprint))| {
            before.files.get(*path).is_none_or(|(_, old)| old != print)
        };
        let mut changed = self.files.iter().filter(changed).map(|(_, (entry, _))| entry);
        let reported = changed.by_ref().take(MAX_REPORTED).cloned().collect();
        let left_out = changed.count() + self.unreportable.difference(&before.unreportable).count();
        (reported, left_out as u64)
    }

    fn into_entries(self) -> Vec<FileEntry> {
        self.files.into_values().map(|(entry, _)| entry).collect()
    }
}

impl Workspace {
    /// Takes over an empty workspace of which `root` is the root directory.
    pub(super) fn new(root: OwnedFd, owner: Option<u32>, mut mount: Mount) -> Self {
        let root = Arc::new(root);
        mount.root = Some(Arc::clone(&root));
        Self { root, owner, mount: Some(mount) }
    }

    /// A workspace on a directory of the host, which no sandbox can use.
    #[cfg(fuzzing)]
    pub(crate) fn on(root: OwnedFd) -> Self {
        Self { root: Arc::new(root), owner: None, mount: None }
    }

    /// The workspace at the warden.
    pub(super) fn mount(&self) -> Option<&Mount> {
        self.mount.as_ref()
    }

    /// Bytes in use and in all, and whether there is room for another file.
    pub(crate) fn room(&self) -> Result<(u64, u64, bool), Error> {
        let stat = fstatvfs(&*self.root).map_err(|error| file_error(Path::new("."), &error.to_string()))?;
        let used = stat.f_blocks.saturating_sub(stat.f_bfree);
        Ok((used * stat.f_frsize, stat.f_blocks * stat.f_frsize, stat.f_ffree > 0))
    }

    /// All regular files, by path. Blocks.
    pub fn files(&self) -> Result<Vec<FileEntry>, Error> {
        // No more than there can be: a directory in which names change all the time need not come to an end.
        let stat = fstatvfs(&*self.root).map_err(|error| file_error(Path::new("."), &error.to_string()))?;
        Ok(self.scan(stat.f_files)?.into_entries())
    }

    /// Looks at everything, at most a little more than `max_entries`. Blocks.
    pub(crate) fn scan(&self, max_entries: u64) -> Result<Snapshot, Error> {
        let mut snapshot = Snapshot::default();
        let root = self.open(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.scan_directory(&root, "", 0, max_entries, &mut snapshot);
        Ok(snapshot)
    }

    /// What vanishes or changes underneath is skipped: the guest may be running.
    fn scan_directory(
        &self,
        directory: &OwnedFd,
        prefix: &str,
        depth: usize,
        max_entries: u64,
        snapshot: &mut Snapshot,
    ) {
        let mut buffer = vec![MaybeUninit::<u8>::uninit(); 16 << 10];
        let mut reader = RawDir::new(directory, &mut buffer);
        let mut directories = Vec::new();
        while let Some(Ok(entry)) = reader.next() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            snapshot.entries += 1;
            if snapshot.entries > max_entries {
                return;
            }
            let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            match (FileType::from_raw_mode(stat.st_mode), report_path(prefix, name)) {
                (FileType::RegularFile, Some(path)) => {
                    let entry = FileEntry {
                        mime: mime_of(&path),
                        size: u64::try_from(stat.st_size).unwrap_or(0),
                        path: path.clone(),
                    };
                    snapshot.files.insert(path, (entry, fingerprint(&stat)));
                }
                (FileType::Directory, _) if name == c"__pycache__" => {}
                (FileType::Directory, Some(path)) if depth < MAX_DEPTH => directories.push((name.to_owned(), path)),
                (FileType::RegularFile | FileType::Directory, _) => {
                    snapshot.unreportable.insert(fingerprint(&stat));
                }
                _ => {}
            }
        }
        for (name, path) in directories {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(below) = openat2(directory, &name, flags, Mode::empty(), beneath()) {
                self.scan_directory(&below, &format!("{path}/"), depth + 1, max_entries, snapshot);
            }
        }
    }

    /// Opens a path of the workspace without following any link or leaving it.
    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Error> {
        // Without NONBLOCK, opening a FIFO would wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat2(&*self.root, path, flags, Mode::empty(), beneath())
            .map_err(|error| file_error(path, &open_reason(error)))
    }

    /// Opens a regular file for reading. Blocks.
    pub fn open_file(&self, path: &str) -> Result<(File, u64), Error> {
        let path = Path::new(path);
        let fd = self.open(path, OFlags::RDONLY)?;
        let stat = fstat(&fd).map_err(|error| file_error(path, &error.to_string()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(file_error(path, "not a regular file"));
        }
        Ok((fd.into(), u64::try_from(stat.st_size).unwrap_or(0)))
    }

    /// Reads a regular file of at most `limit` bytes. Blocks.
    pub fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let (file, size) = self.open_file(path)?;
        let too_large = || file_error(Path::new(path), &format!("larger than {limit} bytes"));
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

    /// Copies a host file into the workspace under a relative path, replacing what is there. Blocks.
    pub fn add(&self, name: &str, source: &Path, limit: u64) -> Result<FileEntry, Error> {
        let mut from = File::open(source).map_err(|error| Error::Io { path: source.into(), source: error })?;
        let metadata = from.metadata().map_err(|error| Error::Io { path: source.into(), source: error })?;
        if !metadata.is_file() {
            return Err(Error::File { path: source.display().to_string(), reason: "not a regular file".into() });
        }
        if metadata.len() > limit {
            let reason =
                format!("{} bytes are more than the workspace takes ({limit}); raise sandbox.disk", metadata.len());
            return Err(Error::File { path: source.display().to_string(), reason });
        }
        let path = relative(name)?;
        let failed = |error: rustix::io::Errno| file_error(&path, &open_reason(error));
        let (directory, last) = self.make_parents(&path)?;
        match rustix::fs::unlinkat(&directory, &last, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat2(&directory, &last, flags, Mode::from_raw_mode(0o644), beneath()).map_err(failed)?;
        self.give(&fd).map_err(failed)?;
        let copied = io::copy(&mut from, &mut File::from(fd));
        if copied.is_err() {
            // Half a file is worse than none.
            let _gone = rustix::fs::unlinkat(&directory, &last, AtFlags::empty());
        }
        let size = copied.map_err(|error| file_error(&path, &error.to_string()))?;
        let path = path.to_string_lossy().into_owned();
        Ok(FileEntry { mime: mime_of(&path), size, path })
    }

    /// Removes a regular file; one that is not there is fine. Blocks.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let path = relative(name)?;
        let failed = |error: rustix::io::Errno| file_error(&path, &open_reason(error));
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Whoever took the directory away, or put something else there, took the file away too.
        let Ok(directory) = self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY) else { return Ok(()) };
        match rustix::fs::unlinkat(&directory, path.file_name().unwrap_or_default(), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    fn make_parents(&self, path: &Path) -> Result<(OwnedFd, PathBuf), Error> {
        let mut directory = self.open(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut parts: Vec<&std::ffi::OsStr> = path.iter().collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            let failed = |error: rustix::io::Errno| file_error(path, &open_reason(error));
            let made = match rustix::fs::mkdirat(&directory, part, Mode::from_raw_mode(0o755)) {
                Ok(()) => true,
                Err(rustix::io::Errno::EXIST) => false,
                Err(error) => return Err(failed(error)),
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            directory = openat2(&directory, part, flags, Mode::empty(), beneath()).map_err(failed)?;
            if made {
                self.give(&directory).map_err(failed)?;
            }
        }
        Ok((directory, last.into()))
    }

    /// Makes what the host made in here the guest's.
    fn give(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        match self.owner {
            Some(owner) => rustix::fs::fchown(fd, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner))),
            None => Ok(()),
        }
    }
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

/// A plain relative path, or why not.
fn relative(name: &str) -> Result<PathBuf, Error> {
    let path = Path::new(name);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || name.len() > MAX_PATH || name.contains('\0') || name.ends_with('/') || !plain {
        return Err(file_error(path, "not a plain relative path"));
    }
    Ok(path.into())
}

fn report_path(prefix: &str, name: &CStr) -> Option<String> {
    let name = name.to_str().ok()?;
    (prefix.len() + name.len() <= MAX_PATH).then(|| format!("{prefix}{name}"))
}

fn fingerprint(stat: &Stat) -> Fingerprint {
    (stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec)
}

fn file_error(path: &Path, reason: &str) -> Error {
    Error::File { path: path.display().to_string(), reason: reason.to_owned() }
}

fn open_reason(error: rustix::io::Errno) -> String {
    match error {
        rustix::io::Errno::NOENT => "no such file in the workspace".into(),
        rustix::io::Errno::LOOP => "a symbolic link, which is not followed".into(),
        rustix::io::Errno::XDEV => "outside the workspace".into(),
        other => other.to_string(),
    }
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
