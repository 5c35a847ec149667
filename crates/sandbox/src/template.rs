//! Templates: what a sandbox starts from.
//!
//! A template is a root filesystem with an interpreter and its packages, made once from the host's own Python and a hash-locked list, and
//! mounted read-only ever after. It holds everything a sandbox needs, so that nothing else of the host has to be visible.

mod host_python;
mod packages;
mod root;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;
use host_python::HostPython;

/// The packages of the default template, with versions and hashes.
const LOCK: &str = include_str!("../../../templates/default/requirements.lock");
/// Part of a template's identity: to be raised when the way of building changes.
const BUILDER: &str = "1";
/// Where a template describes itself, inside.
const MANIFEST: &str = "usr/lib/aludel/template.json";
/// The interpreter, inside.
const PYTHON: &str = "/usr/local/bin/python3";

/// A template that is ready on this host.
#[derive(Debug, Clone)]
pub struct Template {
    root: PathBuf,
    manifest: Manifest,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Manifest {
    python: String,
    packages: Vec<Package>,
    bytes: u64,
}

/// A package of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Its name on the index.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// What a build tells while it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A phase began.
    Phase {
        /// What is being done.
        name: &'static str,
        /// Out of how many units; 0 when that is not known.
        total: u64,
    },
    /// The phase advanced.
    Step {
        /// Units done.
        done: u64,
        /// What is being worked on.
        what: String,
    },
    /// The template is ready.
    Finished {
        /// Its size on disk.
        bytes: u64,
        /// How long the build took.
        elapsed: Duration,
    },
}

/// Whether the default template is there.
#[derive(Debug, Clone)]
pub enum State {
    /// It is.
    Ready(Template),
    /// It will be built when it is needed, which takes a minute or two.
    Missing,
    /// It cannot be built; the reason says what to install.
    Unbuildable(String),
}

impl Template {
    /// The root filesystem.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The interpreter, as a path inside.
    pub fn python(&self) -> &str {
        PYTHON
    }

    /// The interpreter's version, for example `3.11.2`.
    pub fn python_version(&self) -> &str {
        &self.manifest.python
    }

    /// What is installed, by name.
    pub fn packages(&self) -> &[Package] {
        &self.manifest.packages
    }

    /// Its size on disk.
    pub fn bytes(&self) -> u64 {
        self.manifest.bytes
    }

    fn open(root: PathBuf) -> Option<Self> {
        let manifest = serde_json::from_slice(&fs::read(root.join(MANIFEST)).ok()?).ok()?;
        Some(Self { root, manifest })
    }
}

/// Whether the default template is there, without building it. Runs the host's Python.
pub fn state(data: &Path) -> State {
    match HostPython::find() {
        Ok(python) => match Template::open(directory(data).join(name(&python))) {
            Some(template) => State::Ready(template),
            None => {
                python.require_venv().map_or_else(|error| State::Unbuildable(error.to_string()), |()| State::Missing)
            }
        },
        Err(error) => State::Unbuildable(error.to_string()),
    }
}

/// Returns the default template, building it when it is missing or was made for another interpreter or list; `force` builds it anew.
/// Blocks. Builders wait for one another; one that is interrupted leaves nothing that is used.
pub fn ensure(data: &Path, force: bool, progress: &mut dyn FnMut(Progress)) -> Result<Template, Error> {
    let python = HostPython::find()?;
    let directory = directory(data);
    let root = directory.join(name(&python));
    if !force && let Some(template) = Template::open(root.clone()) {
        return Ok(template);
    }
    python.require_venv()?;
    fs::create_dir_all(&directory).map_err(at(&directory))?;
    let lock_path = directory.join(".lock");
    let lock = File::create(&lock_path).map_err(at(&lock_path))?;
    lock.lock().map_err(at(&lock_path))?;
    // Another builder may have made it while this one waited.
    if !force && let Some(template) = Template::open(root.clone()) {
        return Ok(template);
    }
    build(&python, &directory, &root, progress)
}

/// Removes templates that are not the current one, and returns how many. Sandboxes that run on one keep what they have open.
pub fn prune(data: &Path) -> Result<usize, Error> {
    let current = name(&HostPython::find()?);
    let directory = directory(data);
    let mut removed = 0;
    for entry in fs::read_dir(&directory).map_err(at(&directory))?.flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("default-") && name.to_string_lossy() != current {
            fs::remove_dir_all(entry.path()).map_err(at(&entry.path()))?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn directory(data: &Path) -> PathBuf {
    data.join("templates")
}

/// Tells templates apart by all that goes into them.
fn name(python: &HostPython) -> String {
    let mut hash = Sha256::new();
    for part in [LOCK, BUILDER, &python.identity(), std::env::consts::ARCH] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let digest: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("default-{digest}")
}

/// Builds beside the target and renames at the end. The caller holds the lock.
fn build(
    python: &HostPython,
    directory: &Path,
    root: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Template, Error> {
    let started = Instant::now();
    remove_unfinished(directory)?;
    let staging = directory.join(format!(".building-{}", std::process::id()));
    let result = fill(python, &staging, progress).and_then(|manifest| {
        if root.exists() {
            let old = directory.join(format!(".building-old-{}", std::process::id()));
            fs::rename(root, &old).map_err(at(root))?;
        }
        fs::rename(&staging, root).map_err(at(&staging))?;
        Ok(Template { root: root.to_path_buf(), manifest })
    });
    // What is left is either a failed build or the one that was replaced.
    remove_unfinished(directory)?;
    let template = result?;
    progress(Progress::Finished { bytes: template.bytes(), elapsed: started.elapsed() });
    Ok(template)
}

fn fill(python: &HostPython, staging: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Manifest, Error> {
    root::make_skeleton(staging)?;
    packages::install(python, staging, LOCK, progress)?;
    progress(Progress::Phase { name: "copying the interpreter and tools", total: 0 });
    root::copy_interpreter(python, staging)?;
    root::copy_tools(staging)?;
    progress(Progress::Phase { name: "collecting shared libraries", total: 0 });
    root::copy_libraries(python, staging)?;
    progress(Progress::Phase { name: "compiling", total: 0 });
    packages::compile(python, staging)?;
    let packages = packages::list(python, staging)?;
    packages::settle(python, staging)?;
    let bytes = root::normalize(staging)?;
    let manifest = Manifest { python: python.version.clone(), packages, bytes };
    let path = staging.join(MANIFEST);
    let text = serde_json::to_vec_pretty(&manifest).map_err(|error| at(&path)(error.into()))?;
    fs::write(&path, text).map_err(at(&path))?;
    Ok(manifest)
}

fn remove_unfinished(directory: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(directory).map_err(at(directory))?.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b".building-") {
            fs::remove_dir_all(entry.path()).map_err(at(&entry.path()))?;
        }
    }
    Ok(())
}

/// Names the path in an I/O error.
fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_of_the_list_is_locked_by_hash_and_names_no_index() {
        let mut packages = 0;
        let mut lines = LOCK.lines().peekable();
        while let Some(line) = lines.next() {
            if line.starts_with(' ') || line.starts_with('#') || line.is_empty() {
                continue;
            }
            packages += 1;
            assert!(line.contains("=="), "{line}");
            assert!(lines.peek().is_some_and(|next| next.trim_start().starts_with("--hash=sha256:")), "{line}");
        }
        assert!(packages > 50);
        assert!(!LOCK.contains("://"));
    }

    #[test]
    fn an_unfinished_build_is_removed() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir_all(data.path().join(".building-1/usr")).unwrap();
        fs::create_dir_all(data.path().join("default-0")).unwrap();
        remove_unfinished(data.path()).unwrap();
        assert!(!data.path().join(".building-1").exists() && data.path().join("default-0").exists());
    }
}
