//! Programs of the host that an operator's template has besides its packages, such as R.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{at, hex, tree};
use crate::Error;

/// Paths that one template may include.
const MAX_PATHS: usize = 32;
/// Directories from which paths may be included: programs and their settings.
const PLACES: [&str; 3] = ["/usr", "/opt", "/etc"];
/// Mode bits of a file, and of a directory, that every user of the host may read.
const FOR_ALL: (u32, u32) = (0o004, 0o005);

/// Returns an error unless these paths can be included.
pub(super) fn check(paths: &[PathBuf]) -> Result<(), Error> {
    let wrong = |path: &Path, why: String| Err(Error::Template(format!("--include {}: {why}", path.display())));
    for path in paths {
        let is_plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
        let is_below = |place: &&str| path.strip_prefix(place).is_ok_and(|rest| !rest.as_os_str().is_empty());
        if !is_plain || !PLACES.iter().any(is_below) {
            return wrong(path, format!("it is not below {}", PLACES.join(", ")));
        }
        if let Err(error) = fs::metadata(path) {
            return wrong(path, format!("{error}; install what it belongs to"));
        }
    }
    match paths.get(MAX_PATHS) {
        Some(path) => wrong(path, format!("a template includes at most {MAX_PATHS} paths")),
        None => Ok(()),
    }
}

/// A SHA-256 of all that is included.
pub(super) fn digest(paths: &[PathBuf]) -> Result<String, Error> {
    let mut hash = Sha256::new();
    visit_all(paths, &mut |path, entry| {
        let name = path.as_os_str().as_encoded_bytes();
        hash.update(name.len().to_le_bytes());
        hash.update(name);
        match entry {
            Entry::Directory => hash.update(b"d"),
            Entry::Link(target) => {
                hash.update(b"l");
                hash.update(target.as_os_str().as_encoded_bytes());
            }
            Entry::File { mode, bytes } => {
                hash.update(if mode & 0o100 == 0 { b"f" } else { b"x" });
                hash.update(bytes.to_le_bytes());
                io::copy(&mut fs::File::open(path).map_err(at(path))?, &mut hash).map_err(at(path))?;
            }
        }
        Ok(())
    })?;
    Ok(hex(hash))
}

/// Copies it to the same paths inside.
pub(super) fn copy(paths: &[PathBuf], root: &Path) -> Result<(), Error> {
    visit_all(paths, &mut |path, entry| {
        let target = inside(root, path);
        // A copied link may lead out of the template, to the host's own files.
        if target.ancestors().skip(1).take_while(|above| *above != root).any(Path::is_symlink) {
            return Err(Error::Template(format!(
                "--include {}: it is below a link; include where that leads",
                path.display()
            )));
        }
        if let Some(directory) = target.parent() {
            fs::create_dir_all(directory).map_err(at(directory))?;
        }
        match entry {
            Entry::Directory => {
                if target.is_symlink() {
                    fs::remove_file(&target).map_err(at(&target))?;
                }
                fs::create_dir_all(&target).map_err(at(&target))
            }
            Entry::Link(_) if target.symlink_metadata().is_ok() => Ok(()),
            Entry::Link(leads) => symlink(leads, &target).map_err(at(&target)),
            Entry::File { .. } => tree::copy_file(path, &target),
        }
    })
}

/// The place of a path of the host inside.
pub(super) fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Something that is included.
enum Entry {
    Directory,
    /// A link to a directory or file that is included too.
    Link(PathBuf),
    /// A file, or a link to one.
    File {
        mode: u32,
        bytes: u64,
    },
}

fn visit_all(paths: &[PathBuf], each: &mut dyn FnMut(&Path, Entry) -> Result<(), Error>) -> Result<(), Error> {
    paths.iter().try_for_each(|path| visit(path, paths, each))
}

/// Visits a path and everything below it, in order. Skips what not every user of the host may read, dangling links and special files.
fn visit(
    path: &Path,
    included: &[PathBuf],
    each: &mut dyn FnMut(&Path, Entry) -> Result<(), Error>,
) -> Result<(), Error> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    let (file, directory) = FOR_ALL;
    if metadata.is_file() && metadata.mode() & file == file {
        // Programs look for their parts beside the target of a link.
        let leads = if path.is_symlink() { path.canonicalize().ok() } else { None };
        let there = leads.filter(|leads| included.iter().any(|path| leads.starts_with(path)));
        return each(path, there.map_or(Entry::File { mode: metadata.mode(), bytes: metadata.len() }, Entry::Link));
    }
    if !metadata.is_dir() || metadata.mode() & directory != directory {
        return Ok(());
    }
    each(path, Entry::Directory)?;
    let mut below: Vec<PathBuf> = tree::entries(path)?.iter().map(fs::DirEntry::path).collect();
    below.sort();
    for path in below {
        match fs::read_link(&path) {
            Ok(target) if path.is_dir() => each(&path, Entry::Link(target))?,
            _ => visit(&path, included, each)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_of_the_host_are_included_and_nothing_that_is_its_own() {
        let check = |path: &str| check(&[path.into()]);
        assert!(check("/usr/bin/env").is_ok() && check("/etc/passwd").is_ok());
        for wrong in
            ["/usr", "/etc/", "/usr/../root", "/", "/root", "/home/x", "/proc/self", "usr/bin", "/usr/./..", "/usrx/y"]
        {
            let error = check(wrong).unwrap_err().to_string();
            assert!(error.contains("is not below /usr, /opt, /etc"), "{wrong}: {error}");
        }
        assert!(check("/usr/no/such").unwrap_err().to_string().contains("install what it belongs to"));
        assert!(super::check(&vec!["/usr/bin/env".into(); MAX_PATHS + 1]).is_err());
    }

    #[test]
    fn what_is_included_is_copied_and_known_by_its_contents() {
        let host = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let program = host.path().join("program");
        fs::create_dir_all(program.join("lib/deep")).unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            let path = program.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write("run", "program", 0o4755);
        write("lib/deep/data", "data", 0o644);
        write("lib/secret", "secret", 0o640);
        symlink("run", program.join("name")).unwrap();
        fs::write(host.path().join("other"), "other").unwrap();
        symlink("../other", program.join("outside")).unwrap();
        symlink("..", program.join("lib/up")).unwrap();
        symlink("nothing", program.join("dangling")).unwrap();
        let paths = [program.clone()];
        copy(&paths, root.path()).unwrap();
        let there = inside(root.path(), &program);
        assert_eq!(fs::read_to_string(there.join("run")).unwrap(), "program");
        assert_eq!(fs::read_link(there.join("name")).unwrap(), program.join("run"));
        assert_eq!(fs::read_to_string(there.join("outside")).unwrap(), "other");
        assert!(!there.join("outside").is_symlink());
        assert_eq!(fs::read_to_string(there.join("lib/deep/data")).unwrap(), "data");
        assert_eq!(fs::read_link(there.join("lib/up")).unwrap(), Path::new(".."));
        for left_out in ["lib/secret", "dangling"] {
            assert!(there.join(left_out).symlink_metadata().is_err(), "{left_out}");
        }
        // The copy must not go through the link, to the host's own file.
        assert!(copy(&[program.join("lib/up/run")], root.path()).unwrap_err().to_string().contains("is below a link"));
        copy(&[program.join("lib/up")], root.path()).unwrap();
        assert!(!there.join("lib/up").is_symlink() && there.join("lib/up/lib/deep/data").is_file());
        let before = digest(&paths).unwrap();
        assert_eq!(before, digest(&paths).unwrap());
        write("lib/secret", "other", 0o640);
        assert_eq!(before, digest(&paths).unwrap());
        write("lib/deep/data", "date", 0o644);
        assert_ne!(before, digest(&paths).unwrap());
    }
}
