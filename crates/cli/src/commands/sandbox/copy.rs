//! `aludel sandbox cp`: files and directories, in both directions.

use std::io::SeekFrom;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aludel_agent::size;
use aludel_wire::e2b::filesystem::{EntryInfo, FileType};
use aludel_wire::e2b::process::{ProcessConfig, ProcessEvent, StartRequest};
use anyhow::{Context as _, bail};
use clap::Args;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use crate::console;
use crate::exit::{Exit, limit, usage};
use crate::remote::{Remote, RemoteServer};
use crate::terminal;

/// Files and directories that are copied at once.
const MAX_FILES: usize = 100_000;
/// Permission bits to execute, for everybody.
const EXECUTABLE: u32 = 0o111;
/// Permission bits to read, for everybody.
const READABLE: u32 = 0o444;
/// Files that one `chmod` command makes executable.
const AT_ONCE: usize = 100;
/// Bytes of a file that are written, or left out if they are zeros.
const BLOCK: usize = 4096;
/// Levels of directories.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Args)]
pub(super) struct CopyArgs {
    /// The file or directory: a path here, or SANDBOX:PATH
    #[arg(value_name = "FROM")]
    from: String,
    /// The copy: a path here, or SANDBOX:PATH. In a directory that is there, it keeps its name
    #[arg(value_name = "TO")]
    to: String,
}

/// One side of a copy.
enum Side<'a> {
    Here(&'a Path),
    There { sandbox: &'a str, path: &'a str },
}

impl<'a> Side<'a> {
    /// Parses `SANDBOX:PATH` or a path; one with a slash before its first colon is local.
    fn read(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => Self::There { sandbox, path },
            _ => Self::Here(Path::new(text)),
        }
    }
}

pub(super) async fn run(server: &RemoteServer, args: &CopyArgs) -> anyhow::Result<Exit> {
    let mut copy = Copy { copied: 0, room: 0, executable: Vec::new() };
    match (Side::read(&args.from), Side::read(&args.to)) {
        (Side::Here(from), Side::There { sandbox, path }) => {
            let metadata = std::fs::metadata(from);
            let metadata = metadata.map_err(|error| usage(format!("{}: {error}", from.display())))?;
            let sandbox = server.find(sandbox).await?;
            // Without a name, as `.` is, it has that of its directory.
            let whole = from.canonicalize()?;
            let name = from.file_name().or(whole.file_name()).map(|name| name.to_string_lossy().into_owned());
            let path = if path.is_empty() { "." } else { path };
            let into = path.ends_with('/') || is_directory(sandbox.stat(path).await?.as_ref());
            let to = if into { below(path, &name.unwrap_or_default()) } else { path.to_owned() };
            if metadata.is_dir() {
                copy.directory_in(&sandbox, from, &to).await?;
            } else {
                copy.file_in(&sandbox, from, &to).await?;
            }
            copy.make_executable(&sandbox).await?;
        }
        (Side::There { sandbox, path }, Side::Here(to)) => {
            let sandbox = server.find(sandbox).await?;
            let Some(entry) = sandbox.stat(path).await? else {
                return Err(usage(format!("there is no {} in the sandbox", terminal::name(path))));
            };
            let to = if to.is_dir() { to.join(component(&entry.name)?) } else { to.to_path_buf() };
            copy.room = sandbox.disk;
            copy.out(&sandbox, entry, to).await?;
        }
        (Side::Here(_), Side::Here(_)) => {
            return Err(usage("neither of the two is in a sandbox; write SANDBOX:PATH for the one that is"));
        }
        (Side::There { .. }, Side::There { .. }) => {
            return Err(usage("one of the two must be here; copy out of the one sandbox and then into the other"));
        }
    }
    Ok(Exit::Success)
}

fn is_directory(entry: Option<&EntryInfo>) -> bool {
    entry.is_some_and(|entry| entry.r#type == FileType::Directory)
}

fn below(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// The name of a file in a sandbox, if it is safe as a part of a local path.
fn component(name: &str) -> anyhow::Result<&str> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        bail!("the sandbox has a file without a usable name: {}", terminal::excerpt(name, 100));
    }
    Ok(name)
}

/// A copy that goes on.
struct Copy {
    copied: usize,
    /// Bytes that may still be written here. A sandbox has no more than its disk holds, but files with several names or holes.
    room: u64,
    /// Files in the sandbox that are programs here.
    executable: Vec<String>,
}

impl Copy {
    fn count(&mut self, depth: usize) -> anyhow::Result<()> {
        self.copied += 1;
        anyhow::ensure!(self.copied <= MAX_FILES, "there are more than {MAX_FILES} files; copy an archive of them");
        anyhow::ensure!(depth <= MAX_DEPTH, "there are more than {MAX_DEPTH} levels of directories; copy an archive");
        Ok(())
    }

    async fn file_in(&mut self, sandbox: &Remote, from: &Path, to: &str) -> anyhow::Result<()> {
        let file = File::open(from).await.with_context(|| format!("cannot read {}", from.display()))?;
        if file.metadata().await.is_ok_and(|metadata| metadata.mode() & EXECUTABLE != 0) {
            self.executable.push(to.to_owned());
        }
        sandbox.upload(to, file).await.with_context(|| format!("cannot write {}", terminal::name(to)))
    }

    /// Makes programs executable in the sandbox: uploaded files are not.
    async fn make_executable(&mut self, sandbox: &Remote) -> anyhow::Result<()> {
        for paths in self.executable.chunks(AT_ONCE) {
            let words = ["+x", "--"].map(str::to_owned).into_iter().chain(paths.iter().cloned());
            let process = ProcessConfig { cmd: "chmod".to_owned(), args: words.collect(), ..ProcessConfig::default() };
            let mut events = sandbox.start(&StartRequest { process, pty: None, tag: None, stdin: Some(false) }).await?;
            let ended = loop {
                if let ProcessEvent::End(ended) = events.next().await? {
                    break ended;
                }
            };
            anyhow::ensure!(ended.exit_code == 0, "cannot make files executable in the sandbox: {}", ended.status);
        }
        Ok(())
    }

    async fn directory_in(&mut self, sandbox: &Remote, from: &Path, to: &str) -> anyhow::Result<()> {
        let mut left = vec![(from.to_path_buf(), to.to_owned(), 0)];
        while let Some((from, to, depth)) = left.pop() {
            self.count(depth)?;
            sandbox.make_directory(&to).await.with_context(|| format!("cannot make {}", terminal::name(&to)))?;
            let entries = std::fs::read_dir(&from).with_context(|| format!("cannot read {}", from.display()))?;
            for entry in entries {
                let entry = entry.with_context(|| format!("cannot read {}", from.display()))?;
                let (path, kind) = (entry.path(), entry.file_type()?);
                let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                    bail!("{}: its name is no text (UTF-8)", path.display());
                };
                if kind.is_dir() {
                    left.push((path, below(&to, &name), depth + 1));
                } else if kind.is_file() {
                    self.count(depth)?;
                    self.file_in(sandbox, &path, &below(&to, &name)).await?;
                } else {
                    console::warn(&format!("{} is neither a file nor a directory, and left out", path.display()));
                }
            }
        }
        Ok(())
    }

    async fn out(&mut self, sandbox: &Remote, from: EntryInfo, to: PathBuf) -> anyhow::Result<()> {
        let mut left = vec![(from, to, 0)];
        while let Some((entry, to, depth)) = left.pop() {
            self.count(depth)?;
            match entry.r#type {
                // A link to a directory may lead in circles.
                FileType::Directory if entry.symlink_target.is_none() || depth == 0 => {
                    std::fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
                    for inner in sandbox.list(&entry.path).await? {
                        let to = to.join(component(&inner.name)?);
                        left.push((inner, to, depth + 1));
                    }
                }
                FileType::File => self.file_out(sandbox, &entry, &to).await?,
                FileType::Directory | FileType::Symlink | FileType::Unspecified => {
                    let path = terminal::name(&entry.path);
                    console::warn(&format!("{path} is neither a file nor a directory, and left out"));
                }
            }
        }
        Ok(())
    }

    async fn file_out(&mut self, sandbox: &Remote, entry: &EntryInfo, to: &Path) -> anyhow::Result<()> {
        let from = &entry.path;
        let mut content =
            sandbox.download(from).await.with_context(|| format!("cannot read {}", terminal::name(from)))?;
        let file = File::create(to).await.with_context(|| format!("cannot write {}", to.display()))?;
        let takes_holes = file.metadata().await.is_ok_and(|metadata| metadata.is_file());
        let mut file = SparseFile { file, bytes: 0, takes_holes };
        while let Some(chunk) = content.chunk().await.with_context(|| format!("{} broke off", terminal::name(from)))? {
            let written = file.write(&chunk, self.room).await;
            match written.with_context(|| format!("cannot write {}", to.display()))? {
                Some(written) => self.room -= written,
                None => {
                    return Err(limit(format!(
                        "the files are more than the sandbox's disk holds, {}, as with several names of one; copy an archive",
                        size(sandbox.disk)
                    )));
                }
            }
        }
        let mut file = file.end().await.with_context(|| format!("cannot write {}", to.display()))?;
        if entry.mode & EXECUTABLE != 0 {
            let mut permissions = file.metadata().await?.permissions();
            // Executable for everybody who may read it.
            permissions.set_mode(permissions.mode() | (permissions.mode() & READABLE) >> 2);
            file.set_permissions(permissions).await.with_context(|| format!("cannot change {}", to.display()))?;
        }
        file.flush().await.with_context(|| format!("cannot write {}", to.display()))
    }
}

/// A file in which blocks of zeros take no room.
struct SparseFile {
    file: File,
    bytes: u64,
    /// False for a device or a pipe, which gets the zeros.
    takes_holes: bool,
}

impl SparseFile {
    /// Appends bytes, and returns the number of those that take room; `None` if they are more than `room`.
    async fn write(&mut self, bytes: &[u8], room: u64) -> std::io::Result<Option<u64>> {
        let mut written = 0;
        for block in bytes.chunks(BLOCK) {
            if self.takes_holes && block.iter().all(|byte| *byte == 0) {
                self.file.seek(SeekFrom::Current(block.len() as i64)).await?;
            } else {
                written += block.len() as u64;
                if written > room {
                    return Ok(None);
                }
                self.file.write_all(block).await?;
            }
            self.bytes += block.len() as u64;
        }
        Ok(Some(written))
    }

    /// Gives it its full size: it may end with zeros.
    async fn end(mut self) -> std::io::Result<File> {
        self.file.flush().await?;
        if self.takes_holes {
            self.file.set_len(self.bytes).await?;
        }
        Ok(self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_after_a_slash_is_part_of_a_path() {
        let is_there = |text| matches!(Side::read(text), Side::There { .. });
        assert_eq!(
            ["work:a", "i01:/a:b", "./a:b", "/a:b", "a", ":a"].map(is_there),
            [true, true, false, false, false, false]
        );
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert!(component(name).is_err(), "{name:?}");
        }
        assert_eq!(component("a b").unwrap(), "a b");
    }
}
