//! The root filesystem around the packages: interpreter, libraries, tools and what every Linux program expects to find.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::at;
use super::host_python::HostPython;
use crate::Error;

/// Directories that are there from the start; the last ones are mount points.
const DIRECTORIES: &[&str] = &[
    "etc/ssl/certs",
    "home",
    "root",
    "sys",
    "usr/bin",
    "usr/lib/aludel",
    "usr/lib64",
    "usr/local",
    "usr/sbin",
    "usr/share",
    "var",
    "dev/shm",
    "mnt/data",
    "proc",
    "run",
    "tmp",
];

/// Links, as name and target. `/home/user` is where some clients look for the workspace.
const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("home/user", "/mnt/data"),
    ("var/tmp", "/tmp"),
];

/// Files with their contents; the devices are mount points.
const FILES: &[(&str, &str)] = &[
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000:sandbox:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    ),
    ("etc/group", "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"),
    ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("etc/hostname", "sandbox\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("etc/resolv.conf", ""),
    ("etc/machine-id", ""),
    ("etc/timezone", "Etc/UTC\n"),
    ("dev/null", ""),
    ("dev/zero", ""),
    ("dev/full", ""),
    ("dev/random", ""),
    ("dev/urandom", ""),
];

/// What programs call. What the host lacks is left out, but for the first.
const TOOLS: &[&str] = &[
    "sh",
    "bash",
    "awk",
    "base64",
    "basename",
    "bzip2",
    "cat",
    "chmod",
    "cmp",
    "comm",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "env",
    "expr",
    "false",
    "file",
    "find",
    "fold",
    "grep",
    "gunzip",
    "gzip",
    "head",
    "hostname",
    "id",
    "install",
    "join",
    "kill",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mktemp",
    "mv",
    "nice",
    "nl",
    "nohup",
    "nproc",
    "od",
    "paste",
    "pgrep",
    "pkill",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setsid",
    "sha1sum",
    "sha256sum",
    "shuf",
    "sleep",
    "sort",
    "split",
    "stat",
    "tac",
    "tail",
    "tar",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "tty",
    "uname",
    "uniq",
    "unxz",
    "unzip",
    "uptime",
    "wc",
    "which",
    "whoami",
    "xargs",
    "xz",
    "yes",
    "zcat",
    "zip",
];

/// Where the host's tools are looked for.
const TOOL_DIRECTORIES: &[&str] = &["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// Parts of the standard library that nobody needs in a sandbox.
const LEFT_OUT: &[&str] = &[
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
];

/// Trees of the host that programs read, copied when they are there.
const SHARED: &[(&str, &str)] = &[
    ("/usr/share/zoneinfo", "usr/share/zoneinfo"),
    ("/etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/ca-certificates.crt"),
    ("/etc/mime.types", "etc/mime.types"),
];

/// Makes everything that needs nothing of the host.
pub(super) fn make_skeleton(staging: &Path) -> Result<(), Error> {
    for directory in DIRECTORIES {
        let path = staging.join(directory);
        fs::create_dir_all(&path).map_err(at(&path))?;
    }
    for (link, target) in LINKS {
        let path = staging.join(link);
        symlink(target, &path).map_err(at(&path))?;
    }
    for (file, text) in FILES {
        let path = staging.join(file);
        fs::write(&path, text).map_err(at(&path))?;
    }
    for (source, target) in SHARED {
        let source = Path::new(source);
        if source.is_dir() {
            copy_tree(source, &staging.join(target), &|_| true)?;
        } else if source.is_file() {
            copy_file(source, &staging.join(target))?;
        }
    }
    Ok(())
}

/// Copies the interpreter to `/usr/bin` and its standard library to `/usr/lib`, where it finds itself by its own search.
pub(super) fn copy_interpreter(python: &HostPython, staging: &Path) -> Result<(), Error> {
    let name = python.name();
    copy_file(&python.program, &staging.join("usr/bin").join(&name))?;
    let wanted = |name: &str| !LEFT_OUT.contains(&name) && !name.starts_with("config-");
    copy_tree(&python.stdlib, &staging.join("usr/lib").join(&name), &wanted)
}

/// Copies the command line tools.
pub(super) fn copy_tools(staging: &Path) -> Result<(), Error> {
    for tool in TOOLS {
        let found =
            TOOL_DIRECTORIES.iter().map(|directory| Path::new(directory).join(tool)).find(|path| path.is_file());
        match found {
            Some(path) => copy_file(&path, &staging.join("usr/bin").join(tool))?,
            None if *tool == "sh" => {
                return Err(Error::Template("this host has no /bin/sh to put into the template".into()));
            }
            None => {}
        }
    }
    Ok(())
}

/// Copies every shared library that something in the template needs, beside the C library, where the loader looks without being told.
pub(super) fn copy_libraries(python: &HostPython, staging: &Path) -> Result<(), Error> {
    let mut programs = vec![python.program.clone()];
    collect_programs(&staging.join("usr"), &mut programs)?;
    let mut needed: BTreeMap<String, PathBuf> = BTreeMap::new();
    for batch in programs.chunks(200) {
        for library in libraries_of(batch)? {
            if let Some(name) = library.file_name().and_then(|name| name.to_str())
                && !library.starts_with(staging)
            {
                needed.entry(name.to_owned()).or_insert(library);
            }
        }
    }
    let libc = needed.get("libc.so.6").and_then(|path| path.parent()).map(Path::to_path_buf).ok_or_else(|| {
        Error::Template("the interpreter is not linked against glibc, which the packages need".into())
    })?;
    // Loaded by the C library itself when a thread is cancelled, so no program names it.
    let unwinder = libc.join("libgcc_s.so.1");
    if unwinder.is_file() {
        needed.entry("libgcc_s.so.1".into()).or_insert(unwinder);
    }
    for (name, source) in needed {
        // The loader is found by its full path, everything else by the loader's search.
        let directory = if name.starts_with("ld-linux") { source.parent().unwrap_or(&libc) } else { &libc };
        let inside = directory.strip_prefix("/usr").or_else(|_| directory.strip_prefix("/")).unwrap_or(directory);
        let target = staging.join("usr").join(inside);
        fs::create_dir_all(&target).map_err(at(&target))?;
        copy_file(&source, &target.join(name))?;
    }
    Ok(())
}

/// The libraries that the loader would give to these files.
fn libraries_of(files: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let output = Command::new("ldd").args(files).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| Error::Template(format!("ldd: {error}; install it: apt-get install libc-bin")))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(library_of_line).collect())
}

/// `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)`, or the loader's line without an arrow.
fn library_of_line(line: &str) -> Option<PathBuf> {
    let line = line.strip_prefix('\t')?;
    let path = line.split_once(" => ").map_or(line, |(_, path)| path);
    let path = path.rsplit_once(" (")?.0;
    path.starts_with('/').then(|| path.into())
}

/// Every file that starts like a program or library.
fn collect_programs(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(directory).map_err(at(directory))?.flatten() {
        let (path, kind) = (entry.path(), entry.file_type().map_err(at(directory))?);
        if kind.is_dir() {
            collect_programs(&path, found)?;
        } else if kind.is_file() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let candidate = name.contains(".so") || path.parent().is_some_and(|parent| parent.ends_with("bin"));
            if candidate && is_elf(&path) {
                found.push(path);
            }
        }
    }
    Ok(())
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    fs::File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut magic)).is_ok()
        && magic == *b"\x7fELF"
}

/// Copies a tree, following links: what a link of the host points to is not there inside. Dangling links are left out.
fn copy_tree(source: &Path, target: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    fs::create_dir_all(target).map_err(at(target))?;
    for entry in fs::read_dir(source).map_err(at(source))?.flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(wanted) {
            continue;
        }
        let Ok(metadata) = fs::metadata(entry.path()) else { continue };
        if metadata.is_dir() {
            copy_tree(&entry.path(), &target.join(&name), wanted)?;
        } else if metadata.is_file() {
            copy_file(&entry.path(), &target.join(&name))?;
        }
    }
    Ok(())
}

fn copy_file(source: &Path, target: &Path) -> Result<(), Error> {
    // One that is there already may be read-only.
    match fs::remove_file(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(target)(error)),
        _ => {}
    }
    fs::copy(source, target).map(drop).map_err(at(target))
}

/// Makes everything readable by every sandbox and writable by none, takes set-id bits away, and returns the size on disk.
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
        for entry in fs::read_dir(path).map_err(at(path))?.flatten() {
            bytes += normalize(&entry.path())?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_lines_are_read() {
        let path = |line: &str| library_of_line(line).map(|path| path.display().to_string());
        assert_eq!(path("\tlibm.so.6 => /lib/x/libm.so.6 (0x00007f)").as_deref(), Some("/lib/x/libm.so.6"));
        assert_eq!(path("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)").as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(path("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(path("\tlibgone.so => not found"), None);
        assert_eq!(path("/some/file:"), None);
    }
}
