//! Templates of the operator: packages of their choice, built once, with a name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use aludel_ignore::Ignore;

use super::build::{self, Packages};
use super::host_python::HostPython;
use super::recipe::{PREFIX, Recipe};
use super::{BuildCancellation, BuildProgress, Template, TemplateName, UNFINISHED, at, directory, lock, lock_unless};
use super::{make_directory, remove_unused, tree};
use crate::Error;

/// The directory of links from names to directories.
const NAMES: &str = "names";

/// Builds a template from a recipe, or takes the existing one with the same packages; `force` builds it anew. It has no name yet. Fails
/// when the request comes to end the build. Blocks.
pub fn build_own(
    data: &Path,
    recipe: &Recipe,
    force: bool,
    cancellation: Option<&BuildCancellation>,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Template, Error> {
    recipe.check()?;
    let python = recipe.python.as_deref().map_or_else(HostPython::find, HostPython::named)?;
    python.require_venv()?;
    let directory = make_directory(data)?;
    let lock = lock_unless(&directory, cancellation, progress)?;
    build::build(&python, &directory, &Packages::Own(recipe), force, &lock, progress)
}

/// Gives a template a name. The template that had the name is removed, unless it is in use or has another name.
pub fn assign(data: &Path, name: &TemplateName, template: &Template) -> Result<(), Error> {
    let directory = make_directory(data)?;
    let _lock = lock(&directory, &mut |_| ())?;
    let names = directory.join(NAMES);
    fs::create_dir_all(&names).map_err(at(&names))?;
    let target = Path::new("..").join(template.root.file_name().unwrap_or_default());
    // Replaced atomically, for concurrent readers. Names of templates never begin with a dot.
    let (link, fresh) = (names.join(name.as_str()), names.join(format!("{UNFINISHED}{}", std::process::id())));
    fs::remove_file(&fresh).ignore("an earlier process may have left it");
    symlink(&target, &fresh).map_err(at(&fresh))?;
    fs::rename(&fresh, &link).map_err(at(&link))?;
    remove_nameless(&directory).map(drop)
}

/// Removes a template without a name. If it is in use, it stays until templates are pruned.
pub fn discard(template: Template) -> Result<(), Error> {
    let root = template.root.clone();
    drop(template);
    remove_unused(&root).map(drop)
}

/// Returns the template of this name from the first of these directories that has it.
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

/// Returns the named templates of a directory, sorted by name.
pub fn list(data: &Path) -> Result<Vec<(TemplateName, Template)>, Error> {
    let named = |name: TemplateName| {
        let template = Template::open(&directory(data).join(NAMES).join(name.as_str()))?;
        Some((name, template))
    };
    Ok(names(&directory(data))?.into_iter().filter_map(named).collect())
}

/// Removes a name, and its template if it has no other and is not in use. Returns false if there was no such name.
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

/// Removes templates without a name, unless they are in use, and returns their number. The caller holds the lock.
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

        // The first is in use by `found`, and is removed the next time.
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
}
