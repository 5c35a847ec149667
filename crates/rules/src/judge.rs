//! From what a program does to what becomes of it.

use crate::act::{Act, Seen};
use crate::dotted::fits;
use crate::groups::Group;
use crate::harmless;
use crate::known::{Escaped, Known};
use crate::lists::LISTS;
use crate::policy::Rules;
use crate::reader::read;
use crate::rule::Decision;

/// Reasons that are told.
const MAX_REASONS: usize = 20;
/// Stack for programs that nest deeply: only what is used of it is ever taken.
const STACK: usize = 256 << 20;
/// The longest program, bytes. A longer one is undecidable.
const MAX_CODE: usize = 256 << 10;

/// Decision about a program, with its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The strictest decision of all rules.
    pub decision: Decision,
    /// Reasons for anything but an allowance, in order of the lines; at most 20.
    pub reasons: Vec<Reason>,
}

/// A place of a program that a rule does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The line, from 1; 0 for the program as a whole.
    pub line: usize,
    /// The words at this place, and the rule.
    pub what: String,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => formatter.write_str(&self.what),
            line => write!(formatter, "line {line} {}", self.what),
        }
    }
}

impl Rules {
    /// Judges a program by itself.
    pub fn judge(&self, code: &str) -> Judgement {
        self.judge_after(&mut Known::default(), code)
    }

    /// Judges a program that runs after others in the same interpreter: `known` is what their names mean, and learns those of this one.
    pub fn judge_after(&self, known: &mut Known, code: &str) -> Judgement {
        if code.len() > MAX_CODE {
            known.is_lost |= self.undecidable < Decision::Refuse;
            return self.undecidable("the program is too long to be read");
        }
        let was_lost = known.is_lost;
        // On a stack of its own, which is enough for every program that is not found to nest too deeply before.
        let read = std::thread::scope(|scope| {
            let reading = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || read(code, known));
            reading.ok().and_then(|reading| reading.join().ok())
        });
        let Some(seen) = read else {
            known.is_lost = true;
            return self.undecidable("the program cannot be read");
        };
        let judgement = self.weigh(&seen, known);
        // A program that does not run changes nothing.
        if judgement.decision == Decision::Refuse {
            known.is_lost = was_lost;
        }
        judgement
    }

    /// Returns the judgement of a program whose meaning cannot be read, with the reason for that.
    pub fn undecidable(&self, what: &str) -> Judgement {
        Judgement { decision: self.undecidable, reasons: vec![Reason { line: 0, what: what.to_owned() }] }
    }

    fn weigh(&self, seen: &[Seen], known: &Known) -> Judgement {
        let (escaped, escaped_now) = (known.escaped(), known.escaped_now());
        let mut judgement = Judgement { decision: Decision::Allow, reasons: Vec::new() };
        for seen in seen {
            let (decision, by) = self.decide(&seen.act, if seen.is_earlier { &escaped_now } else { &escaped });
            judgement.decision = judgement.decision.max(decision);
            if decision > Decision::Allow && judgement.reasons.len() < MAX_REASONS {
                let reason = Reason { line: seen.line, what: format!("{} ({by})", seen.act) };
                if !judgement.reasons.contains(&reason) {
                    judgement.reasons.push(reason);
                }
            }
        }
        judgement.reasons.sort_by_key(|reason| reason.line);
        judgement
    }

    /// Returns the decision about an act, and the part of the policy that makes it.
    fn decide(&self, act: &Act, escaped: &Escaped<'_>) -> (Decision, String) {
        if let Some(fit) = self.table.fit(act, escaped) {
            return (fit.decision, format!("rule {}", fit.rule.0 + 1));
        }
        let (decision, by) = match act {
            Act::Undecidable(_) => (self.undecidable, "undecidable"),
            Act::UndecidableOfModule(_) if escaped.is_module => (self.undecidable, "undecidable"),
            Act::Import(module) if !self.knows(module) => (self.undecidable, "not of the template"),
            Act::Use(name) if self.is_unlisted(name) => (self.undecidable, "not on the list"),
            Act::Import(_) | Act::Shell(_) => (self.default, "default"),
            _ => (Decision::Allow, ""),
        };
        (decision, by.to_owned())
    }

    /// Returns true if a name is one of a known package, but of nothing listed in it.
    fn is_unlisted(&self, name: &str) -> bool {
        LISTS.is_known_module(name) && !(harmless::has(name) || Group::any_has(name) || self.names_module(name))
    }

    /// Returns true if a module's code is known: others may be files that programs wrote.
    fn knows(&self, module: &str) -> bool {
        LISTS.is_known_module(module) || self.names_module(module)
    }

    /// Returns true if the policy names the module of a dotted name.
    fn names_module(&self, name: &str) -> bool {
        self.modules.iter().any(|module| fits(name, module))
    }
}
