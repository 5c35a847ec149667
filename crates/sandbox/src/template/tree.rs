//! Directories: read, copied, made the same for everybody.

use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::at;
use crate::Error;

/// Sets the permissions of a file or directory.
pub(super) fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at(path))
}

/// Lists a directory; all of it or an error.
pub(super) fn entries(directory: &Path) -> Result<Vec<DirEntry>, Error> {
    fs::read_dir(directory).and_then(Iterator::collect).map_err(at(directory))
}

/// The directories in a directory.
pub(super) fn directories(directory: &Path) -> Result<Vec<DirEntry>, Error> {
    let mut found = entries(directory)?;
    found.retain(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(found)
}

/// Copies a tree except the names in `left_out`, following links, since their targets do not exist inside. Dangling links and special files
/// are skipped too.
pub(super) fn copy_tree(source: &Path, target: &Path, left_out: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    fs::create_dir_all(target).map_err(at(target))?;
    for entry in entries(source)? {
        let name = entry.file_name();
        if name.to_str().is_none_or(left_out) {
            continue;
        }
        let Ok(metadata) = fs::metadata(entry.path()) else { continue };
        if metadata.is_dir() {
            copy_tree(&entry.path(), &target.join(&name), left_out)?;
        } else if metadata.is_file() {
            copy_file(&entry.path(), &target.join(&name))?;
        }
    }
    Ok(())
}

/// Copies a file with its contents and mode.
pub(super) fn copy_file(source: &Path, target: &Path) -> Result<(), Error> {
    // An existing file may be read-only.
    match fs::remove_file(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(target)(error)),
        _ => {}
    }
    // Only the file system knows which of the two failed; a full disk is the target's.
    fs::copy(source, target).map(drop).map_err(at(target))
}

/// Returns true if there are only files, directories and links: foreign archives may contain pipes and devices.
pub(super) fn is_plain(path: &Path) -> Result<bool, Error> {
    let kind = fs::symlink_metadata(path).map_err(at(path))?.file_type();
    if !kind.is_dir() {
        return Ok(kind.is_file() || kind.is_symlink());
    }
    for entry in entries(path)? {
        if !is_plain(&entry.path())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes everything readable by every sandbox and writable by none, removes set-id bits, and returns the size on disk.
pub(super) fn normalize(path: &Path) -> Result<u64, Error> {
    let metadata = fs::symlink_metadata(path).map_err(at(path))?;
    let mut bytes = metadata.blocks() * 512;
    if metadata.is_symlink() {
        return Ok(bytes);
    }
    let runnable = metadata.is_dir() || metadata.mode() & 0o100 != 0;
    let mode = if runnable { 0o755 } else { 0o644 };
    if metadata.mode() & 0o7777 != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at(path))?;
    }
    if metadata.is_dir() {
        for entry in entries(path)? {
            bytes += normalize(&entry.path())?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_copied_tree_has_no_links_and_no_special_rights() {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("source"), directory.path().join("target"));
        fs::create_dir_all(source.join("test")).unwrap();
        fs::write(source.join("program"), "x").unwrap();
        fs::set_permissions(source.join("program"), fs::Permissions::from_mode(0o4777)).unwrap();
        symlink("program", source.join("link")).unwrap();
        symlink("/no/such/file", source.join("dangling")).unwrap();
        copy_tree(&source, &target, &|name| name == "test").unwrap();
        assert!(normalize(&target).unwrap() > 0);
        let mut names: Vec<_> = entries(&target).unwrap().iter().map(DirEntry::file_name).collect();
        names.sort();
        assert_eq!(names, ["link", "program"]);
        for name in names {
            let metadata = fs::symlink_metadata(target.join(name)).unwrap();
            assert!(metadata.is_file());
            assert_eq!(metadata.mode() & 0o7777, 0o755);
        }
    }
}
