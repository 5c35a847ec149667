//! Templates: the root filesystems from which sandboxes start.
//!
//! A template is a root filesystem with an interpreter and its packages, made once from the host's own Python and a hash-locked list, and
//! mounted read-only from then on. It holds everything a sandbox needs, so that nothing else of the host has to be visible.

mod archive;
mod bare;
mod build;
mod cache;
mod cancellation;
mod command;
mod custom;
mod fonts;
mod host_python;
mod included;
mod libraries;
mod name;
mod packages;
mod pip_output;
mod programs;
mod recipe;
mod resolve;
mod site;
mod skeleton;
mod slim;
mod tools;
mod tree;

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Error, KernelSpec};
pub use archive::{export, import, import_default};
pub(crate) use bare::{bare, remove_bare};
pub use cancellation::BuildCancellation;
pub use custom::{assign, build_own, discard, find, list, remove};
use host_python::HostPython;
pub use name::{Choice, TemplateName};
pub use recipe::Recipe;

/// The packages of the default template, with versions and hashes.
const LOCK: &str = include_str!("../templates/default/requirements.lock");
/// Part of a template's identity; raise it when the way of building changes.
const BUILDER: &str = "9";
/// Prefix of the names of default templates.
const PREFIX: &str = "default-";
/// Prefix of the names of leftovers, which may be removed.
const UNFINISHED: &str = ".building-";
/// Path of a template's manifest, inside.
const MANIFEST: &str = "usr/lib/aludel/template.json";
/// The list that its packages came from, with hashes, inside.
const REQUIREMENTS: &str = "usr/lib/aludel/requirements.lock";
/// The interpreter, inside.
const PYTHON: &str = "/usr/local/bin/python3";

/// A ready template of this host. It is not removed while this value or a clone of it lives.
#[derive(Debug, Clone)]
pub struct Template {
    root: PathBuf,
    manifest: Manifest,
    kernel: Arc<KernelSpec>,
    /// A shared lock on the root; removal takes it exclusively.
    _in_use: Arc<TemplateLock>,
}

/// A template's manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Manifest {
    /// The interpreter's version.
    python: String,
    packages: Vec<Package>,
    /// The SHA-256 of the list that the packages came from.
    lock: String,
    /// Modules that are imported ahead, besides the usual ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    preload: Vec<String>,
    /// Paths of the host that were included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    included: Vec<PathBuf>,
    /// Its size on disk.
    bytes: u64,
    /// [`BUILDER`] of the program that made it.
    #[serde(default)]
    builder: String,
}

/// A package of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Its name on the index.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// Progress of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildProgress {
    /// A phase began.
    Phase {
        /// Name of the phase.
        name: &'static str,
        /// Out of how many units; 0 when that is not known.
        total: u64,
    },
    /// The phase advanced.
    Step {
        /// Units done.
        done: u64,
        /// The package or file that is being worked on.
        what: String,
    },
    /// The template is ready.
    Finished {
        /// Its size on disk.
        bytes: u64,
        /// Duration of the build.
        elapsed: Duration,
    },
}

/// Time within which the holder of the lock for a removal has renamed the template.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two looks at a template that is locked.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The lock on a template in use.
#[derive(Debug)]
struct TemplateLock(File);

impl TemplateLock {
    /// Takes the lock on the template at `root`; `None` if it is being removed. Blocks for [`REMOVAL_TIMEOUT`] at most: a removal renames
    /// the template at once, so one that still exists is locked by a user who cannot remove it, as every user of a shared template can do.
    fn take(&self, root: &Path) -> Option<()> {
        let end = Instant::now() + REMOVAL_TIMEOUT;
        while let Err(TryLockError::WouldBlock) = self.0.try_lock_shared() {
            let (ours, there) = (self.0.metadata().ok()?, root.metadata().ok()?);
            if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
                return None;
            }
            if Instant::now() > end {
                tracing::warn!("{} is locked by another process; it is used without a lock", root.display());
                break;
            }
            thread::sleep(LOCK_POLL_INTERVAL);
        }
        Some(())
    }
}

impl Drop for TemplateLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that is being started has a copy of it until its exec.
        self.0.unlock().ignore("the last copy of the file releases it otherwise");
    }
}

/// State of the default template.
#[derive(Debug, Clone)]
pub enum TemplateState {
    /// It is.
    Ready(Template),
    /// It will be built on first use, which takes a minute or two.
    Missing,
    /// It cannot be built; the reason says what to install.
    Unbuildable(String),
}

impl Template {
    /// The root filesystem.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The kernel that runs in it.
    pub fn kernel(&self) -> &Arc<KernelSpec> {
        &self.kernel
    }

    /// The same files with another kernel, which needs no more than they contain.
    #[must_use]
    pub fn with_kernel(self, kernel: KernelSpec) -> Self {
        Self { kernel: Arc::new(kernel), ..self }
    }

    /// The interpreter's version, for example `3.11.2`.
    pub fn python_version(&self) -> &str {
        &self.manifest.python
    }

    /// Returns the installed packages, by name.
    pub fn packages(&self) -> &[Package] {
        &self.manifest.packages
    }

    /// Its size on disk.
    pub fn bytes(&self) -> u64 {
        self.manifest.bytes
    }

    /// Modules that are imported ahead, besides the usual ones.
    pub fn preload(&self) -> &[String] {
        &self.manifest.preload
    }

    /// Paths of the host that it has besides its packages.
    pub fn included(&self) -> &[PathBuf] {
        &self.manifest.included
    }

    /// SHA-256 of the list of packages that it was made from.
    pub fn lock(&self) -> &str {
        &self.manifest.lock
    }

    /// The template at `root`; `None` if there is none or it is being removed.
    fn open(root: &Path) -> Option<Self> {
        let root = root.canonicalize().ok()?;
        let in_use = TemplateLock(File::open(&root).ok()?);
        in_use.take(&root)?;
        let manifest: Manifest = serde_json::from_slice(&fs::read(root.join(MANIFEST)).ok()?).ok()?;
        let kernel = Arc::new(KernelSpec::python(PYTHON).preloading(&manifest.preload).within(&root));
        Some(Self { root, manifest, kernel, _in_use: Arc::new(in_use) })
    }
}

/// Looks for the default template in these data directories, without building it. Runs the host's Python, unless it is the one for which
/// the template was found the last time.
pub fn state(directories: &[PathBuf]) -> TemplateState {
    let key = cache::TemplateKey::now();
    if let Some(template) = key.as_ref().and_then(|key| remembered(key, directories)) {
        return TemplateState::Ready(template);
    }
    let python = HostPython::find();
    let name = python.as_ref().ok().map(name);
    for data in directories {
        if let Some(name) = &name
            && let Some(template) = Template::open(&directory(data).join(name))
        {
            if let (Some(key), Some(first)) = (key, directories.first()) {
                key.remember(&directory(first), name);
            }
            return TemplateState::Ready(template);
        }
        if let Some(template) = imported(&directory(data)) {
            return TemplateState::Ready(template);
        }
    }
    match python.and_then(|python| python.require_venv()) {
        Ok(()) => TemplateState::Missing,
        Err(error) => TemplateState::Unbuildable(error.to_string()),
    }
}

/// The template that was found with this key the last time.
fn remembered(key: &cache::TemplateKey, directories: &[PathBuf]) -> Option<Template> {
    let name = directories.iter().find_map(|data| key.name(&directory(data)))?;
    directories.iter().find_map(|data| Template::open(&directory(data).join(&name)))
}

/// The default template that was imported from an archive, if any: for hosts that cannot build it, so it does not need their Python.
fn imported(directory: &Path) -> Option<Template> {
    Template::open(&directory.join(imported_name()))
}

/// The name of a default template that came in an archive.
fn imported_name() -> String {
    name_of(PREFIX, &[LOCK, BUILDER, "imported", std::env::consts::ARCH])
}

/// Returns the path of the interpreter that templates are made from, without running it.
pub fn interpreter() -> Option<PathBuf> {
    HostPython::locate()
}

/// Returns the default template, or the imported one if none was built. Builds it if it is missing or was made for another interpreter or
/// list; `force` builds it anew. Blocks. Builders wait for each other; an interrupted build leaves nothing that is used.
pub fn ensure(data: &Path, force: bool, progress: &mut dyn FnMut(BuildProgress)) -> Result<Template, Error> {
    ensure_unless(data, force, None, progress)
}

/// The same, which fails when the request comes to end the build.
pub fn ensure_unless(
    data: &Path,
    force: bool,
    cancellation: Option<&BuildCancellation>,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Template, Error> {
    let key = cache::TemplateKey::now();
    let known = key.as_ref().filter(|_| !force).and_then(|key| remembered(key, &[data.to_path_buf()]));
    if let Some(template) = known {
        return Ok(template);
    }
    let came = || if force { None } else { imported(&directory(data)) };
    let python = match HostPython::find() {
        Ok(python) => python,
        Err(error) => return came().ok_or(error),
    };
    let name = name(&python);
    let there = |directory: &Path| if force { None } else { Template::open(&directory.join(&name)) };
    if let Some(template) = there(&directory(data)) {
        key.inspect(|key| key.remember(&directory(data), &name));
        return Ok(template);
    }
    if let Some(template) = came() {
        return Ok(template);
    }
    python.require_venv()?;
    let directory = make_directory(data)?;
    let lock = lock_unless(&directory, cancellation, progress)?;
    // Another builder may have made it during the wait.
    let template = match there(&directory) {
        Some(template) => template,
        None => build::build(&python, &directory, &build::Packages::Default, force, &lock, progress)?,
    };
    key.inspect(|key| key.remember(&directory, &name));
    Ok(template)
}

/// Removes templates that are neither current nor named nor in use, and returns their number.
pub fn prune(data: &Path) -> Result<usize, Error> {
    let current = [HostPython::find().map(|python| name(&python)).unwrap_or_default(), imported_name()];
    if !directory(data).is_dir() {
        return Ok(0);
    }
    let directory = make_directory(data)?;
    let _lock = lock(&directory, &mut |_| ())?;
    let mut removed = custom::remove_nameless(&directory)?;
    for entry in tree::entries(&directory)? {
        let name = entry.file_name();
        let outdated = name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && !current.iter().any(|current| name == current.as_str());
        if outdated && remove_unused(&entry.path())? {
            removed += 1;
        }
    }
    remove_unfinished(&directory)?;
    Ok(removed)
}

fn directory(data: &Path) -> PathBuf {
    data.join("templates")
}

/// Absolute and without links, because Python and pip write this path into their files.
fn make_directory(data: &Path) -> Result<PathBuf, Error> {
    let directory = directory(data);
    fs::create_dir_all(&directory).and_then(|()| directory.canonicalize()).map_err(at(&directory))
}

/// The builders' lock, held.
struct BuildLock {
    file: File,
    /// The request to end the build, if the process catches signals.
    cancellation: Option<BuildCancellation>,
}

/// Waits until no other process builds or removes.
fn lock(directory: &Path, progress: &mut dyn FnMut(BuildProgress)) -> Result<BuildLock, Error> {
    lock_unless(directory, None, progress)
}

/// The same, which fails when the request comes to end the build.
fn lock_unless(
    directory: &Path,
    cancellation: Option<&BuildCancellation>,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<BuildLock, Error> {
    let path = directory.join(".lock");
    // Not readable by others: a reader could block builders by taking the lock.
    let mut options = File::options();
    let file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(at(&path))?;
    aludel_jail::sweep::share_with_owner(&path).map_err(at(&path))?;
    let lock = BuildLock { file, cancellation: cancellation.cloned() };
    match lock.file.try_lock() {
        Ok(()) => return Ok(lock),
        Err(TryLockError::WouldBlock) => progress(BuildProgress::Phase { name: "waiting for another build", total: 0 }),
        Err(TryLockError::Error(error)) => return Err(at(&path)(error)),
    }
    let Some(cancellation) = cancellation else {
        lock.file.lock().map_err(at(&path))?;
        return Ok(lock);
    };
    while let Err(error) = lock.file.try_lock() {
        match error {
            TryLockError::Error(error) => return Err(at(&path)(error)),
            TryLockError::WouldBlock if cancellation.was_asked() => return Err(cancelled()),
            TryLockError::WouldBlock => thread::sleep(LOCK_POLL_INTERVAL),
        }
    }
    Ok(lock)
}

/// The error of a build that was asked to end.
fn cancelled() -> Error {
    Error::Template("the build of the template was ended".to_owned())
}

/// The name of a default template, a hash of all inputs.
fn name(python: &HostPython) -> String {
    name_of(PREFIX, &[LOCK, BUILDER, &python.identity(), std::env::consts::ARCH])
}

/// A name of `prefix` and a digest of these parts.
fn name_of(prefix: &str, parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // The length keeps neighbouring parts apart.
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    format!("{prefix}{}", &hex(hash)[..12])
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Removes what unfinished builds left. The caller holds the lock, so none of it is being built.
fn remove_unfinished(directory: &Path) -> Result<(), Error> {
    for entry in tree::entries(directory)? {
        if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            remove_unused(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a template, or a part of one, unless it is in use. It is first renamed, so that it is not found.
fn remove_unused(root: &Path) -> Result<bool, Error> {
    let file = File::open(root).map_err(at(root))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(at(root)(error)),
    }
    let aside = set_aside(root)?;
    fs::remove_dir_all(&aside).map_err(at(&aside))?;
    Ok(true)
}

/// Renames a template so that [`remove_unfinished`] removes it once it is not in use.
fn set_aside(root: &Path) -> Result<PathBuf, Error> {
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with(UNFINISHED) {
        return Ok(root.to_path_buf());
    }
    let nanoseconds = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let aside = root.with_file_name(format!("{UNFINISHED}{}-{nanoseconds}-{name}", std::process::id()));
    fs::rename(root, &aside).map_err(at(root))?;
    Ok(aside)
}

/// Names the path in an I/O error.
fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { path, source }
}

#[cfg(test)]
mod tests;
