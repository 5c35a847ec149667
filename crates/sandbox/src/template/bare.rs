//! A bare template: the interpreter alone, made of the host's files, for a trial of a sandbox before packages are downloaded.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use super::host_python::HostPython;
use super::site::BuildSite;
use super::{Manifest, Template, TemplateLock, UNFINISHED, at, libraries, lock, make_directory, skeleton, tree};
use crate::{Error, KernelSpec};

/// Prefix of its name: leftovers are removed like unfinished builds.
const PREFIX: &str = "bare-";

/// Makes a bare template, which takes some seconds; [`remove_bare`] removes it. Blocks.
pub(crate) fn bare(data: &Path) -> Result<Template, Error> {
    let python = HostPython::find()?;
    let directory = make_directory(data)?;
    let lock = lock(&directory, &mut |_| ())?;
    let root = directory.join(format!("{UNFINISHED}{PREFIX}{}", std::process::id()));
    fs::create_dir_all(&root).map_err(at(&root))?;
    let in_use = TemplateLock(File::open(&root).map_err(at(&root))?);
    in_use.0.try_lock_shared().map_err(|error| at(&root)(error.into()))?;
    let site = BuildSite { python: &python, root: root.clone(), lock: &lock };
    let made = skeleton::make(&root)
        .and_then(|()| skeleton::copy_interpreter(&site))
        .and_then(|()| libraries::copy(&site, &[]))
        .and_then(|()| tree::normalize(&root));
    let manifest = Manifest {
        python: python.version.clone(),
        packages: Vec::new(),
        lock: String::new(),
        preload: Vec::new(),
        included: Vec::new(),
        bytes: made.inspect_err(|_| drop(fs::remove_dir_all(&root)))?,
        builder: String::new(),
    };
    let kernel = Arc::new(KernelSpec::trial(&format!("/usr/bin/{}", python.name())));
    Ok(Template { root, manifest, kernel, _in_use: Arc::new(in_use) })
}

/// Removes a bare template; any other stays. Blocks.
pub(crate) fn remove_bare(template: &Template) -> Result<(), Error> {
    let name = template.root.file_name().unwrap_or_default();
    if name.as_encoded_bytes().starts_with(format!("{UNFINISHED}{PREFIX}").as_bytes()) {
        fs::remove_dir_all(&template.root).map_err(at(&template.root))?;
    }
    Ok(())
}
