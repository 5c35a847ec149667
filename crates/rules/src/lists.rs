//! Names that mean something to the reader of programs, as data.

use std::collections::HashSet;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::dotted::first;

/// The lists of `lists.toml`, which says what is in each of them.
pub(crate) static LISTS: LazyLock<Lists> =
    LazyLock::new(|| toml::from_str(include_str!("lists.toml")).expect("the lists are right: every test reads them"));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lists {
    python_modules: HashSet<String>,
    template_packages: HashSet<String>,
    pub(crate) builtins: HashSet<String>,
    pub(crate) name_takers: HashSet<String>,
    pub(crate) reaching_attributes: HashSet<String>,
    pub(crate) file_openers: Vec<String>,
    pub(crate) opening_methods: Vec<String>,
    pub(crate) address_fetchers: Vec<String>,
    pub(crate) text_sources: Vec<String>,
    pub(crate) databases: HashSet<String>,
    pub(crate) backends: HashSet<String>,
    pub(crate) steering_variables: HashSet<String>,
    pub(crate) text_readers: Vec<String>,
    pub(crate) own_paths: Vec<String>,
    pub(crate) system_directories: HashSet<String>,
    pub(crate) harmless_magics: HashSet<String>,
    pub(crate) timing_magics: HashSet<String>,
    pub(crate) automatic_magics: HashSet<String>,
}

impl Lists {
    /// Returns true if Python itself or the default template has the module of a dotted name.
    pub(crate) fn is_known_module(&self, path: &str) -> bool {
        [&self.python_modules, &self.template_packages].iter().any(|modules| modules.contains(first(path)))
    }

    /// Returns true if Python itself has a module of this name, with or without an underscore.
    pub(crate) fn is_python_module(&self, name: &str) -> bool {
        self.python_modules.contains(name.trim_matches('_'))
    }
}
