//! From what a program does to what becomes of it.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::act::{Act, Seen};
use crate::canonical::tails;
use crate::groups::Group;
use crate::harmless;
use crate::known::Known;
use crate::policy::{Decision, Rule, Rules, fits};
use crate::reader::read;
use crate::stdlib;

/// Reasons that are told.
const MAX_REASONS: usize = 20;
/// Stack for programs that nest deeply: only what is used of it is ever taken.
const STACK: usize = 256 << 20;
/// The longest program, bytes. A longer one is undecidable.
const MAX_CODE: usize = 256 << 10;

/// Modules whose names columns of tables have, too.
const WORDS: [&str; 12] =
    ["cffi", "code", "dill", "gc", "imp", "inspect", "pipes", "pty", "requests", "sh", "socket", "ssl"];

/// Names of functions that methods of texts, lists and tables have, too.
const METHODS: [&str; 3] = ["remove", "rename", "replace"];

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
            known.set_lost(known.is_lost() || self.undecidable < Decision::Refuse);
            return self.undecidable("the program is too long to be read");
        }
        let was_lost = known.is_lost();
        // On a stack of its own, which is enough for every program that is not found to nest too deeply before.
        let read = std::thread::scope(|scope| {
            let reading = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || read(code, known));
            reading.ok().and_then(|reading| reading.join().ok())
        });
        let Some(seen) = read else {
            known.set_lost(true);
            return self.undecidable("the program cannot be read");
        };
        let judgement = self.weigh(&seen, known);
        // A program that does not run changes nothing.
        if judgement.decision == Decision::Refuse {
            known.set_lost(was_lost);
        }
        judgement
    }

    /// Returns the judgement of a program whose meaning cannot be read, with the reason for that.
    pub fn undecidable(&self, what: &str) -> Judgement {
        Judgement { decision: self.undecidable, reasons: vec![Reason { line: 0, what: what.to_owned() }] }
    }

    fn weigh(&self, seen: &[Seen], known: &Known) -> Judgement {
        let handed = Handed::new(known, known.handed());
        let now = Handed::new(known, known.handed_now());
        let names = |handed| self.rules.iter().map(|rule| Names::new(rule, handed)).collect();
        let (rules, rules_now): (Vec<Names<'_>>, Vec<Names<'_>>) = (names(&handed), names(&now));
        let mut decision = Decision::Allow;
        let mut reasons: Vec<Reason> = Vec::new();
        for seen in seen {
            let (found, by) = match seen.is_earlier {
                true => self.decide(&seen.act, &rules_now, &now),
                false => self.decide(&seen.act, &rules, &handed),
            };
            decision = decision.max(found);
            if found > Decision::Allow && reasons.len() < MAX_REASONS {
                let reason = Reason { line: seen.line, what: format!("{} ({by})", seen.act) };
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
            }
        }
        reasons.sort_by_key(|reason| reason.line);
        Judgement { decision, reasons }
    }

    /// Returns the decision of the strictest rule that fits, and that rule.
    fn decide(&self, act: &Act, names: &[Names<'_>], handed: &Handed<'_>) -> (Decision, String) {
        let rules = self.rules.iter().zip(names).enumerate();
        let fitting = rules.filter(|(_, (rule, names))| rule.fits(act, names));
        let strictest = fitting.max_by_key(|(index, (rule, _))| (rule.decision, std::cmp::Reverse(*index)));
        if let Some((index, (rule, _))) = strictest {
            return (rule.decision, format!("rule {}", index + 1));
        }
        match act {
            Act::Undecidable(_) => (self.undecidable, "undecidable".to_owned()),
            Act::IfModule(_) if handed.is_module => (self.undecidable, "undecidable".to_owned()),
            Act::Import(module) if !self.is_known(module) => (self.undecidable, "not of the template".to_owned()),
            Act::Refer(name) if self.is_unlisted(name) => (self.undecidable, "not on the list".to_owned()),
            Act::Import(_) | Act::Shell(_) => (self.default, "default".to_owned()),
            Act::Refer(_)
            | Act::Reach(_)
            | Act::Attribute(_)
            | Act::Hostfile(_)
            | Act::Address(_)
            | Act::IfModule(_) => (Decision::Allow, String::new()),
        }
    }

    /// Returns true if a name is one of a known package, but of nothing listed in it. Results of calls are judged where they are made.
    fn is_unlisted(&self, name: &str) -> bool {
        let top = name.split('.').next().unwrap_or_default();
        (stdlib::has(top) || stdlib::has_package(top))
            && !name.contains("()")
            && !(harmless::has(name) || Group::any_has(name) || self.modules.iter().any(|known| fits(name, known)))
    }

    /// Returns true if a module's code is known: others may be files that programs wrote.
    fn is_known(&self, module: &str) -> bool {
        let top = module.split('.').next().unwrap_or_default();
        stdlib::has(top) || stdlib::has_package(top) || self.modules.iter().any(|known| fits(module, known))
    }
}

impl Rule {
    fn fits(&self, act: &Act, names: &Names<'_>) -> bool {
        let uses = |wanted: Group| self.uses.contains(&wanted);
        match act {
            Act::Import(module) => names.import.fit(module),
            Act::Refer(name) if name.starts_with('*') => {
                let name = name.trim_start_matches('*');
                names.call.fit(name) || names.import.fit(name)
            }
            // The result of a call is no module, by its name.
            Act::Refer(name) if name.contains("()") => {
                let name = name.replace("()", "");
                tails(&name).any(|name| names.call.fit(name))
            }
            Act::Refer(name) => tails(name).any(|name| names.call.fit(name) || names.import.fit(name)),
            Act::Reach(name) => tails(name).any(|name| names.reach.fit(name)),
            Act::Attribute(name) => names.attribute.contains(name.as_str()),
            Act::Shell(_) => uses(Group::Processes),
            Act::Hostfile(_) => uses(Group::Hostfiles),
            Act::Address(_) => uses(Group::Network),
            Act::Undecidable(_) | Act::IfModule(_) => false,
        }
    }
}

/// Names that were handed on in an interpreter.
struct Handed<'a> {
    /// The ends of its names: `path` and `os.path`.
    ends: HashSet<&'a str>,
    /// True if it may be a module.
    is_module: bool,
}

impl<'a> Handed<'a> {
    fn new(known: &Known, handed: &'a BTreeSet<String>) -> Self {
        Self {
            ends: handed.iter().flat_map(|name| tails(name.trim_end_matches("()"))).collect(),
            is_module: handed.iter().any(|name| known.may_be_a_module(name)),
        }
    }
}

/// The names of a rule, with those of its groups.
struct Names<'a> {
    import: Patterns<'a>,
    call: Patterns<'a>,
    /// Patterns of names by which something unknown leads to one of them.
    reach: Patterns<'a>,
    attribute: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn new(rule: &'a Rule, handed: &Handed<'_>) -> Self {
        let members = || rule.uses.iter().map(|group| group.members());
        let import = || {
            rule.import
                .iter()
                .map(String::as_str)
                .chain(members().flat_map(|members| &members.import).map(String::as_str))
        };
        let call = || {
            rule.call.iter().map(String::as_str).chain(members().flat_map(|members| &members.call).map(String::as_str))
        };
        let attribute = rule.attribute.iter().map(String::as_str);
        // All of it, if that cannot be the name of anything else; or the rest of it, after what was handed on.
        let named = import()
            .filter(|name| handed.is_module || !(WORDS.contains(name) || rule.import.iter().any(|own| own == name)));
        let whole = call().filter(|pattern| pattern.contains('.')).chain(named);
        let rest = call().chain(import()).flat_map(|pattern| {
            pattern.match_indices('.').filter_map(move |(at, _)| {
                let (held, rest) = (pattern.get(..at)?, pattern.get(at + 1..)?);
                (handed.ends.contains(held) && !METHODS.contains(&rest)).then_some(rest)
            })
        });
        Self {
            reach: whole.chain(rest).collect(),
            import: import().collect(),
            call: call().collect(),
            attribute: attribute.chain(members().flat_map(|members| &members.attribute).map(String::as_str)).collect(),
        }
    }
}

/// Patterns, by the first part of the names that they fit.
#[derive(Default)]
struct Patterns<'a> {
    by_first: HashMap<&'a str, Vec<&'a str>>,
    /// Those with a star in the first part.
    open: Vec<&'a str>,
}

impl<'a> FromIterator<&'a str> for Patterns<'a> {
    fn from_iter<T: IntoIterator<Item = &'a str>>(patterns: T) -> Self {
        let mut all = Self::default();
        for pattern in patterns {
            let first = pattern.split('.').next().unwrap_or_default();
            if first.ends_with('*') {
                all.open.push(pattern);
            } else {
                all.by_first.entry(first).or_default().push(pattern);
            }
        }
        all
    }
}

impl Patterns<'_> {
    fn fit(&self, name: &str) -> bool {
        let first = self.by_first.get(name.split('.').next().unwrap_or_default());
        first.into_iter().flatten().chain(&self.open).any(|pattern| fits(name, pattern))
    }
}
