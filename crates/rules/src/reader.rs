//! Reading a program: what it does, as far as that can be seen.
//!
//! Names are followed without regard to order and scope: what a name may mean anywhere, it may mean everywhere, and so may an attribute.
//! That errs on the side of seeing too much. A value that is used where names cannot follow it, such as a module in a list, *escapes*: it
//! is remembered, and every attribute of something unknown may be one of its own.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use ruff_python_ast::visitor::Visitor as _;
use ruff_python_ast::{IpyEscapeKind, Mod};
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::Ranged as _;

use crate::act::{Act, Seen};
use crate::dotted::first;
use crate::ipython::{automatic, has_prompts};
use crate::known::{Function, Known};
use crate::meaning::{Meanings, texts};
use crate::nesting::is_too_deep;

/// Passes through a program before the meanings of its names have to be known.
const PASSES: usize = 8;
/// After so many of them names take no new meanings: they are unknown instead.
const FREE_PASSES: usize = 2;
/// Programs within programs: `exec` of a text.
const MAX_DEPTH: usize = 5;
/// Different things that are noted of one program.
const MAX_SEEN: usize = 5000;
/// Work that reading one program may take, in nanoseconds of a slow machine: some hundredths of a second.
const FUEL: usize = 50_000_000;
/// Cost of a step besides the bytes that it looks at and makes.
pub(crate) const STEP: usize = 100;
/// Cost of looking something up, or of remembering it.
pub(crate) const LOOK: usize = 700;

/// Reads a program that runs after others.
pub(crate) fn read(code: &str, known: &mut Known) -> Vec<Seen> {
    let mut reader = Reader::new(code, known);
    if is_too_deep(code) {
        reader.known.is_lost = true;
        reader.undecidable(0, "nests too deeply to be read");
        return reader.seen;
    }
    let parse = |code: &str| parse_unchecked(code, ParseOptions::from(Mode::Ipython));
    let parsed = parse(code);
    let functions = reader.known.begin();
    let earlier: Vec<_> = functions.iter().map(|function| (function, parse(&function.code))).collect();
    let mut defined = Vec::new();
    for pass in 0..PASSES {
        reader.begin_pass(pass);
        if let Some(error) = parsed.errors().first() {
            // The interpreter may understand what this parser does not.
            let what = format!("is not understood: {}", error.error);
            reader.undecidable(error.location.start().to_usize(), &what);
        }
        if let Some(line) = automatic(code) {
            reader.ipython(IpyEscapeKind::Magic, line, 0);
        }
        defined = reader.program(code, parsed.syntax());
        // Functions of earlier programs do something else if names mean something else now.
        for (function, parsed) in &earlier {
            reader.earlier(function, parsed.syntax());
        }
        if reader.fuel == 0 || !reader.changed {
            break;
        }
    }
    if reader.fuel == 0 || reader.changed {
        reader.known.is_lost = true;
        reader.undecidable(0, "is too much to be followed");
    }
    drop(earlier);
    reader.known.keep_functions(functions.into_iter().chain(defined));
    if reader.known.is_lost {
        reader.undecidable(0, "comes after programs that could not be read or remembered");
    }
    reader.seen
}

/// Hashes an act, to compare acts in few bytes.
fn hash(act: &Act) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(act)
}

pub(crate) struct Reader<'k> {
    pub(crate) known: &'k mut Known,
    seen: Vec<Seen>,
    noted: HashSet<Act>,
    depth: usize,
    /// True if the text may be no program: then it does nothing.
    pub(crate) is_quiet: bool,
    /// Offsets of the lines of the outermost program.
    starts: Vec<usize>,
    /// True if this pass learned something new.
    pub(crate) changed: bool,
    /// True once names take no new meanings any more.
    pub(crate) settled: bool,
    /// True inside a class, whose bindings are its attributes.
    pub(crate) is_class: bool,
    /// True if the text defines something that may run later.
    pub(crate) defines: bool,
    /// Acts of the statement that is read, hashed.
    done: HashSet<u64>,
    /// True inside a function of an earlier program.
    is_earlier: bool,
    /// Acts that were noted when their program was judged, hashed.
    before: HashSet<u64>,
    pub(crate) fuel: usize,
}

impl<'k> Reader<'k> {
    fn new(code: &str, known: &'k mut Known) -> Self {
        Self {
            known,
            seen: Vec::new(),
            noted: HashSet::new(),
            depth: 0,
            is_quiet: false,
            starts: std::iter::once(0).chain(code.match_indices('\n').map(|(at, _)| at + 1)).collect(),
            changed: false,
            settled: false,
            is_class: false,
            defines: false,
            done: HashSet::new(),
            is_earlier: false,
            before: HashSet::new(),
            fuel: FUEL,
        }
    }

    fn begin_pass(&mut self, pass: usize) {
        self.seen.clear();
        self.noted.clear();
        self.changed = false;
        self.settled = pass >= FREE_PASSES;
    }

    /// Reads the program itself. Returns its statements that define functions.
    fn program(&mut self, code: &str, program: &Mod) -> Vec<Function> {
        let Mod::Module(module) = program else { return Vec::new() };
        if has_prompts(code, module) {
            self.undecidable(0, "has prompts, which IPython takes out of its texts");
        }
        let mut defined = Vec::new();
        for statement in &module.body {
            (self.defines, self.done) = (false, HashSet::new());
            self.visit_stmt(statement);
            if self.defines {
                let code = code[statement.range()].to_owned();
                defined.push(Function { code, done: std::mem::take(&mut self.done) });
            }
        }
        defined
    }

    /// Reads a function of an earlier program again.
    fn earlier(&mut self, function: &Function, program: &Mod) {
        let Mod::Module(module) = program else { return };
        (self.depth, self.is_earlier, self.before) = (1, true, function.done.clone());
        self.visit_body(&module.body);
        (self.depth, self.is_earlier, self.before) = (0, false, HashSet::new());
    }

    /// Reads a program within the program.
    pub(crate) fn inner(&mut self, code: &str, at: usize) {
        if self.depth >= MAX_DEPTH {
            return self.undecidable(at, "runs a program in a program in a program");
        }
        if is_too_deep(code) {
            return self.undecidable(at, "nests too deeply to be read");
        }
        self.spend(LOOK + code.len() * 50);
        // An evaluated expression has no magics.
        let mode = if self.is_quiet { Mode::Module } else { Mode::Ipython };
        let parsed = parse_unchecked(code, ParseOptions::from(mode));
        self.depth += 1;
        if let Some(error) = parsed.errors().first().filter(|_| !self.is_quiet) {
            let what = format!("is not understood: {}", error.error);
            self.undecidable(at, &what);
        }
        if let Mod::Module(module) = parsed.syntax() {
            self.visit_body(&module.body);
        }
        self.depth -= 1;
    }

    /// Reads a text that something may take for an expression.
    pub(crate) fn formula(&mut self, text: &str, at: usize) {
        let before = std::mem::replace(&mut self.is_quiet, true);
        self.inner(text, at);
        self.is_quiet = before;
    }

    pub(crate) fn note(&mut self, at: usize, act: Act) {
        self.spend(STEP);
        let act_hash = hash(&act);
        self.done.insert(act_hash);
        // The effect on a module depends on the values handed on now.
        let depends = matches!(act, Act::Reach(_) | Act::UndecidableOfModule(_));
        let is_old = self.noted.contains(&act) || (!depends && self.before.contains(&act_hash));
        if is_old || self.seen.len() > MAX_SEEN {
            return;
        }
        self.spend(LOOK);
        // Places in a program within the program are not places in this one.
        let line = if self.depth == 0 { self.starts.partition_point(|start| *start <= at) } else { 0 };
        if self.seen.len() == MAX_SEEN {
            let act = Act::Undecidable("does too much to be read".to_owned());
            return self.seen.push(Seen { line: 0, act, is_earlier: false });
        }
        self.noted.insert(act.clone());
        self.seen.push(Seen { line, act, is_earlier: self.is_earlier });
    }

    /// Notes that a module is imported, and remembers it.
    pub(crate) fn import(&mut self, module: &str, at: usize) {
        if self.known.wrote(first(module)) {
            self.undecidable(at, "imports what may be a file of its own");
        }
        self.note(at, Act::Import(module.to_owned()));
        self.known.import(module);
    }

    pub(crate) fn undecidable(&mut self, at: usize, what: &str) {
        self.note(at, Act::Undecidable(what.to_owned()));
    }

    /// Takes from what may still be done. Returns true if nothing is left.
    pub(crate) fn spend(&mut self, cost: usize) -> bool {
        self.fuel = self.fuel.saturating_sub(cost);
        self.fuel == 0
    }

    /// The texts that something may be; it is undecidable if it may be something else.
    pub(crate) fn known_texts(&mut self, meanings: &Meanings, at: usize, what: &str) -> Vec<String> {
        let (texts, is_all) = texts(meanings);
        if !is_all {
            self.undecidable(at, &format!("{what} that is put together while it runs"));
        }
        texts
    }
}
