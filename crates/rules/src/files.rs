//! Files and addresses of the network that a program names to what opens them.

use crate::act::Act;
use crate::meaning::{Meaning, Meanings};
use crate::reader::Reader;

/// Functions that open files by their names, besides everything else that is given one of the system's.
const OPENERS: [&str; 12] = [
    "builtins.open",
    "io.",
    "os.",
    "pathlib.",
    "shutil.",
    "glob.",
    "codecs.open",
    "pandas.",
    "numpy.",
    "posix.",
    "tarfile.",
    "zipfile.",
];
/// Functions that fetch addresses.
const FETCHERS: [&str; 15] = [
    "pandas.",
    "numpy.",
    "imageio",
    "skimage.io",
    "lxml.",
    "sklearn.",
    "statsmodels.",
    "duckdb",
    "pyarrow",
    "plotly.",
    "seaborn.",
    "PIL.",
    "matplotlib.",
    "cv2.",
    "xml.",
];
/// Names of methods that open something.
const OPENING: [&str; 13] =
    ["open", "read", "load", "fetch", "save", "write", "to_", "tofile", "export", "dump", "glob", "rglob", "joinpath"];
/// Functions that only look at texts.
const LOOKERS: [&str; 3] = ["re.", "builtins.str", "os.path.basename"];
/// Directories in which programs may work.
const OWN: [&str; 4] = ["/mnt/data", "/tmp", "/dev/null", "/dev/shm"];
/// Directories of the system's files.
const SYSTEM: [&str; 16] = [
    "bin", "boot", "dev", "etc", "home", "lib", "lib64", "mnt", "opt", "proc", "root", "run", "sbin", "srv", "sys",
    "usr",
];

impl Reader<'_> {
    /// Notes files outside and addresses that something is given.
    pub(crate) fn files_and_addresses(&mut self, callee: &Meanings, argument: &Meanings, at: usize) {
        let names: Vec<&str> = callee
            .iter()
            .filter_map(|meaning| match meaning {
                Meaning::Path(name) if !LOOKERS.iter().any(|looker| name.starts_with(looker)) => Some(name.as_str()),
                _ => None,
            })
            .filter(|name| opens(name))
            .collect();
        if names.is_empty() {
            return;
        }
        let is_of = |list: &[&str]| names.iter().any(|name| list.iter().any(|beginning| name.starts_with(beginning)));
        for meaning in argument {
            let (Meaning::Text(text) | Meaning::Beginning(text)) = meaning else { continue };
            if is_outside(text, is_of(&OPENERS)) && (is_of(&OPENERS) || names.iter().any(|name| !name.starts_with('?')))
            {
                self.note(at, Act::Hostfile(text.clone()));
            }
            let scheme = text.split_once("://").map(|(scheme, _)| scheme);
            let is_address = scheme.is_some_and(|scheme| {
                !scheme.is_empty()
                    && scheme != "file"
                    && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
            });
            if is_address && is_of(&FETCHERS) {
                self.note(at, Act::Address(text.clone()));
            }
            if text.starts_with("file:") && is_of(&FETCHERS) {
                self.note(at, Act::Hostfile(text.clone()));
            }
        }
    }
}

/// Returns true if a call of this name may open its argument: functions of modules, and methods of such a name.
fn opens(name: &str) -> bool {
    let method = name.rsplit('.').next().unwrap_or_default();
    !name.contains("()") || name.ends_with("()") || OPENING.iter().any(|beginning| method.starts_with(beginning))
}

/// Returns true if a text names a file outside. A function that opens nothing may be given texts that only look like one.
fn is_outside(text: &str, is_opener: bool) -> bool {
    let own = |own: &str| text.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let first = text.strip_prefix('/').map(|rest| rest.trim_start_matches('/').split('/').next().unwrap_or_default());
    let is_absolute = first.is_some_and(|first| SYSTEM.contains(&first) || (is_opener && text.len() > 1))
        && !OWN.iter().any(|path| own(path));
    let is_home = text == "~" || text.starts_with("~/") || text.starts_with("~root");
    let is_above = text.split('/').any(|part| part == "..");
    is_absolute || (is_opener && (is_home || text == "/")) || (is_above && (is_opener || text.starts_with('/')))
}
