//! The recipe of an operator's template, and the name of its directory.

use std::ffi::OsString;
use std::path::PathBuf;

use super::host_python::HostPython;
use super::{BUILDER, included, name_of};
use crate::Error;

/// Prefix of the directory names of such templates, followed by a hash of all inputs.
pub(super) const PREFIX: &str = "named-";
/// Modules that one template may preload.
const MAX_PRELOAD: usize = 32;
/// Bytes of the longest path of a module.
const MAX_MODULE: usize = 128;

/// The inputs of an operator's template.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// A requirements file, as pip reads it, if there is one.
    pub requirements: Option<PathBuf>,
    /// True if the packages of the default template come along, in its versions unless the file names others.
    pub with_default: bool,
    /// The interpreter, by path or version; `None` for the host's usual one.
    pub python: Option<OsString>,
    /// Directories of packages that pip looks into besides its index.
    pub find_links: Vec<PathBuf>,
    /// Modules that are imported ahead.
    pub preload: Vec<String>,
    /// True if packages may be built on this host, which runs their code.
    pub allow_source: bool,
    /// Files and directories of this host that it contains at the same paths, with the libraries of their programs.
    pub include: Vec<PathBuf>,
}

impl Recipe {
    /// Checks the names of its modules, and the paths to include.
    pub(super) fn check(&self) -> Result<(), Error> {
        let is_word = |word: &str| {
            let is_first = |letter: char| letter == '_' || letter.is_ascii_alphabetic();
            word.starts_with(is_first) && word.chars().all(|letter| is_first(letter) || letter.is_ascii_digit())
        };
        let is_module = |name: &&String| name.len() > MAX_MODULE || !name.split('.').all(is_word);
        if let Some(name) = self.preload.iter().find(is_module) {
            return Err(Error::Template(format!("--preload {name}: it is no name of a module")));
        }
        if self.preload.len() > MAX_PRELOAD {
            return Err(Error::Template(format!("--preload: a template preloads at most {MAX_PRELOAD} modules")));
        }
        included::check(&self.include)
    }
}

/// The name of such a template, a hash of all inputs.
pub(super) fn directory_name(python: &HostPython, list: &str, recipe: &Recipe) -> Result<String, Error> {
    let (preload, identity, arch) = (recipe.preload.join(","), python.identity(), std::env::consts::ARCH);
    let mut parts = vec![list, &preload, BUILDER, &identity, arch];
    if recipe.with_default {
        // The same packages without this keep their tests and fonts in place.
        parts.push("with default");
    }
    let included;
    if !recipe.include.is_empty() {
        included = included::digest(&recipe.include)?;
        parts.push(&included);
    }
    Ok(name_of(PREFIX, &parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_to_preload_are_names_and_few() {
        let check = |preload: &[&str]| {
            let preload = preload.iter().map(|&name| name.to_owned()).collect();
            let recipe = Recipe {
                requirements: None,
                with_default: false,
                python: None,
                find_links: Vec::new(),
                preload,
                allow_source: false,
                include: Vec::new(),
            };
            recipe.check()
        };
        assert!(check(&["sklearn.ensemble", "_x1"]).is_ok());
        for wrong in ["", ".", "a..b", "a,b", "1a", "a b", "--lean", &"x".repeat(MAX_MODULE + 1)] {
            assert!(check(&[wrong]).is_err(), "{wrong:?}");
        }
        assert!(check(&["x"; MAX_PRELOAD + 1]).is_err());
    }
}
