//! Reading a program: what it does, as far as that can be seen.
//!
//! Names are followed without regard to order and scope: a name that is given two meanings is unknown. A module that is used where
//! names cannot follow it (in a list, as an argument, by the second meaning of a name) is *handed on*: every attribute of something
//! unknown may be one of its own from then on, in this program and in all that come after it.

use std::collections::HashSet;

use ruff_python_ast::IpyEscapeKind;
use ruff_python_ast::visitor::source_order::SourceOrderVisitor as _;
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
/// Bytes of a program and of those in it. A longer one is undecidable.
const MAX_CODE: usize = 256 << 10;
/// The most effort for a program, in bytes that are looked at. One that takes more is undecidable.
const MAX_EFFORT: usize = 16 << 20;
/// Effort for a program within a program or a formula besides its bytes: the parser begins anew for each.
const INNER_EFFORT: usize = 256;
/// Programs within programs: `exec` of a text.
const MAX_DEPTH: usize = 5;
/// Reasons that are told.
const MAX_REASONS: usize = 20;

impl Rules {
    /// Judges a program by itself.
    pub fn judge(&self, code: &str) -> Judgement {
        self.judge_after(&mut Known::default(), code)
    }

    /// Judges a program that runs after others in the same interpreter: `known` is what their names mean, and learns those of this one.
    pub fn judge_after(&self, known: &mut Known, code: &str) -> Judgement {
        let was_lost = known.is_lost;
        known.programs += 1;
        // On a stack of its own, which is enough for every program that is not found to nest too deeply before.
        let judgement = std::thread::scope(|scope| {
            let read = || Reader::read(self, known, code);
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
    code: &'k str,
    judgement: Judgement,
    noted: HashSet<Act>,
    /// True once all names of the program have been seen.
    pub(crate) is_second: bool,
    /// Bytes that were read of the program and of those in it.
    bytes: usize,
    /// Effort so far.
    effort: usize,
    pub(crate) place: Place,
}

/// Surroundings of what is read.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    /// Offset of the statement or the expression; none for the program as a whole.
    pub(crate) at: Option<usize>,
    /// Programs around it.
    pub(crate) depth: usize,
    /// True in a text that may be no program: then it does nothing, and binds no names.
    pub(crate) is_formula: bool,
    /// True where texts are evaluated, as annotations and formulas are.
    pub(crate) is_evaluated: bool,
    /// True inside a class, whose bindings are its attributes.
    pub(crate) is_class: bool,
}

impl<'k> Reader<'k> {
    fn read(rules: &'k Rules, known: &'k mut Known, code: &'k str) -> Judgement {
        let judgement = Judgement { decision: Decision::Allow, reasons: Vec::new() };
        let (noted, place) = (HashSet::new(), Place::default());
        let mut reader = Self { rules, known, code, judgement, noted, is_second: false, bytes: 0, effort: 0, place };
        // Functions may use names that are given meanings after them.
        for is_second in [false, true] {
            (reader.is_second, reader.bytes) = (is_second, 0);
            reader.inner(code, false);
            if let Some(line) = ipython::automatic(code) {
                reader.ipython(IpyEscapeKind::Magic, line);
            }
        }
        let reached: Vec<&String> = rules.patterns().filter(|pattern| reader.known.reaches(pattern)).collect();
        reached.into_iter().for_each(|pattern| reader.note(Act::Reach(pattern.clone())));
        if reader.known.reaches(COMPUTED) {
            reader.undecidable("takes attributes by names that are not known, and hands modules on");
        }
        if reader.known.is_lost {
            reader.undecidable("has names, or comes after some, that could not be read or remembered");
        }
        reader.judgement
    }

    /// Reads a program, which may be one within the program, or a text that may be no program.
    pub(crate) fn inner(&mut self, code: &str, is_formula: bool) {
        if self.place.depth > MAX_DEPTH {
            return self.undecidable("runs a program in a program in a program");
        }
        if !self.spend(code.len() + INNER_EFFORT) {
            return;
        }
        self.bytes += code.len();
        if self.bytes > MAX_CODE || is_too_deep(code) {
            self.known.is_lost = true;
            return self.undecidable("is too long or nests too deeply to be read");
        }
        // An evaluated expression has no magics.
        let mode = if is_formula { Mode::Module } else { Mode::Ipython };
        let parsed = parse_unchecked(code, ParseOptions::from(mode));
        if let Some(error) = parsed.errors().first().filter(|_| !is_formula) {
            // The interpreter may understand what this parser does not.
            let place = self.place.of(&error.location);
            self.within(place, |reader| reader.undecidable(&format!("is not understood: {}", error.error)));
        }
        let is_formula = self.place.is_formula || is_formula;
        let place = Place { depth: self.place.depth + 1, is_formula, is_evaluated: false, ..self.place };
        self.within(place, |reader| reader.visit_mod(parsed.syntax()));
    }

    /// Returns true if no more can be read.
    pub(crate) fn has_read_enough(&self) -> bool {
        self.bytes > MAX_CODE || self.effort > MAX_EFFORT
    }

    /// Spends effort on a part of the program. Returns false if none is left.
    pub(crate) fn spend(&mut self, effort: usize) -> bool {
        self.effort += effort;
        if self.effort > MAX_EFFORT {
            self.known.is_lost = true;
            self.undecidable("takes too long to be read");
        }
        self.effort <= MAX_EFFORT
    }

    /// Reads something in other surroundings.
    pub(crate) fn within<T>(&mut self, place: Place, read: impl FnOnce(&mut Self) -> T) -> T {
        let around = std::mem::replace(&mut self.place, place);
        let read = read(self);
        self.place = around;
        read
    }

    pub(crate) fn note(&mut self, act: Act) {
        if !self.is_second || self.noted.contains(&act) {
            return;
        }
        let (decision, by) = self.rules.decide(&act);
        let Judgement { decision: strictest, reasons } = &mut self.judgement;
        *strictest = decision.max(*strictest);
        if decision > Decision::Allow && reasons.len() < MAX_REASONS {
            let line = self.place.at.map_or(0, |at| self.code[..at].matches('\n').count() + 1);
            let at = reasons.partition_point(|other| other.line <= line);
            reasons.insert(at, Reason { line, what: format!("{act} ({by})") });
        }
        self.noted.insert(act);
    }

    pub(crate) fn undecidable(&mut self, what: &str) {
        self.note(Act::Undecidable(what.to_owned()));
    }
}

impl Place {
    /// The place of a statement or an expression: acts in it are acts of its line. A program within the program has no lines of its own.
    pub(crate) fn of(self, node: &impl Ranged) -> Self {
        Self { at: if self.depth > 1 { self.at } else { Some(node.start().to_usize()) }, ..self }
    }
}
