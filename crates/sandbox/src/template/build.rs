//! Building a template: beside its place, and renamed into it at the end.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::host_python::HostPython;
use super::{LOCK, MANIFEST, Manifest, Progress, Template, UNFINISHED, at};
use super::{fonts, hex, libraries, packages, remove_unfinished, set_aside, skeleton, slim, tools, tree};
use crate::Error;

/// With less than this free, a build cannot come to its end: the packages as they are downloaded, and as they are installed.
const NEEDED_BYTES: u64 = 2_200_000_000;

/// Directories and interpreter of a build.
pub(super) struct Site<'a> {
    /// The interpreter that it is made from.
    pub(super) python: &'a HostPython,
    /// The root filesystem in the making, without links in its path.
    pub(super) root: PathBuf,
    /// The builders' lock, held.
    pub(super) lock: &'a File,
}

impl Site<'_> {
    /// The virtual environment that holds the packages.
    pub(super) fn environment(&self) -> PathBuf {
        self.root.join("usr/local")
    }

    /// Returns the directory of the packages.
    pub(super) fn site_packages(&self) -> PathBuf {
        self.environment().join("lib").join(self.python.name()).join("site-packages")
    }

    /// Returns the directory of the standard library. The interpreter looks for it in the directory that it was configured with, beside its own.
    pub(super) fn stdlib(&self) -> PathBuf {
        self.root.join("usr").join(&self.python.platlibdir).join(self.python.name())
    }
}

/// Builds the template `name` in `directory`. The caller holds `lock`.
pub(super) fn build(
    python: &HostPython,
    directory: &Path,
    name: &str,
    lock: &File,
    progress: &mut dyn FnMut(Progress),
) -> Result<Template, Error> {
    let started = Instant::now();
    remove_unfinished(directory)?;
    require_space(directory)?;
    let site = Site { python, root: directory.join(format!("{UNFINISHED}{}", std::process::id())), lock };
    let place = directory.join(name);
    let built = fill(&site, progress).and_then(|()| {
        if place.exists() {
            set_aside(&place)?;
        }
        fs::rename(&site.root, &place).map_err(at(&site.root))
    });
    // Remove a failed build, or the template that was replaced.
    remove_unfinished(directory)?;
    built?;
    let template = Template::open(&place)
        .ok_or_else(|| Error::Template(format!("{} was built but cannot be opened", place.display())))?;
    progress(Progress::Finished { bytes: template.bytes(), elapsed: started.elapsed() });
    Ok(template)
}

fn fill(site: &Site<'_>, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
    progress(Progress::Phase { name: "preparing", total: 0 });
    skeleton::make(&site.root)?;
    packages::install(site, LOCK, progress)?;
    slim::remove_the_useless(&site.environment(), &site.site_packages())?;
    fonts::place(&site.root, &site.site_packages())?;
    progress(Progress::Phase { name: "copying the interpreter and tools", total: 0 });
    skeleton::copy_interpreter(site)?;
    tools::copy(&site.root)?;
    progress(Progress::Phase { name: "collecting shared libraries", total: 0 });
    libraries::copy(site)?;
    progress(Progress::Phase { name: "compiling", total: 0 });
    packages::settle(site)?;
    packages::compile(site)?;
    let packages = packages::list(&site.site_packages())?;
    let bytes = tree::normalize(&site.root)?;
    let manifest =
        Manifest { python: site.python.version.clone(), packages, lock: hex(Sha256::new_with_prefix(LOCK)), bytes };
    // Only now is the size known; sandboxes read the file whatever the umask of the builder was.
    let path = site.root.join(MANIFEST);
    let text = serde_json::to_vec_pretty(&manifest).map_err(|error| at(&path)(error.into()))?;
    fs::write(&path, text).map_err(at(&path))?;
    set_mode(&path, 0o644)?;
    set_mode(&site.root.join("root"), 0o700)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at(path))
}

/// Says that the disk is too full before a minute is spent on finding out.
fn require_space(directory: &Path) -> Result<(), Error> {
    let system = rustix::fs::statvfs(directory).map_err(|error| at(directory)(error.into()))?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free >= NEEDED_BYTES {
        return Ok(());
    }
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    Err(Error::Template(format!(
        "{}: a template needs {:.1} GB while it is built, {:.1} GB are free; make room or choose another data directory",
        directory.display(),
        gigabytes(NEEDED_BYTES),
        gigabytes(free)
    )))
}
