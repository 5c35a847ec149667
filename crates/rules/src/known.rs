//! Meanings of an interpreter's names, program after program, within bounds.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::dotted::tails;
use crate::lists::LISTS;
use crate::meaning::{MAX_MEANINGS, Meaning, Meanings};

/// Bytes that are remembered of one interpreter.
const MAX_BYTES: usize = 4 << 20;
/// The longest text that is remembered.
const MAX_TEXT: usize = 4 << 10;
/// Bytes of statements that are remembered because they define functions.
const MAX_FUNCTIONS: usize = 256 << 10;
/// Cost of an entry besides its text.
const ENTRY: usize = 64;

/// A statement of an earlier program that defines something which may run later.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) code: String,
    /// Its acts as they were judged, hashed.
    pub(crate) done: HashSet<u64>,
}

/// Something that has meanings.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Holder<'a> {
    /// A name, in whatever scope.
    Name(&'a str),
    /// An attribute of this name, of whatever object.
    Attribute(&'a str),
}

/// Meanings of an interpreter's names after the programs that it ran.
#[derive(Debug, Clone, Default)]
pub struct Known {
    names: HashMap<String, Meanings>,
    attributes: HashMap<String, Meanings>,
    /// Modules of which everything was imported.
    pub(crate) stars: BTreeSet<String>,
    /// Modules that were imported as such.
    modules: BTreeSet<String>,
    /// Python files that programs named, without their endings: they may have written them.
    files: BTreeSet<String>,
    /// Values that were used where names cannot follow them: they may be reached from anywhere.
    escaped: BTreeSet<Meaning>,
    /// Those of them that the last program used so.
    escaped_now: BTreeSet<Meaning>,
    functions: Vec<Function>,
    bytes: usize,
    /// True if names may mean something unknown: a program could not be read, or there was too much to remember.
    pub(crate) is_lost: bool,
}

impl Known {
    /// Returns the meanings that were given to something.
    pub(crate) fn meanings(&self, of: Holder<'_>) -> Option<&Meanings> {
        match of {
            Holder::Name(name) => self.names.get(name),
            Holder::Attribute(name) => self.attributes.get(name),
        }
    }

    /// Gives something meanings beside those that it has, or makes it unknown if it is `settled` which ones there are. Returns true if one
    /// is new.
    pub(crate) fn bind(&mut self, to: Holder<'_>, meanings: &Meanings, settled: bool) -> bool {
        let (Holder::Name(name) | Holder::Attribute(name)) = to;
        let before = self.holders(to).remove(name);
        if before.is_none() && !self.has_room(name.len()) {
            return meanings.iter().filter(|meaning| self.escape(meaning)).count() > 0;
        }
        let mut all = before.unwrap_or_default();
        let mut is_new = false;
        for meaning in meanings {
            if all.contains(meaning) {
                continue;
            }
            let is_wanted = !settled && all.len() < MAX_MEANINGS && meaning.size() <= MAX_TEXT;
            // Everything could be reached by a table that is forgotten.
            let is_kept =
                *meaning == Meaning::Unknown || ((is_wanted || meaning.is_table()) && self.has_room(meaning.size()));
            if is_kept {
                is_new |= all.insert(meaning.clone());
            } else {
                // It may be anywhere.
                is_new |= all.insert(Meaning::Unknown) | self.escape(meaning);
            }
        }
        self.holders(to).insert(name.to_owned(), all);
        is_new
    }

    fn holders(&mut self, of: Holder<'_>) -> &mut HashMap<String, Meanings> {
        match of {
            Holder::Name(_) => &mut self.names,
            Holder::Attribute(_) => &mut self.attributes,
        }
    }

    /// Remembers that a value may be reached from anywhere now. Returns true if that is new.
    pub(crate) fn escape(&mut self, value: &Meaning) -> bool {
        let Some(value) = value.escaped(|name| LISTS.is_python_module(name)) else { return false };
        let is_new = !self.escaped.contains(&value);
        if is_new && !self.has_room(value.size()) {
            return false;
        }
        self.escaped_now.insert(value.clone());
        self.escaped.insert(value)
    }

    /// Every module that was imported may be reached from anywhere, and `os` by way of most of them. Returns true if that is new.
    pub(crate) fn escape_modules(&mut self) -> bool {
        let modules: Vec<String> = self.modules.iter().cloned().chain(["os".to_owned()]).collect();
        modules.into_iter().filter(|module| self.escape(&Meaning::Path(module.clone()))).count() > 0
    }

    /// Returns the values that escaped in any program.
    pub(crate) fn escaped(&self) -> Escaped<'_> {
        Escaped::new(&self.escaped, &self.modules)
    }

    /// Returns the values that escaped in the last program.
    pub(crate) fn escaped_now(&self) -> Escaped<'_> {
        Escaped::new(&self.escaped_now, &self.modules)
    }

    /// Begins a program. Returns the functions that earlier ones defined: they have to be kept again.
    pub(crate) fn begin(&mut self) -> Vec<Function> {
        self.escaped_now.clear();
        std::mem::take(&mut self.functions)
    }

    /// Keeps what was defined, as far as there is room.
    pub(crate) fn keep_functions(&mut self, functions: impl Iterator<Item = Function>) {
        let mut room = MAX_FUNCTIONS;
        for function in functions {
            if let Some(same) = self.functions.iter_mut().find(|same| same.code == function.code) {
                // An act that was found once only was not allowed for the other.
                same.done.retain(|done| function.done.contains(done));
                continue;
            }
            let size = function.code.len() + function.done.len() * size_of::<u64>();
            if size > room {
                self.is_lost = true;
                break;
            }
            room -= size;
            self.functions.push(function);
        }
    }

    /// Remembers that a module was imported.
    pub(crate) fn import(&mut self, module: &str) {
        if !self.modules.contains(module) && self.has_room(module.len()) {
            self.modules.insert(module.to_owned());
        }
    }

    /// Remembers that everything of a module was imported. Returns true if that is new.
    pub(crate) fn import_all(&mut self, module: &str) -> bool {
        !self.stars.contains(module) && self.has_room(module.len()) && self.stars.insert(module.to_owned())
    }

    /// Remembers that a Python file was named.
    pub(crate) fn write(&mut self, module: &str) {
        if !self.files.contains(module) && self.has_room(module.len()) {
            self.files.insert(module.to_owned());
        }
    }

    /// Returns true if a module may be a file that a program wrote.
    pub(crate) fn wrote(&self, module: &str) -> bool {
        self.files.contains(module)
    }

    /// Takes room for an entry of so many bytes.
    fn has_room(&mut self, bytes: usize) -> bool {
        if self.bytes + bytes + ENTRY > MAX_BYTES {
            self.is_lost = true;
            return false;
        }
        self.bytes += bytes + ENTRY;
        true
    }
}

/// Values that may be reached from anywhere.
#[derive(Debug)]
pub(crate) struct Escaped<'a> {
    /// The ends of their names: `path` and `os.path`.
    pub(crate) ends: HashSet<&'a str>,
    /// True if one may be a module.
    pub(crate) is_module: bool,
}

impl<'a> Escaped<'a> {
    fn new(values: &'a BTreeSet<Meaning>, modules: &BTreeSet<String>) -> Self {
        let is_module = |value: &Meaning| matches!(value, Meaning::Path(path) if modules.contains(path) || LISTS.may_be_module(path));
        Self {
            ends: values.iter().filter_map(Meaning::origin).flat_map(tails).collect(),
            is_module: values.iter().any(is_module),
        }
    }
}
