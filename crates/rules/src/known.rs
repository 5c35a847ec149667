//! Meanings of an interpreter's names, program after program, within bounds.

use std::collections::{BTreeMap, HashMap};

use crate::lists::LISTS;
use crate::meaning::Meaning;

/// Bytes that are remembered of one interpreter.
const MAX_BYTES: usize = 4 << 20;
/// Cost of an entry besides its text.
const ENTRY: usize = 64;
/// Modules of which everything was imported.
const MAX_STARS: usize = 32;

/// Attribute whose name is not known.
pub(crate) const COMPUTED: &str = "?";

/// Names, each with the number of the last program that used it.
type Uses = BTreeMap<String, usize>;

/// Meanings of an interpreter's names after the programs that it ran.
#[derive(Debug, Clone, Default)]
pub struct Known {
    names: HashMap<String, Meaning>,
    /// Modules of which everything was imported.
    pub(crate) stars: Vec<String>,
    /// Modules, and other things that are on no list, that were put into a list or given to a function: names cannot follow them.
    pub(crate) values: Uses,
    /// Attributes of anything.
    pub(crate) attributes: Uses,
    /// Programs so far, the one that is read among them.
    pub(crate) programs: usize,
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
        let before = self.names.get(name).cloned();
        let now = before.clone().map_or_else(|| meaning.clone(), |before| before.or(meaning.clone()));
        if before.as_ref() != Some(&now) && self.has_room(name.len() + now.size()) {
            self.names.insert(name.to_owned(), now);
        }
        before.filter(|before| before != meaning).map(|before| [before, meaning.clone()])
    }

    /// Remembers that everything of a module was imported.
    pub(crate) fn import_all(&mut self, module: &str) {
        if !self.stars.iter().any(|star| star == module) && self.has_room(module.len()) {
            self.is_lost |= self.stars.len() == MAX_STARS;
            self.stars.push(module.to_owned());
            self.stars.truncate(MAX_STARS);
        }
    }

    /// Remembers that the program uses a name.
    pub(crate) fn keep(&mut self, uses: fn(&mut Self) -> &mut Uses, name: &str) {
        if uses(self).contains_key(name) || self.has_room(name.len()) {
            let program = self.programs;
            uses(self).insert(name.to_owned(), program);
        }
    }

    /// Takes room for an entry of so many bytes.
    fn has_room(&mut self, bytes: usize) -> bool {
        self.bytes += bytes + ENTRY;
        self.is_lost |= self.bytes > MAX_BYTES;
        self.bytes <= MAX_BYTES
    }

    /// Returns true if a thing that a pattern names may be reached by attributes of values, and was not so before this program.
    pub(crate) fn reaches(&self, pattern: &str) -> bool {
        if !pattern.contains('.') {
            // Any value may be, or have, the module.
            return self.is_new([self.attribute(pattern), self.values.values().max().copied()]);
        }
        pattern.match_indices('.').any(|(at, _)| {
            let names = pattern[at + 1..].split('.').map(|name| self.attribute(name));
            self.is_new(names.chain([self.value(&pattern[..at])]))
        })
    }

    /// Returns true if there are all of these uses, and this program is the last of one.
    fn is_new(&self, uses: impl IntoIterator<Item = Option<usize>>) -> bool {
        let uses: Option<Vec<usize>> = uses.into_iter().collect();
        uses.is_some_and(|programs| programs.contains(&self.programs))
    }

    /// The last use of a value, or of an attribute that may be it: many a module has modules of Python as its attributes.
    fn value(&self, value: &str) -> Option<usize> {
        let attribute = self.attributes.get(value).filter(|_| LISTS.is_python_module(value));
        self.values.get(value).max(attribute).copied()
    }

    /// The last use of an attribute, or of any that begins as it does before a `*`.
    fn attribute(&self, name: &str) -> Option<usize> {
        let Some(beginning) = name.strip_suffix('*') else { return self.attributes.get(name).copied() };
        let from = self.attributes.range(beginning.to_owned()..);
        from.take_while(|(name, _)| name.starts_with(beginning)).map(|(_, program)| *program).max()
    }
}
