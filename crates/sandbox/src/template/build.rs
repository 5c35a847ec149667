//! Building a template: in a directory beside its final place, renamed at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::host_python::HostPython;
use super::packages::PipOptions;
use super::recipe::{self, Recipe};
use super::site::BuildSite;
use super::{BUILDER, BuildLock, BuildProgress, LOCK, MANIFEST, Manifest, REQUIREMENTS, Template, UNFINISHED, at};
use super::{
    fonts, hex, included, libraries, packages, programs, remove_unfinished, resolve, set_aside, skeleton, slim, tools,
    tree,
};
use crate::Error;

/// Disk space that a build needs, bytes: the packages as downloaded and as installed.
const NEEDED_BYTES: u64 = 2_200_000_000;
/// The same for a template with packages of unknown size: the interpreter with its library and pip.
const LEAST_BYTES: u64 = 600_000_000;

/// The packages that a template gets.
pub(super) enum Packages<'a> {
    /// Those of the default template.
    Default,
    /// Those of a template of the operator's own.
    Own(&'a Recipe),
}

impl Packages<'_> {
    fn needed_bytes(&self) -> u64 {
        if self.has_default() { NEEDED_BYTES } else { LEAST_BYTES }
    }

    /// True if the packages of the default template are among them.
    fn has_default(&self) -> bool {
        match self {
            Self::Default => true,
            Self::Own(recipe) => recipe.with_default,
        }
    }

    fn preload(&self) -> &[String] {
        match self {
            Self::Default => &[],
            Self::Own(recipe) => &recipe.preload,
        }
    }

    /// Paths of the host that it has besides.
    fn include(&self) -> &[PathBuf] {
        match self {
            Self::Default => &[],
            Self::Own(recipe) => &recipe.include,
        }
    }

    /// The name of the directory of a template with these packages.
    fn directory_name(&self, python: &HostPython, list: &str) -> Result<String, Error> {
        match self {
            Self::Default => Ok(super::name(python)),
            Self::Own(recipe) => recipe::directory_name(python, list, recipe),
        }
    }
}

/// Builds a template in `directory`, unless one of the same packages exists; `force` builds it anyway. The caller holds `lock`.
pub(super) fn build(
    python: &HostPython,
    directory: &Path,
    packages: &Packages<'_>,
    force: bool,
    lock: &BuildLock,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Template, Error> {
    let started = Instant::now();
    remove_unfinished(directory)?;
    require_space(directory, packages.needed_bytes())?;
    let site = BuildSite { python, root: directory.join(format!("{UNFINISHED}{}", std::process::id())), lock };
    let built = build_in(&site, directory, packages, force, progress);
    // Remove a failed build, a superfluous one, or the replaced template.
    remove_unfinished(directory)?;
    let place = built?;
    let template = Template::open(&place)
        .ok_or_else(|| Error::Template(format!("{} was built but cannot be opened", place.display())))?;
    progress(BuildProgress::Finished { bytes: template.bytes(), elapsed: started.elapsed() });
    Ok(template)
}

/// Builds the template and returns its path.
fn build_in(
    site: &BuildSite<'_>,
    directory: &Path,
    packages: &Packages<'_>,
    force: bool,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<PathBuf, Error> {
    progress(BuildProgress::Phase { name: "preparing", total: 0 });
    skeleton::make(&site.root)?;
    packages::make_environment(site)?;
    let (list, options) = match packages {
        Packages::Default => (LOCK.to_owned(), PipOptions::default()),
        Packages::Own(recipe) => resolve::resolve(site, recipe, progress)?,
    };
    let place = directory.join(packages.directory_name(site.python, &list)?);
    if !force && Template::open(&place).is_some() {
        return Ok(place);
    }
    fill(site, packages, &list, &options, progress)?;
    if place.exists() {
        set_aside(&place)?;
    }
    fs::rename(&site.root, &place).map_err(at(&site.root))?;
    Ok(place)
}

fn fill(
    site: &BuildSite<'_>,
    packages: &Packages<'_>,
    list: &str,
    options: &PipOptions,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<(), Error> {
    packages::install(site, list, options, progress)?;
    if packages.has_default() {
        slim::remove_the_useless(&site.environment(), &site.site_packages())?;
        fonts::place(&site.root, &site.site_packages())?;
    }
    progress(BuildProgress::Phase { name: "copying the interpreter and tools", total: 0 });
    skeleton::copy_interpreter(site)?;
    tools::copy(&site.root)?;
    programs::write(site)?;
    included::copy(packages.include(), &site.root)?;
    progress(BuildProgress::Phase { name: "collecting shared libraries", total: 0 });
    libraries::copy(site, packages.include())?;
    progress(BuildProgress::Phase { name: "compiling", total: 0 });
    packages::settle(site)?;
    match packages {
        Packages::Default => packages::compile(site)?,
        Packages::Own(_) => packages::compile_leniently(site)?,
    }
    packages::compile_kernel(site)?;
    let lock = site.root.join(REQUIREMENTS);
    fs::write(&lock, list).map_err(at(&lock))?;
    let manifest = Manifest {
        python: site.python.version.clone(),
        packages: packages::list(&site.site_packages())?,
        lock: hex(Sha256::new_with_prefix(list)),
        preload: packages.preload().to_vec(),
        included: packages.include().to_vec(),
        bytes: tree::normalize(&site.root)?,
        builder: BUILDER.to_owned(),
    };
    // The size is known only now. Sandboxes must be able to read the file whatever the builder's umask was.
    let path = site.root.join(MANIFEST);
    let text = serde_json::to_vec_pretty(&manifest).map_err(|error| at(&path)(error.into()))?;
    fs::write(&path, text).map_err(at(&path))?;
    tree::set_mode(&path, 0o644)?;
    tree::set_mode(&site.root.join("root"), 0o700)
}

/// Bytes that are free on the disk of a directory.
pub(super) fn free_bytes(directory: &Path) -> Result<u64, Error> {
    let system = rustix::fs::statvfs(directory).map_err(|error| at(directory)(error.into()))?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Fails if the disk is too full, instead of a minute later.
fn require_space(directory: &Path, needed: u64) -> Result<(), Error> {
    let free = free_bytes(directory)?;
    if free >= needed {
        return Ok(());
    }
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    Err(Error::Template(format!(
        "{}: a template needs at least {:.1} GB while it is built, {:.1} GB are free; make room or choose another data directory",
        directory.display(),
        gigabytes(needed),
        gigabytes(free)
    )))
}
