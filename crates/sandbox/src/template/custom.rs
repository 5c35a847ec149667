//! Templates of the operator's own: packages of their choice, built once, and a name that leads there.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::build::{self, Packages};
use super::host_python::HostPython;
use super::{BUILDER, BuildProgress, Template, TemplateName, UNFINISHED, at, directory, lock, make_directory, name_of};
use super::{remove_unused, tree};
use crate::Error;

/// Prefix of the names of their directories, which are hashes of all that went in.
pub(super) const PREFIX: &str = "named-";
/// The directory of links from names to directories.
const NAMES: &str = "names";
/// Modules that one template may preload.
const MAX_PRELOAD: usize = 32;
/// Bytes of the longest path of a module.
const MAX_MODULE: usize = 128;

/// All that a template of one's own is made from.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// A requirements file, as pip reads it.
    pub requirements: PathBuf,
    /// The interpreter, by its path or version; `None` for the host's usual one.
    pub python: Option<OsString>,
    /// Directories of packages that pip looks into besides its index.
    pub find_links: Vec<PathBuf>,
    /// Modules that are imported before anybody asks.
    pub preload: Vec<String>,
    /// True if packages may be built on this host, by the programs that they bring.
    pub allow_source: bool,
}

impl Recipe {
    fn check(&self) -> Result<(), Error> {
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
        Ok(())
    }
}

/// Builds a template from a recipe, or takes the one that has the same packages; `force` builds it anew. It has no name yet. Blocks.
pub fn build_own(
    data: &Path,
    recipe: &Recipe,
    force: bool,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Template, Error> {
    recipe.check()?;
    let python = recipe.python.as_deref().map_or_else(HostPython::find, HostPython::named)?;
    python.require_venv()?;
    let directory = make_directory(data)?;
    let lock = lock(&directory, progress)?;
    build::build(&python, &directory, &Packages::Own(recipe), force, &lock, progress)
}

/// Tells such templates apart by all that goes into them.
pub(super) fn directory_name(python: &HostPython, list: &str, preload: &[String]) -> String {
    name_of(PREFIX, &[list, &preload.join(","), BUILDER, &python.identity(), std::env::consts::ARCH])
}

/// Gives a template a name. The one that had it goes, unless it is in use or has another name.
pub fn assign(data: &Path, name: &TemplateName, template: &Template) -> Result<(), Error> {
    let directory = make_directory(data)?;
    let _lock = lock(&directory, &mut |_| ())?;
    let names = directory.join(NAMES);
    fs::create_dir_all(&names).map_err(at(&names))?;
    let target = Path::new("..").join(template.root.file_name().unwrap_or_default());
    // Replaced at once, for those who look it up meanwhile. No name of a template begins with a dot.
    let (link, fresh) = (names.join(name.as_str()), names.join(format!("{UNFINISHED}{}", std::process::id())));
    let _left_by_another = fs::remove_file(&fresh);
    symlink(&target, &fresh).map_err(at(&fresh))?;
    fs::rename(&fresh, &link).map_err(at(&link))?;
    remove_nameless(&directory).map(drop)
}

/// Removes a template that got no name. One in use stays until templates are pruned.
pub fn discard(template: Template) -> Result<(), Error> {
    let root = template.root.clone();
    drop(template);
    remove_unused(&root).map(drop)
}

/// Returns the template of this name, from the first of these directories that has it.
pub fn find(directories: &[PathBuf], name: &TemplateName) -> Result<Template, Error> {
    let found = |data: &PathBuf| Template::open(&directory(data).join(NAMES).join(name.as_str()));
    directories.iter().find_map(found).ok_or_else(|| {
        let others = directories.iter().flat_map(|data| names(&directory(data)).unwrap_or_default());
        let others: Vec<_> = others.map(|name| name.to_string()).collect();
        let known = if others.is_empty() { String::new() } else { format!("; there are: {}", others.join(", ")) };
        Error::Template(format!(
            "there is no template `{name}`{known} (`aludel template build --name {name} --requirements FILE` makes it)"
        ))
    })
}

/// Returns the templates of a directory that have names, in their order.
pub fn list(data: &Path) -> Result<Vec<(TemplateName, Template)>, Error> {
    let named = |name: TemplateName| {
        let template = Template::open(&directory(data).join(NAMES).join(name.as_str()))?;
        Some((name, template))
    };
    Ok(names(&directory(data))?.into_iter().filter_map(named).collect())
}

/// Takes a name from a template, which goes if it has no other and is not in use. Returns whether there was one.
pub fn remove(data: &Path, name: &TemplateName) -> Result<bool, Error> {
    let link = directory(data).join(NAMES).join(name.as_str());
    if link.symlink_metadata().is_err() {
        return Ok(false);
    }
    let directory = make_directory(data)?;
    let _lock = lock(&directory, &mut |_| ())?;
    fs::remove_file(&link).map_err(at(&link))?;
    remove_nameless(&directory)?;
    Ok(true)
}

/// The names in a directory of templates, in order.
pub(super) fn names(directory: &Path) -> Result<Vec<TemplateName>, Error> {
    let names = directory.join(NAMES);
    if !names.is_dir() {
        return Ok(Vec::new());
    }
    let entries = tree::entries(&names)?;
    let mut names: Vec<TemplateName> =
        entries.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    names.sort();
    Ok(names)
}

/// Removes templates to which no name leads, unless they are in use, and returns how many. The caller holds the lock.
pub(super) fn remove_nameless(directory: &Path) -> Result<usize, Error> {
    let mut named = Vec::new();
    for name in names(directory)? {
        let link = directory.join(NAMES).join(name.as_str());
        if let Some(target) = fs::read_link(&link).map_err(at(&link))?.file_name() {
            named.push(target.to_owned());
        }
    }
    let mut removed = 0;
    for entry in tree::directories(directory)? {
        let name = entry.file_name();
        let is_nameless = name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) && !named.contains(&name);
        if is_nameless && remove_unused(&entry.path())? {
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::super::MANIFEST;
    use super::*;

    fn make(data: &Path, directory: &str) -> Template {
        let manifest = data.join("templates").join(directory).join(MANIFEST);
        fs::create_dir_all(manifest.parent().unwrap()).unwrap();
        fs::write(manifest, r#"{"python":"3.11.2","packages":[],"lock":"","preload":["geo.x"],"bytes":7}"#).unwrap();
        Template::open(&data.join("templates").join(directory)).unwrap()
    }

    #[test]
    fn a_name_leads_to_its_template_and_what_has_none_goes() {
        let data = tempfile::tempdir().unwrap();
        let name = |text: &str| text.parse::<TemplateName>().unwrap();
        let error = find(&[data.path().to_path_buf()], &name("ml")).unwrap_err().to_string();
        assert!(error.starts_with("there is no template `ml` (`aludel template build"), "{error}");

        let (first, second) = (make(data.path(), "named-1"), make(data.path(), "named-2"));
        assign(data.path(), &name("ml"), &first).unwrap();
        let found = find(&[data.path().to_path_buf()], &name("ml")).unwrap();
        assert_eq!((found.root(), found.preload()), (first.root(), &["geo.x".to_owned()][..]));
        assert!(found.kernel().argv.contains(&"--preload=geo.x".to_owned()));
        let error = find(&[data.path().to_path_buf()], &name("other")).unwrap_err().to_string();
        assert!(error.contains("; there are: ml ("), "{error}");

        // The first is in use by `found`, and goes the next time.
        drop(first);
        assign(data.path(), &name("ml"), &second).unwrap();
        assert_eq!(find(&[data.path().to_path_buf()], &name("ml")).unwrap().root(), second.root());
        assert!(found.root().exists());
        let root = found.root().to_path_buf();
        drop(found);
        assert_eq!(remove_nameless(&directory(data.path())).unwrap(), 1);
        assert!(!root.exists() && second.root().exists());

        let root = second.root().to_path_buf();
        drop(second);
        assert_eq!(list(data.path()).unwrap().len(), 1);
        assert!(remove(data.path(), &name("ml")).unwrap() && !remove(data.path(), &name("ml")).unwrap());
        assert!(!root.exists() && list(data.path()).unwrap().is_empty());
    }

    #[test]
    fn modules_to_preload_are_names_and_few() {
        let check = |preload: &[&str]| {
            let preload = preload.iter().map(|&name| name.to_owned()).collect();
            let recipe = Recipe {
                requirements: PathBuf::new(),
                python: None,
                find_links: Vec::new(),
                preload,
                allow_source: false,
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
