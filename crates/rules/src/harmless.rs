//! Public names of Python's own modules and of the default template's packages, without those that load code, start processes or open
//! connections.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::dotted::outwards;

/// Names of each module, in order; `cm=matplotlib.cm` is a module by another name, and `COLOR_*` stands for constants that begin so.
static MODULES: LazyLock<HashMap<&str, Vec<&str>>> = LazyLock::new(|| {
    let mut modules: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut module = "";
    for line in include_str!("harmless.txt").lines() {
        module = if line.starts_with(' ') { module } else { line };
        modules
            .entry(module)
            .or_default()
            .extend(line.strip_prefix(' ').into_iter().flat_map(|names| names.split(' ')));
    }
    modules
});

/// Returns true if a dotted name is one of a listed module itself.
pub(crate) fn is_module(path: &str) -> bool {
    MODULES.contains_key(path)
}

/// Returns true if a dotted name is one of a listed module, of a name in it, or of something public inside of that.
pub(crate) fn has(path: &str) -> bool {
    let is_private = |name: &str| name.starts_with('_') && !name.ends_with("__");
    let Some(module) = outwards(path).find(|path| is_module(path)) else { return false };
    let below = path.get(module.len() + 1..).unwrap_or_default();
    let (name, inside) = below.split_once('.').map_or((below, None), |(name, inside)| (name, Some(inside)));
    if path.split('.').any(is_private) {
        return false;
    }
    if path == module || name.starts_with("__") {
        return true;
    }
    // A module has the names of the packages around it, too.
    let constants = name.split_once('_').map(|(beginning, _)| format!("{beginning}_*"));
    let listed = outwards(module).filter_map(|module| MODULES.get(module)).find_map(|names| {
        let entry = |name| {
            let at = names.binary_search_by_key(&name, |listed| listed.split('=').next().unwrap_or_default());
            at.ok().and_then(|at| names.get(at))
        };
        entry(name).or_else(|| entry(constants.as_deref()?))
    });
    match (listed.map(|listed| listed.split_once('=')), inside) {
        (Some(Some((_, module))), Some(inside)) => has(&format!("{module}.{inside}")),
        (listed, _) => listed.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_listed_modules_are_found() {
        for name in [
            "numpy",
            "numpy.linalg.svd",
            "pandas.DataFrame.from_dict",
            "matplotlib.pyplot.cm.viridis",
            "os.path.join",
            "networkx.algorithms.shortest_path",
            "datetime.datetime.now",
            "pandas.__version__",
            "cv2.COLOR_BGR2GRAY",
        ] {
            assert!(has(name), "{name}");
        }
        for name in [
            "numpy.os",
            "matplotlib.pyplot.cm.mpl.os",
            "matplotlib._get_executable_info",
            "pandas.compat",
            "json.codecs",
            "elsewhere.x",
        ] {
            assert!(!has(name), "{name}");
        }
    }
}
