//! Programs of ours, in place of those that need the network, the machine's part of `/proc`, or packages that a template leaves out.

use std::fs;
use std::os::unix::fs::symlink;

use super::at;
use super::site::BuildSite;
use super::tree::set_mode;
use crate::Error;

/// Programs by name, which replace the host's.
const PROGRAMS: &[(&str, &str)] =
    &[("ps", include_str!("programs/ps.py")), ("git-remote-http", include_str!("programs/git-remote"))];

/// Writes the programs.
pub(super) fn write(site: &BuildSite<'_>) -> Result<(), Error> {
    let programs = site.root.join("usr/bin");
    for (name, text) in PROGRAMS {
        let path = programs.join(name);
        if path.is_symlink() || path.exists() {
            fs::remove_file(&path).map_err(at(&path))?;
        }
        fs::write(&path, text).map_err(at(&path))?;
        set_mode(&path, 0o755)?;
    }
    let https = programs.join("git-remote-https");
    symlink("git-remote-http", &https).map_err(at(&https))?;
    let module = site.stdlib().join("ensurepip");
    fs::create_dir(&module).map_err(at(&module))?;
    for (name, text) in [
        ("__init__.py", include_str!("programs/ensurepip.py")),
        ("__main__.py", "import ensurepip\n\nensurepip.bootstrap()\n"),
    ] {
        let path = module.join(name);
        fs::write(&path, text).map_err(at(&path))?;
    }
    Ok(())
}
