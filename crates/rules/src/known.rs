//! Meanings of an interpreter's names, program after program, within bounds.

use std::collections::{BTreeSet, HashMap};

use crate::lists::LISTS;
use crate::meaning::Meaning;

/// Bytes that are remembered of one interpreter.
const MAX_BYTES: usize = 4 << 20;
/// Cost of an entry besides its text.
const ENTRY: usize = 64;
/// Modules of which everything was imported.
const MAX_STARS: usize = 32;

/// Meanings of an interpreter's names after the programs that it ran.
#[derive(Debug, Clone, Default)]
pub struct Known {
    names: HashMap<String, Meaning>,
    /// Modules of which everything was imported.
    pub(crate) stars: Vec<String>,
    /// Python files that programs named, without their endings: they may have written them.
    pub(crate) files: BTreeSet<String>,
    /// Values and attributes of all programs.
    pub(crate) reach: Reach,
    bytes: usize,
    /// True if names may mean something unknown: a program could not be read, or there was too much to remember.
    pub(crate) is_lost: bool,
}

impl Known {
    pub(crate) fn meaning(&self, name: &str) -> Option<&Meaning> {
        self.names.get(name)
    }

    /// Gives a name a meaning. If it had another one, it means either from now on: both are returned, as names cannot follow them any more.
    pub(crate) fn bind(&mut self, name: &str, meaning: &Meaning) -> Option<[Meaning; 2]> {
        let Some(before) = self.names.get(name).cloned() else {
            if self.has_room(name.len() + meaning.size()) {
                self.names.insert(name.to_owned(), meaning.clone());
            }
            return None;
        };
        let now = before.clone().or(meaning.clone());
        if now != before && self.has_room(now.size().saturating_sub(before.size())) {
            self.names.insert(name.to_owned(), now);
        }
        (before != *meaning).then(|| [before, meaning.clone()])
    }

    /// Remembers that everything of a module was imported.
    pub(crate) fn import_all(&mut self, module: &str) {
        if !self.stars.iter().any(|star| star == module) && self.has_room(module.len()) {
            self.is_lost |= self.stars.len() == MAX_STARS;
            self.stars.push(module.to_owned());
            self.stars.truncate(MAX_STARS);
        }
    }

    /// Remembers a name of one of the sets.
    pub(crate) fn keep(&mut self, set: fn(&mut Self) -> &mut BTreeSet<String>, name: &str) {
        if !set(self).contains(name) && self.has_room(name.len()) {
            set(self).insert(name.to_owned());
        }
    }

    /// Takes room for an entry of so many bytes.
    fn has_room(&mut self, bytes: usize) -> bool {
        self.bytes += bytes + ENTRY;
        self.is_lost |= self.bytes > MAX_BYTES;
        self.bytes <= MAX_BYTES
    }
}

/// Values that names cannot follow, and attributes by which any of them may be reached.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reach {
    /// Modules, and other things that are on no list, that were put into a list or given to a function.
    pub(crate) values: BTreeSet<String>,
    /// Attributes of anything.
    pub(crate) names: BTreeSet<String>,
    /// True if there was an attribute whose name is not known.
    pub(crate) has_computed: bool,
}

impl Reach {
    /// Returns true if a program that adds `self` to what `all` programs did may reach a thing that a pattern names.
    pub(crate) fn reaches(&self, all: &Self, pattern: &str) -> bool {
        if !pattern.contains('.') {
            let (own, any) = (self.names.contains(pattern), all.names.contains(pattern));
            return own && !all.values.is_empty() || any && !self.values.is_empty();
        }
        pattern.match_indices('.').any(|(at, _)| {
            let (value, rest) = (&pattern[..at], &pattern[at + 1..]);
            self.has_value(value) && all.has_names(rest) || all.has_value(value) && self.has_names(rest)
        })
    }

    /// Returns true if a value whose name is not known may be an attribute of one of these.
    pub(crate) fn reaches_any(&self, all: &Self) -> bool {
        self.has_computed && !all.values.is_empty() || all.has_computed && !self.values.is_empty()
    }

    /// Returns true if a value is there, or may be: many a module has modules of Python as its attributes.
    fn has_value(&self, value: &str) -> bool {
        self.values.contains(value) || (LISTS.is_python_module(value) && self.names.contains(value))
    }

    fn has_names(&self, names: &str) -> bool {
        names.split('.').all(|name| match name.strip_suffix('*') {
            Some(beginning) => {
                self.names.range(beginning.to_owned()..).next().is_some_and(|name| name.starts_with(beginning))
            }
            None => self.names.contains(name),
        })
    }
}
