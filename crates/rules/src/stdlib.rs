//! Modules of Python and of the default template.

use std::collections::HashSet;
use std::sync::LazyLock;

static STDLIB: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("stdlib.txt").lines().collect());
static PACKAGED: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("packages.txt").lines().collect());
/// Packages of Python's own whose members may be modules, too.
const PACKAGES: [&str; 19] = [
    "asyncio",
    "concurrent",
    "ctypes",
    "curses",
    "dbm",
    "distutils",
    "email",
    "encodings",
    "html",
    "http",
    "importlib",
    "lib2to3",
    "logging",
    "multiprocessing",
    "tkinter",
    "unittest",
    "urllib",
    "wsgiref",
    "xml",
];

/// Returns true if Python itself has a module of this name.
pub(crate) fn has(name: &str) -> bool {
    STDLIB.contains(name)
}

/// Returns true if the default template has a package of this name.
pub(crate) fn has_package(name: &str) -> bool {
    PACKAGED.contains(name)
}

/// Returns true if a dotted name may be one of a module of Python's own, by its spelling.
pub(crate) fn may_be_a_module(path: &str) -> bool {
    let (first, last) = (path.split('.').next().unwrap_or_default(), path.rsplit('.').next().unwrap_or_default());
    let is_value = path.contains("()") || first == "builtins" || last.chars().any(char::is_uppercase);
    !is_value && (has(last.trim_matches('_')) || PACKAGES.contains(&first) || path == "os.path")
}
