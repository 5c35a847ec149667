//! The site of a build: its directories and its interpreter.

use std::path::PathBuf;

use super::BuildLock;
use super::host_python::HostPython;

/// Directories and interpreter of a build.
pub(super) struct BuildSite<'a> {
    /// The interpreter that it is made from.
    pub(super) python: &'a HostPython,
    /// The root filesystem in the making, without links in its path.
    pub(super) root: PathBuf,
    /// The builders' lock, held.
    pub(super) lock: &'a BuildLock,
}

impl BuildSite<'_> {
    /// The virtual environment that holds the packages.
    pub(super) fn environment(&self) -> PathBuf {
        self.root.join("usr/local")
    }

    /// Returns the directory of the packages.
    pub(super) fn site_packages(&self) -> PathBuf {
        self.environment().join("lib").join(self.python.name()).join("site-packages")
    }

    /// Returns the directory of the standard library. The interpreter expects it beside itself, in the directory of its configuration.
    pub(super) fn stdlib(&self) -> PathBuf {
        self.root.join("usr").join(&self.python.platlibdir).join(self.python.name())
    }
}
