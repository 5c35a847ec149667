//! Reading a program: what it does, as far as that can be seen.
//!
//! Names are followed without regard to order and scope: a name that is given two meanings is unknown. A module that is used where
//! names cannot follow it (in a list, as an argument, by the second meaning of a name) is *handed on*: every attribute of something
//! unknown may be one of its own from then on, in this program and in all that come after it.

use std::collections::HashSet;

use ruff_python_ast::visitor::Visitor as _;
use ruff_python_ast::{IpyEscapeKind, Mod};
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::Ranged;

use crate::act::Act;
use crate::ipython;
use crate::judgement::{Decision, Judgement, Reason};
use crate::known::{COMPUTED, Known};
use crate::nesting::is_too_deep;
use crate::policy::Rules;

/// Stack for programs that nest deeply: only what is used of it is ever taken.
const STACK: usize = 256 << 20;
/// The longest program, bytes. A longer one is undecidable.
const MAX_CODE: usize = 256 << 10;
/// Programs within programs: `exec` of a text.
const MAX_DEPTH: usize = 5;
/// Bytes of all programs within one program.
const MAX_INNER: usize = 1 << 20;

impl Rules {
    /// Judges a program by itself.
    pub fn judge(&self, code: &str) -> Judgement {
        self.judge_after(&mut Known::default(), code)
    }

    /// Judges a program that runs after others in the same interpreter: `known` is what their names mean, and learns those of this one.
    pub fn judge_after(&self, known: &mut Known, code: &str) -> Judgement {
        if code.len() > MAX_CODE {
            known.is_lost |= self.0.undecidable < Decision::Refuse;
            return self.undecidable("the program is too long to be read");
        }
        let was_lost = known.is_lost;
        known.programs += 1;
        // On a stack of its own, which is enough for every program that is not found to nest too deeply before.
        let judgement = std::thread::scope(|scope| {
            let read = || Reader::new(code, self, known).read(code);
            let reading = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, read);
            reading.ok().and_then(|reading| reading.join().ok())
        });
        let Some(judgement) = judgement else {
            known.is_lost = true;
            return self.undecidable("the program cannot be read");
        };
        // A program that does not run changes nothing.
        if judgement.decision == Decision::Refuse {
            known.is_lost = was_lost;
        }
        judgement
    }

    /// Returns the judgement of a program whose meaning cannot be read, with the reason for that.
    pub fn undecidable(&self, what: &str) -> Judgement {
        Judgement { decision: self.0.undecidable, reasons: vec![Reason { line: 0, what: what.to_owned() }] }
    }
}

pub(crate) struct Reader<'k> {
    pub(crate) rules: &'k Rules,
    pub(crate) known: &'k mut Known,
    judgement: Judgement,
    noted: HashSet<Act>,
    /// Offsets of the lines of the outermost program.
    starts: Vec<usize>,
    /// Offset of the statement or the expression that is read; none for the program as a whole.
    at: Option<usize>,
    /// True once all names of the program have been seen.
    pub(crate) is_second: bool,
    depth: usize,
    inner_bytes: usize,
    /// True in a text that may be no program: then it does nothing, and binds no names.
    pub(crate) is_formula: bool,
    /// True where texts are evaluated, as annotations and formulas are.
    pub(crate) is_evaluated: bool,
    /// True inside a class, whose bindings are its attributes.
    pub(crate) is_class: bool,
}

impl<'k> Reader<'k> {
    fn new(code: &str, rules: &'k Rules, known: &'k mut Known) -> Self {
        Self {
            rules,
            known,
            judgement: Judgement::new(),
            noted: HashSet::new(),
            starts: std::iter::once(0).chain(code.match_indices('\n').map(|(at, _)| at + 1)).collect(),
            at: None,
            is_second: false,
            depth: 0,
            inner_bytes: 0,
            is_formula: false,
            is_evaluated: false,
            is_class: false,
        }
    }

    fn read(mut self, code: &str) -> Judgement {
        if is_too_deep(code) {
            self.is_second = true;
            self.lost("nests too deeply to be read");
            return self.judgement;
        }
        let parsed = parse_unchecked(code, ParseOptions::from(Mode::Ipython));
        // Functions may use names that are given meanings after them.
        for is_second in [false, true] {
            self.is_second = is_second;
            if let Some(error) = parsed.errors().first() {
                // The interpreter may understand what this parser does not.
                self.at = Some(error.location.start().to_usize());
                self.undecidable(&format!("is not understood: {}", error.error));
            }
            if let Some(line) = ipython::automatic(code) {
                self.ipython(IpyEscapeKind::Magic, line);
            }
            if let Mod::Module(module) = parsed.syntax() {
                self.visit_body(&module.body);
            }
        }
        self.at = None;
        let reached: Vec<&String> = self.rules.patterns().filter(|pattern| self.known.reaches(pattern)).collect();
        reached.into_iter().for_each(|pattern| self.note(Act::Reach(pattern.clone())));
        if self.known.reaches(COMPUTED) {
            self.undecidable("takes attributes by names that are not known, and hands modules on");
        }
        if self.known.is_lost {
            self.undecidable("comes after programs that could not be read or remembered");
        }
        self.judgement
    }

    /// Reads a program within the program: another one, or a text that may be no program.
    pub(crate) fn inner(&mut self, code: &str, is_formula: bool) {
        if self.depth >= MAX_DEPTH {
            return self.undecidable("runs a program in a program in a program");
        }
        self.inner_bytes += code.len();
        if self.inner_bytes > MAX_INNER || is_too_deep(code) {
            return self.lost("is too much to be followed");
        }
        // An evaluated expression has no magics.
        let mode = if is_formula { Mode::Module } else { Mode::Ipython };
        let parsed = parse_unchecked(code, ParseOptions::from(mode));
        if let Some(error) = parsed.errors().first().filter(|_| !is_formula) {
            self.undecidable(&format!("is not understood: {}", error.error));
        }
        let around = (self.is_formula, std::mem::take(&mut self.is_evaluated));
        self.is_formula |= is_formula;
        self.depth += 1;
        if let Mod::Module(module) = parsed.syntax() {
            self.visit_body(&module.body);
        }
        self.depth -= 1;
        (self.is_formula, self.is_evaluated) = around;
    }

    /// Reads a statement or an expression: acts in it are acts of its line. A program within the program has none of its own.
    pub(crate) fn within<T>(&mut self, node: &impl Ranged, read: impl FnOnce(&mut Self) -> T) -> T {
        let around = self.at;
        if self.depth == 0 {
            self.at = Some(node.start().to_usize());
        }
        let read = read(self);
        self.at = around;
        read
    }

    /// Reads the inside of a class, or of a function.
    pub(crate) fn inside(&mut self, is_class: bool, read: impl FnOnce(&mut Self)) {
        let around = std::mem::replace(&mut self.is_class, is_class);
        read(self);
        self.is_class = around;
    }

    pub(crate) fn note(&mut self, act: Act) {
        if !self.is_second || self.noted.contains(&act) {
            return;
        }
        let (decision, by) = self.rules.decide(&act);
        let line = self.at.map_or(0, |at| self.starts.partition_point(|start| *start <= at));
        self.judgement.add(decision, Reason { line, what: format!("{act} ({by})") });
        self.noted.insert(act);
    }

    pub(crate) fn undecidable(&mut self, what: &str) {
        self.note(Act::Undecidable(what.to_owned()));
    }

    /// Gives up: nothing is known of what comes after this.
    fn lost(&mut self, what: &str) {
        self.known.is_lost = true;
        self.undecidable(what);
    }
}
