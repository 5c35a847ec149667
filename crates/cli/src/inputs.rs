//! The files that a person hands over: `--file PATH`.

use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use aludel_agent::size;
use aludel_engine::Session;
use aludel_engine::sessions::SessionSandbox;
use aludel_sandbox::mime_of;
use aludel_store::Store;
use anyhow::Context;

use crate::console;
use crate::exit::{limit, usage};

/// Most input files of one command.
const MAX_FILES: usize = 10_000;
/// Depth of directories below a given one.
const MAX_DEPTH: usize = 32;
/// The workspace, as programs name it.
const WORKSPACE: &str = "/mnt/data/";

/// A file, with the name that it gets in the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputFile {
    name: String,
    path: PathBuf,
}

/// Checks the files before anything is started. Each is `PATH` or `PATH:NAME`; a directory stands for all its files except hidden ones and
/// compiled Python.
pub(crate) fn check(given: &[PathBuf]) -> anyhow::Result<Vec<InputFile>> {
    let mut inputs = Inputs::default();
    for given in given {
        let (path, name) = named(given);
        let shown = given.display();
        inputs.add(&path, name, &format!("--file {shown}"))?;
    }
    Ok(inputs.0)
}

/// Files, no two of which have the same name.
#[derive(Debug, Default)]
pub(crate) struct Inputs(pub(crate) Vec<InputFile>);

impl Inputs {
    /// Adds a file, or the files of a directory. `name` replaces its own name. `flag` is the user's text.
    pub(crate) fn add(&mut self, path: &Path, name: Option<&str>, flag: &str) -> anyhow::Result<()> {
        let metadata = std::fs::metadata(path).map_err(|error| usage(format!("{flag}: {error}")))?;
        let own = path.file_name().map(|name| name.to_str().ok_or_else(|| unnamed(flag))).transpose()?;
        let name = match name {
            // As in `cp`: into this directory.
            Some(directory) if directory.ends_with('/') => format!("{directory}{}", own.unwrap_or_default()),
            Some(name) => name.to_owned(),
            // `.` and `..` stand for their contents.
            None => own.unwrap_or_default().to_owned(),
        };
        let name =
            plain(&name).ok_or_else(|| usage(format!("{flag}: {name} does not name a place in the workspace")))?;
        if metadata.is_dir() {
            let hidden = self.add_directory(path, &name, 0, flag)?;
            if hidden > 0 {
                let left_out = if hidden == 1 { "1 hidden entry is" } else { &format!("{hidden} hidden entries are") };
                console::status(&format!("{flag}: {left_out} left out; name what is needed, such as {flag}/.git"));
            }
            return Ok(());
        }
        if !metadata.is_file() {
            return Err(usage(format!("{flag}: not a regular file or directory")));
        }
        if name.is_empty() {
            return Err(unnamed(flag));
        }
        self.push(InputFile { name, path: path.to_path_buf() }, flag)
    }

    /// Adds a file, unless the same one was added. Fails if another file has its name.
    pub(crate) fn push(&mut self, input: InputFile, flag: &str) -> anyhow::Result<()> {
        if let Some(other) = self.0.iter().find(|other| other.name == input.name) {
            if other.is_same(&input) {
                return Ok(());
            }
            let other = other.path.display();
            return Err(usage(format!("{flag}: {other} has the same name; give it another by --file PATH:NAME")));
        }
        if self.0.len() == MAX_FILES {
            return Err(usage(format!("{flag}: more than {MAX_FILES} files; hand over an archive of them")));
        }
        self.0.push(input);
        Ok(())
    }

    /// Adds the files of a directory. Returns the number of hidden entries that are left out.
    fn add_directory(&mut self, path: &Path, prefix: &str, depth: usize, flag: &str) -> anyhow::Result<usize> {
        if depth == MAX_DEPTH {
            return Err(usage(format!("{flag}: it is more than {MAX_DEPTH} directories deep")));
        }
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut entries = entries.map_err(|error| usage(format!("{flag}: {}: {error}", path.display())))?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        let mut hidden = 0;
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_str().ok_or_else(|| unnamed(&format!("{flag}: {}", path.display())))?;
            if name.starts_with('.') || name == "__pycache__" {
                hidden += usize::from(name != "__pycache__");
                continue;
            }
            let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            // A link to a file counts as a file; one to a directory may lead back.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => hidden += self.add_directory(&path, &name, depth + 1, flag)?,
                Ok(_) if path.is_file() => self.push(InputFile { name, path }, flag)?,
                _ => {}
            }
        }
        Ok(hidden)
    }
}

/// Splits off a name in the workspace, unless there is a file of this full name.
fn named(given: &Path) -> (PathBuf, Option<&str>) {
    match given.to_str().and_then(|text| text.rsplit_once(':')) {
        Some((path, name)) if !path.is_empty() && !name.is_empty() && given.symlink_metadata().is_err() => {
            (PathBuf::from(path), Some(name))
        }
        _ => (given.to_path_buf(), None),
    }
}

/// Returns a name in the workspace as a plain relative path, empty for the workspace itself.
fn plain(name: &str) -> Option<String> {
    let name = if format!("{name}/") == WORKSPACE { "" } else { name.strip_prefix(WORKSPACE).unwrap_or(name) };
    let mut parts = Vec::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

fn unnamed(flag: &str) -> anyhow::Error {
    usage(format!("{flag}: its name is not Unicode; give it another by --file PATH:NAME"))
}

/// Fails if the files are more than a sandbox's disk holds.
pub(crate) fn require_room(inputs: &[InputFile], disk: u64) -> anyhow::Result<()> {
    let mut all = 0_u64;
    for input in inputs {
        // One that cannot be read is reported when it is opened.
        let bytes = std::fs::metadata(&input.path).map_or(0, |metadata| metadata.len());
        all = all.saturating_add(bytes);
        if all > disk {
            let before = if all > bytes {
                format!(", with the {} of the files before it", size(all - bytes))
            } else {
                String::new()
            };
            return Err(limit(format!(
                "{} has {}{before}, and the sandbox's disk holds {}. Give it more with --disk SIZE, and --memory SIZE if that is less",
                input.path.display(),
                size(bytes),
                size(disk)
            )));
        }
    }
    Ok(())
}

/// Copies the files into the workspace.
pub(crate) async fn add(session: &SessionSandbox, inputs: &[InputFile]) -> anyhow::Result<()> {
    for input in inputs {
        let added = async {
            let file = File::open(&input.path)?;
            anyhow::Ok(session.add_file(&input.name, file.metadata()?.len(), file).await?)
        };
        added.await.with_context(|| format!("cannot hand over {}", input.path.display()))?;
    }
    Ok(())
}

/// Stores the files and puts them into a session.
pub(crate) async fn store(session: &Session, store: &Store, inputs: &[InputFile]) -> anyhow::Result<()> {
    // Checked before it fills the disk of the host.
    require_room(inputs, session.limits().disk)?;
    for input in inputs {
        let stored = input.store(session, store).await;
        stored.with_context(|| format!("cannot hand over {}", input.path.display()))?;
    }
    Ok(())
}

impl InputFile {
    /// A file with this name in the workspace.
    pub(crate) fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), path: path.into() }
    }

    fn is_same(&self, other: &Self) -> bool {
        let real = |input: &Self| input.path.canonicalize().ok();
        real(self).is_some() && real(self) == real(other)
    }

    /// Its name in the workspace.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its path on the host.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    async fn store(&self, session: &Session, store: &Store) -> anyhow::Result<()> {
        let file = File::open(&self.path)?;
        let limit = session.limits().disk;
        // A file may grow meanwhile; the workspace then refuses the excess.
        for blob in store.write_blobs(store.no_room(session.tenant()), vec![file.take(limit + 1)]).await? {
            session.add_file_as_named(&self.name, mime_of(&self.name), blob).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(given: &[PathBuf]) -> Vec<String> {
        check(given).unwrap().into_iter().map(|input| input.name).collect()
    }

    #[test]
    fn what_cannot_be_handed_over_is_said_before() {
        let home = tempfile::tempdir().unwrap();
        let (here, there) = (home.path().join("a.csv"), home.path().join("b/a.csv"));
        std::fs::create_dir(home.path().join("b")).unwrap();
        for path in [&here, &there] {
            std::fs::write(path, "1").unwrap();
        }
        let to = |name: &str| PathBuf::from(format!("{}:{name}", here.display()));
        assert_eq!(names(std::slice::from_ref(&here)), ["a.csv"]);
        assert_eq!(names(&[here.clone(), here.clone()]), ["a.csv"], "the same twice");
        for (paths, words) in [
            (vec![home.path().join("none")], "No such file"),
            (vec!["/dev/null".into()], "not a regular file"),
            (vec![to("../x")], "does not name a place in the workspace"),
            (vec![to("/etc/passwd")], "does not name a place in the workspace"),
            (vec![to("/mnt/data")], "its name"),
            (vec![here.clone(), there], "has the same name"),
        ] {
            let error = check(&paths).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn files_and_directories_get_their_places() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for name in ["d/.git", "d/__pycache__", "d/e/f"] {
            std::fs::create_dir_all(at(name)).unwrap();
            std::fs::write(at(name).join("x.py"), "1").unwrap();
        }
        for name in ["d/a.csv", "odd:name", "d/.hidden"] {
            std::fs::write(at(name), "1").unwrap();
        }
        std::os::unix::fs::symlink("..", at("d/up")).unwrap();
        let to = |name: &str, place: &str| PathBuf::from(format!("{}:{place}", at(name).display()));
        assert_eq!(names(&[at("d")]), ["d/a.csv", "d/e/f/x.py"]);
        assert_eq!(names(&[at("d/.")]), ["d/a.csv", "d/e/f/x.py"]);
        assert_eq!(names(&[to("d", ".")]), ["a.csv", "e/f/x.py"]);
        assert_eq!(names(&[to("d", "/mnt/data/in/")]), ["in/d/a.csv", "in/d/e/f/x.py"]);
        assert_eq!(names(&[to("d/a.csv", "in/b.csv"), to("d/a.csv", "in/")]), ["in/b.csv", "in/a.csv"]);
        assert_eq!(names(&[at("odd:name")]), ["odd:name"]);
    }
}
