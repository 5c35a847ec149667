//! Meanings of an interpreter's names, program after program, within bounds.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::meaning::{MAX_MEANINGS, Meaning, Meanings};
use crate::stdlib;

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

/// Meanings of an interpreter's names after the programs that it ran.
#[derive(Debug, Clone, Default)]
pub struct Known {
    names: HashMap<String, Meanings>,
    /// Values stored under an attribute's name, in whatever object.
    attributes: HashMap<String, Meanings>,
    /// Modules of which everything was imported.
    stars: BTreeSet<String>,
    /// Modules that were imported as such.
    modules: BTreeSet<String>,
    /// Python files that programs named: they may have written them.
    files: BTreeSet<String>,
    /// Names that were handed on as a value.
    handed: BTreeSet<String>,
    /// Those of it that the last program handed on.
    handed_now: BTreeSet<String>,
    functions: Vec<Function>,
    bytes: usize,
    is_lost: bool,
}

impl Known {
    /// Returns true if names may mean something unknown: a program could not be read, or there was too much to remember.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    pub(crate) fn set_lost(&mut self, is_lost: bool) {
        self.is_lost = is_lost;
    }

    pub(crate) fn of_name(&self, name: &str) -> Option<&Meanings> {
        self.names.get(name)
    }

    pub(crate) fn of_attribute(&self, name: &str) -> Option<&Meanings> {
        self.attributes.get(name)
    }

    pub(crate) fn stars(&self) -> impl Iterator<Item = &str> {
        self.stars.iter().map(String::as_str)
    }

    /// Names that were handed on as a value.
    pub(crate) fn handed(&self) -> &BTreeSet<String> {
        &self.handed
    }

    /// Names that the last program handed on.
    pub(crate) fn handed_now(&self) -> &BTreeSet<String> {
        &self.handed_now
    }

    /// A new program begins.
    pub(crate) fn begin(&mut self) {
        self.handed_now.clear();
    }

    /// Returns true if something may be a module, by its name.
    pub(crate) fn may_be_a_module(&self, path: &str) -> bool {
        self.modules.contains(path) || stdlib::may_be_a_module(path)
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        if self.bytes + bytes > MAX_BYTES {
            self.is_lost = true;
            return false;
        }
        self.bytes += bytes;
        true
    }

    /// Gives a name meanings beside those that it has, or makes it unknown if it is `settled` which ones there are. Whether that is new.
    pub(crate) fn bind(&mut self, name: &str, meanings: &Meanings, settled: bool) -> bool {
        let mut names = std::mem::take(&mut self.names);
        let is_new = self.bind_in(&mut names, name, meanings, settled);
        self.names = names;
        is_new
    }

    /// The same for an attribute of any object.
    pub(crate) fn bind_attribute(&mut self, name: &str, meanings: &Meanings, settled: bool) -> bool {
        let mut attributes = std::mem::take(&mut self.attributes);
        let is_new = self.bind_in(&mut attributes, name, meanings, settled);
        self.attributes = attributes;
        is_new
    }

    fn bind_in(&mut self, all: &mut HashMap<String, Meanings>, name: &str, more: &Meanings, settled: bool) -> bool {
        if let Some(of) = all.get_mut(name) {
            return self.join(of, more, settled);
        }
        if !self.has_room(name.len() + ENTRY) {
            return self.forget(more);
        }
        self.join(all.entry(name.to_owned()).or_default(), more, settled)
    }

    fn join(&mut self, of: &mut Meanings, more: &Meanings, settled: bool) -> bool {
        let mut is_new = false;
        for meaning in more {
            if of.contains(meaning) {
                continue;
            }
            let size = meaning.size();
            let is_kept = *meaning == Meaning::Unknown
                || (!settled && of.len() < MAX_MEANINGS && size <= MAX_TEXT && self.has_room(size + ENTRY));
            if is_kept {
                is_new |= of.insert(meaning.clone());
            } else {
                is_new |= of.insert(Meaning::Unknown);
                is_new |= self.forget(&Meanings::from([meaning.clone()]));
            }
        }
        is_new
    }

    /// Counts names that are no longer remembered as handed on, for they may be anywhere; returns true if one is new.
    fn forget(&mut self, meanings: &Meanings) -> bool {
        let mut is_new = false;
        for meaning in meanings {
            if let Meaning::Path(path) = meaning {
                is_new |= self.hand_on(path);
            }
        }
        is_new
    }

    /// Something is used as a value: it may be reached from anywhere now. Whether that is new.
    pub(crate) fn hand_on(&mut self, path: &str) -> bool {
        // Of what is inside of an object nothing is known but that it may be a module.
        let inside = path.starts_with(['?', '*']) || (path.contains("()") && !path.ends_with("()"));
        let last = path.rsplit('.').next().unwrap_or_default();
        let path = match inside {
            true if stdlib::has(last.trim_matches('_')) => format!("?.{last}"),
            true => return false,
            false => path.to_owned(),
        };
        let is_new = Self::insert(&mut self.handed, path.clone(), &mut self.bytes, &mut self.is_lost);
        if self.handed.contains(&path) {
            self.handed_now.insert(path);
        }
        is_new
    }

    /// Every module that was imported may be reached from anywhere, and `os` by way of most of them.
    pub(crate) fn hand_on_modules(&mut self) -> bool {
        let modules: Vec<String> = self.modules.iter().cloned().chain(["os".to_owned()]).collect();
        modules.iter().filter(|module| self.hand_on(module)).count() > 0
    }

    pub(crate) fn import(&mut self, module: &str) {
        Self::insert(&mut self.modules, module.to_owned(), &mut self.bytes, &mut self.is_lost);
    }

    /// Takes the functions that earlier programs defined: they have to be put back.
    pub(crate) fn take_functions(&mut self) -> Vec<Function> {
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

    /// A Python file was named.
    pub(crate) fn write(&mut self, file: &str) {
        Self::insert(&mut self.files, file.to_owned(), &mut self.bytes, &mut self.is_lost);
    }

    /// Returns true if a module may be a file that a program wrote.
    pub(crate) fn wrote(&self, module: &str) -> bool {
        self.files.contains(module)
    }

    /// Everything of a module was imported.
    pub(crate) fn import_all(&mut self, module: &str) -> bool {
        Self::insert(&mut self.stars, module.to_owned(), &mut self.bytes, &mut self.is_lost)
    }

    fn insert(into: &mut BTreeSet<String>, path: String, bytes: &mut usize, is_lost: &mut bool) -> bool {
        if into.contains(&path) {
            return false;
        }
        if *bytes + path.len() + ENTRY > MAX_BYTES {
            *is_lost = true;
            return false;
        }
        *bytes += path.len() + ENTRY;
        into.insert(path)
    }
}
