//! The root filesystem around the packages: the interpreter, and files that every Linux program expects.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::site::BuildSite;
use super::{at, tree};
use crate::Error;

/// Directories that are there from the start; the last ones are mount points.
const DIRECTORIES: &[&str] = &[
    "etc/ssl/certs",
    "home",
    "root",
    "sys",
    "usr/bin",
    "usr/lib/aludel",
    "usr/lib/ssl",
    "usr/lib64",
    "usr/local",
    "usr/sbin",
    "usr/share/git-core/templates",
    "var",
    "dev/shm",
    "mnt/data",
    "proc",
    "run",
    "tmp",
];

/// Links, as name and target. Some clients expect the workspace at `/home/user`.
const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("etc/localtime", "/usr/share/zoneinfo/Etc/UTC"),
    // OpenSSL's paths, which depend on its build.
    ("etc/ssl/cert.pem", "certs/ca-certificates.crt"),
    ("usr/lib/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt"),
    ("home/user", "/mnt/data"),
    ("var/tmp", "/tmp"),
];

/// Files with their contents; the devices are mount points.
const FILES: &[(&str, &str)] = &[
    ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("etc/hostname", "sandbox\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("etc/resolv.conf", ""),
    ("etc/machine-id", ""),
    ("etc/timezone", "Etc/UTC\n"),
    ("dev/null", ""),
    ("dev/zero", ""),
    ("dev/full", ""),
    ("dev/random", ""),
    ("dev/urandom", ""),
];

/// The ids of the user of the first sandboxes, each of which has one of its own.
const USERS: std::ops::Range<u32> = 1000..3000;

/// Names of users.
fn users() -> String {
    let own = USERS.map(|id| format!("sandbox:x:{id}:{id}:sandbox:/tmp:/bin/sh\n")).collect::<String>();
    format!("root:x:0:0:root:/root:/bin/sh\n{own}nobody:x:65534:65534:nobody:/:/bin/false\n")
}

/// Names of groups.
fn groups() -> String {
    let own = USERS.map(|id| format!("sandbox:x:{id}:\n")).collect::<String>();
    format!("root:x:0:\n{own}nogroup:x:65534:\n")
}

/// Trees and files of the host that programs read, copied if they exist.
const SHARED: &[(&str, &str)] = &[
    ("/usr/share/zoneinfo", "usr/share/zoneinfo"),
    ("/usr/lib/locale/C.utf8", "usr/lib/locale/C.utf8"),
    ("/etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/ca-certificates.crt"),
    ("/etc/mime.types", "etc/mime.types"),
    ("/etc/os-release", "etc/os-release"),
    // The database of the tool `file`.
    ("/usr/share/misc/magic.mgc", "usr/share/misc/magic.mgc"),
];

/// Common terminal types, and the directories of their descriptions, each in a subdirectory named by its first letter.
const TERMINALS: &[&str] = &[
    "ansi",
    "dumb",
    "linux",
    "screen",
    "screen-256color",
    "tmux",
    "tmux-256color",
    "vt100",
    "vt220",
    "xterm",
    "xterm-256color",
];
const TERMINFO: &[&str] = &["/usr/lib/terminfo", "/lib/terminfo", "/usr/share/terminfo"];

/// Copies of the time zones, without and with leap seconds.
const REPEATED_ZONES: &[&str] = &["posix", "right"];

/// Parts of the standard library without use in a sandbox, which has no screen.
const LEFT_OUT: &[&str] = &[
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "test",
    "tests",
    "tkinter",
    "turtle.py",
    "turtledemo",
];

/// Makes everything that needs nothing but files of the host.
pub(super) fn make(root: &Path) -> Result<(), Error> {
    for directory in DIRECTORIES {
        let path = root.join(directory);
        fs::create_dir_all(&path).map_err(at(&path))?;
    }
    for (link, target) in LINKS {
        let path = root.join(link);
        symlink(target, &path).map_err(at(&path))?;
    }
    let names = [("etc/passwd", users()), ("etc/group", groups())];
    for (file, text) in
        FILES.iter().map(|(file, text)| (file, *text)).chain(names.iter().map(|(file, text)| (file, &**text)))
    {
        let path = root.join(file);
        fs::write(&path, text).map_err(at(&path))?;
    }
    for (source, target) in SHARED {
        let (source, target) = (Path::new(source), root.join(target));
        if source.is_dir() {
            tree::copy_tree(source, &target, &|name| REPEATED_ZONES.contains(&name))?;
        } else if source.is_file() {
            let directory = target.parent().unwrap_or(root);
            fs::create_dir_all(directory).map_err(at(directory))?;
            tree::copy_file(source, &target)?;
        }
    }
    copy_terminals(root)
}

/// Copies terminal descriptions to the directory that programs of every C library search.
fn copy_terminals(root: &Path) -> Result<(), Error> {
    for name in TERMINALS {
        let file = Path::new(name.get(..1).unwrap_or_default()).join(name);
        let source = TERMINFO.iter().map(|directory| Path::new(directory).join(&file)).find(|path| path.is_file());
        let Some(source) = source else { continue };
        let target = root.join("usr/share/terminfo").join(&file);
        let directory = target.parent().unwrap_or(root);
        fs::create_dir_all(directory).map_err(at(directory))?;
        tree::copy_file(&source, &target)?;
    }
    Ok(())
}

/// Copies the interpreter and its standard library to the place where it finds itself.
pub(super) fn copy_interpreter(site: &BuildSite<'_>) -> Result<(), Error> {
    let python = site.python;
    tree::copy_file(&python.program, &site.root.join("usr/bin").join(python.name()))?;
    let left_out = |name: &str| {
        // `config-…` is for embedding the interpreter; the other is tkinter's C module, which needs a dozen libraries.
        LEFT_OUT.contains(&name) || name.starts_with("config-") || name.starts_with("_tkinter.")
    };
    tree::copy_tree(&python.stdlib, &site.stdlib(), &left_out)
}
