//! Groups of things that programs do, as data.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::dotted::fits;

/// A group of modules, functions and attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Group {
    /// Other machines.
    Network,
    /// Other programs, and shells.
    Processes,
    /// Code that is made while the program runs, or read from data: `eval`, `pickle` and the like.
    Code,
    /// Machine code and memory.
    Native,
    /// The inside of Python: frames, closures, all subclasses.
    Introspection,
    /// Taking files away.
    Deletion,
    /// Files outside of `/mnt/data` and `/tmp`, where the program's text names them.
    Hostfiles,
}

/// Members of a group: `import` has modules with everything below them, `call` has names of functions and classes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Members {
    pub(crate) import: Vec<String>,
    pub(crate) call: Vec<String>,
    pub(crate) attribute: Vec<String>,
}

static MEMBERS: LazyLock<HashMap<Group, Members>> =
    LazyLock::new(|| toml::from_str(include_str!("groups.toml")).expect("the groups are right: every test reads them"));

impl Group {
    pub(crate) fn members(self) -> &'static Members {
        MEMBERS.get(&self).expect("each group is in the list: a test reads them")
    }

    /// Returns true if a name belongs to a group: the rules say what becomes of it.
    pub(crate) fn any_has(name: &str) -> bool {
        MEMBERS.values().any(|members| members.call.iter().chain(&members.import).any(|pattern| fits(name, pattern)))
    }
}
