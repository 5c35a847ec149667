//! Command line tools, copied from the host.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::{at, tree};
use crate::Error;

/// Tools that scripts take for granted. A template can only be made on a host that has them.
const ESSENTIAL: &[&str] = &[
    "sh", "cat", "chmod", "cp", "cut", "date", "env", "head", "id", "ls", "mkdir", "mv", "rm", "sleep", "sort", "tail",
    "touch", "tr", "uname", "wc",
];

/// Other tools that programs call. Those that the host lacks are skipped.
const OPTIONAL: &[&str] = &[
    "awk",
    "base64",
    "basename",
    "bash",
    "bc",
    "bzip2",
    "chown",
    "cmp",
    "comm",
    "curl",
    "dd",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "expr",
    "false",
    "fgrep",
    "file",
    "find",
    "fold",
    "getent",
    "git",
    "git-daemon",
    "git-receive-pack",
    "git-upload-pack",
    "grep",
    "gunzip",
    "gzip",
    "hostname",
    "install",
    "join",
    "jq",
    "kill",
    "less",
    "ln",
    "make",
    "md5sum",
    "mkfifo",
    "mktemp",
    "nice",
    "nl",
    "nohup",
    "nproc",
    "od",
    "paste",
    "patch",
    "pgrep",
    "pkill",
    "printenv",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "rev",
    "rmdir",
    "sed",
    "seq",
    "setsid",
    "sha1sum",
    "sha256sum",
    "shuf",
    "split",
    "stat",
    "stty",
    "tac",
    "tar",
    "tee",
    "test",
    "timeout",
    "tput",
    "tree",
    "true",
    "truncate",
    "tty",
    "uniq",
    "unxz",
    "unzip",
    "which",
    "whoami",
    "xargs",
    "xxd",
    "xz",
    "yes",
    "zcat",
    "zip",
];

/// Directories of the host's tools, including git's own, which git also searches on the path.
const DIRECTORIES: &[&str] = &["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/lib/git-core", "/usr/libexec/git-core"];

/// Copies the tools.
pub(super) fn copy(root: &Path) -> Result<(), Error> {
    // A program may have many names, up to a hundred on some hosts; it is copied once.
    let mut copied: BTreeMap<(u64, u64), &str> = BTreeMap::new();
    for tool in ESSENTIAL.iter().chain(OPTIONAL) {
        let Some(source) = find(tool) else {
            if ESSENTIAL.contains(tool) {
                return Err(Error::Template(format!(
                    "this host has no `{tool}` to put into the template; install it: apt-get install coreutils dash"
                )));
            }
            continue;
        };
        let metadata = fs::metadata(&source).map_err(at(&source))?;
        let target = root.join("usr/bin").join(tool);
        match copied.get(&(metadata.dev(), metadata.ino())) {
            Some(first) => symlink(first, &target).map_err(at(&target))?,
            None => tree::copy_file(&source, &target)?,
        }
        copied.entry((metadata.dev(), metadata.ino())).or_insert(tool);
    }
    Ok(())
}

fn find(tool: &str) -> Option<PathBuf> {
    DIRECTORIES.iter().map(|directory| Path::new(directory).join(tool)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_copied_once_and_named_once() {
        let mut names: Vec<_> = ESSENTIAL.iter().chain(OPTIONAL).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);

        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        copy(root.path()).unwrap();
        for tool in ESSENTIAL {
            assert!(root.path().join("usr/bin").join(tool).is_file(), "{tool}");
        }
        for entry in tree::entries(&root.path().join("usr/bin")).unwrap() {
            if let Ok(target) = fs::read_link(entry.path()) {
                assert_eq!(target.components().count(), 1, "{}", target.display());
            }
        }
    }
}
