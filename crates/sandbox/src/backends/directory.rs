//! The files of a session below a directory, seen from the host.
//!
//! The guest controls every name, link and type in it, so the host walks by descriptor, follows no links, and reads regular files only.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aludel_ignore::Ignore;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawDir, ResolveFlags, Stat, Uid, fstat, fstatvfs, openat2, statat,
};

use crate::Error;
use crate::workspace::{
    FULL, FileEntry, Fingerprint, MAX_PATH, SMALL, Workspace, WorkspaceEntry, WorkspaceListing, WorkspaceUsage, copy,
    file_error, mime_of, relative,
};

/// Depth of directories to which the host looks into a workspace.
const MAX_DEPTH: usize = 32;

/// The files below a directory of the host, accessed only through its descriptor.
#[derive(Debug)]
pub(crate) struct Directory {
    root: Arc<OwnedFd>,
    /// The user id that gets the files which the host makes.
    owner: Option<u32>,
}

impl Directory {
    /// The files below this directory. Files that the host makes get the owner `owner`, or the host's own user.
    pub(crate) fn new(root: Arc<OwnedFd>, owner: Option<u32>) -> Self {
        Self { root, owner }
    }

    /// Skips files that vanish or change during the scan: the guest may be running.
    fn scan_directory(
        &self,
        directory: &OwnedFd,
        prefix: &str,
        depth: usize,
        entries_left: &mut u64,
        visit: &mut dyn FnMut(WorkspaceEntry),
    ) {
        let mut buffer = vec![MaybeUninit::<u8>::uninit(); 16 << 10];
        let mut reader = RawDir::new(directory, &mut buffer);
        let mut directories = Vec::new();
        while let Some(entry) = reader.next() {
            let Ok(entry) = entry else {
                visit(WorkspaceEntry::Unseen(prefix.to_owned()));
                break;
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let Some(left) = entries_left.checked_sub(1) else {
                visit(WorkspaceEntry::Unseen(String::new()));
                return;
            };
            *entries_left = left;
            let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(error) => {
                    if !has_vanished(error) {
                        visit(WorkspaceEntry::Unseen(prefix.to_owned()));
                    }
                    continue;
                }
            };
            match (FileType::from_raw_mode(stat.st_mode), report_path(prefix, name)) {
                (FileType::RegularFile, Some(path)) => {
                    let entry =
                        FileEntry { mime: mime_of(&path), size: u64::try_from(stat.st_size).unwrap_or(0), path };
                    visit(WorkspaceEntry::File(entry, fingerprint(&stat)));
                }
                (FileType::Directory, _) if name == c"__pycache__" => {}
                (FileType::Directory, Some(path)) if depth < MAX_DEPTH => directories.push((name.to_owned(), path)),
                (FileType::RegularFile | FileType::Directory, _) => {
                    visit(WorkspaceEntry::Unreportable(fingerprint(&stat)));
                }
                _ => {}
            }
        }
        for (name, path) in directories {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let path = format!("{path}/");
            match openat2(directory, &name, flags, Mode::empty(), beneath()) {
                Ok(below) => self.scan_directory(&below, &path, depth + 1, entries_left, visit),
                Err(error) if has_vanished(error) => {}
                Err(_) => visit(WorkspaceEntry::Unseen(path)),
            }
        }
    }

    /// Opens a path of the workspace without following any link or leaving it.
    fn open_at(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Error> {
        // Without NONBLOCK, opening a FIFO would wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat2(&*self.root, path, flags, Mode::empty(), beneath())
            .map_err(|error| file_error(path, &open_reason(error)))
    }

    fn make_parents(&self, path: &Path) -> Result<(OwnedFd, PathBuf), Error> {
        let mut directory = self.open_at(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
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

impl Workspace for Directory {
    fn listing(&self) -> Result<WorkspaceListing, Error> {
        // A bound, because a scan need not end while names change all the time.
        let stat = fstatvfs(&*self.root).map_err(|error| file_error(Path::new("."), &error.to_string()))?;
        WorkspaceListing::of(self, stat.f_files)
    }

    fn open(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
        let path = Path::new(path);
        let fd = self.open_at(path, OFlags::RDONLY)?;
        let stat = fstat(&fd).map_err(|error| file_error(path, &error.to_string()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(file_error(path, "not a regular file"));
        }
        Ok((Box::new(File::from(fd)), u64::try_from(stat.st_size).unwrap_or(0)))
    }

    fn write(&self, name: &str, source: &mut dyn Read, limit: u64) -> Result<FileEntry, Error> {
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
        let copied = copy(source, &mut File::from(fd), limit);
        if copied.is_err() {
            // A partial file is removed.
            rustix::fs::unlinkat(&directory, &last, AtFlags::empty())
                .ignore("the error of the copy is the one to report");
        }
        let size = copied.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => file_error(&path, FULL),
            _ => file_error(&path, &error.to_string()),
        })?;
        let path = path.to_string_lossy().into_owned();
        Ok(FileEntry { mime: mime_of(&path), size, path })
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let path = relative(name)?;
        let failed = |error: rustix::io::Errno| file_error(&path, &open_reason(error));
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // If the directory was removed or replaced, the file is gone too.
        let Ok(directory) = self.open_at(parent, OFlags::RDONLY | OFlags::DIRECTORY) else { return Ok(()) };
        match rustix::fs::unlinkat(&directory, path.file_name().unwrap_or_default(), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    fn usage(&self) -> Result<WorkspaceUsage, Error> {
        let stat = fstatvfs(&*self.root).map_err(|error| file_error(Path::new("."), &error.to_string()))?;
        let used = stat.f_blocks.saturating_sub(stat.f_bfree);
        let (used, limit) = (used * stat.f_frsize, stat.f_blocks * stat.f_frsize);
        Ok(WorkspaceUsage { used, limit, takes_files: stat.f_ffree > 0 })
    }

    fn is_small(&self) -> bool {
        fstatvfs(&*self.root).is_ok_and(|stat| stat.f_files.saturating_sub(stat.f_ffree) <= SMALL)
    }

    fn walk(&self, mut most: u64, visit: &mut dyn FnMut(WorkspaceEntry)) -> Result<(), Error> {
        let root = self.open_at(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.scan_directory(&root, "", 0, &mut most, visit);
        Ok(())
    }
}

/// Returns true for the error of a name that is gone, or no directory any more.
fn has_vanished(error: rustix::io::Errno) -> bool {
    matches!(error, rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP)
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

fn report_path(prefix: &str, name: &CStr) -> Option<String> {
    let name = name.to_str().ok()?;
    (prefix.len() + name.len() <= MAX_PATH).then(|| format!("{prefix}{name}"))
}

fn fingerprint(stat: &Stat) -> Fingerprint {
    let signed = [stat.st_size, stat.st_mtime, stat.st_ctime].map(i64::cast_unsigned);
    let [size, modified, changed] = signed;
    [stat.st_ino, size, modified, stat.st_mtime_nsec, changed, stat.st_ctime_nsec]
}

fn open_reason(error: rustix::io::Errno) -> String {
    match error {
        rustix::io::Errno::NOENT => "no such file in the workspace".into(),
        rustix::io::Errno::LOOP => "a symbolic link, which is not followed".into(),
        rustix::io::Errno::NOSPC => FULL.into(),
        rustix::io::Errno::XDEV => "outside the workspace".into(),
        other => other.to_string(),
    }
}
