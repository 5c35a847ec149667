//! From what a program does to what becomes of it.

use crate::groups::Group;
use crate::policy::{Decision, Rule, Rules, fits};
use crate::reader::{Act, Known, Seen, read};

/// Reasons that are told.
const MAX_REASONS: usize = 20;
/// Stack for programs that nest deeply: only what is used of it is ever taken.
const STACK: usize = 512 << 20;
/// The longest program, bytes. A longer one is undecidable.
const MAX_CODE: usize = 256 << 10;

/// What becomes of a program, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// What becomes of it.
    pub decision: Decision,
    /// Why it is not allowed, in order of the lines; at most 20.
    pub reasons: Vec<Reason>,
}

/// Why a program is not simply allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The line, from 1; 0 for the program as a whole.
    pub line: usize,
    /// What stands there, and which rule says so, in words.
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
            return self.undecidable("the program is too long to be read");
        }
        // On a stack of its own: what nests a hundred thousand levels deep is read too, and cannot take the server along.
        let read = std::thread::scope(|scope| {
            let reading = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || read(code, known));
            reading.ok().and_then(|reading| reading.join().ok())
        });
        match read {
            Some(seen) => self.weigh(&seen),
            None => self.undecidable("the program cannot be read"),
        }
    }

    fn undecidable(&self, what: &str) -> Judgement {
        Judgement { decision: self.undecidable, reasons: vec![Reason { line: 0, what: what.to_owned() }] }
    }

    fn weigh(&self, seen: &[Seen]) -> Judgement {
        let mut decision = Decision::Allow;
        let mut reasons: Vec<Reason> = Vec::new();
        for seen in seen {
            let (found, by) = self.decide(&seen.act);
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

    /// What the strictest rule says that fits, and which one that is.
    fn decide(&self, act: &Act) -> (Decision, String) {
        let fitting = self.rules.iter().enumerate().filter(|(_, rule)| rule.fits(act));
        let strictest = fitting.max_by_key(|(index, rule)| (rule.decision, std::cmp::Reverse(*index)));
        if let Some((index, rule)) = strictest {
            return (rule.decision, format!("rule {}", index + 1));
        }
        match act {
            Act::Undecidable(_) => (self.undecidable, "undecidable".to_owned()),
            Act::Import(module) if !self.is_known(module) => (self.undecidable, "not of the template".to_owned()),
            Act::Import(_) | Act::Shell(_) => (self.default, "default".to_owned()),
            Act::Refer(_) | Act::Attribute(_) | Act::Hostfile(_) | Act::Address(_) => (Decision::Allow, String::new()),
        }
    }

    /// Whether a module's code is known: others may be files that programs wrote.
    fn is_known(&self, module: &str) -> bool {
        let top = module.split('.').next().unwrap_or_default();
        let listed = |list: &str| list.lines().any(|line| line == top);
        listed(include_str!("stdlib.txt"))
            || listed(include_str!("packages.txt"))
            || self.modules.iter().any(|known| fits(module, known))
    }
}

impl Rule {
    fn fits(&self, act: &Act) -> bool {
        let any = |name: &str, patterns: &[String]| patterns.iter().any(|pattern| fits(name, pattern));
        let own = match act {
            Act::Import(module) => any(module, &self.import),
            Act::Refer(name) => tails(name).any(|name| any(name, &self.call) || any(name, &self.import)),
            Act::Attribute(name) => self.attribute.iter().any(|attribute| attribute == name),
            Act::Hostfile(_) | Act::Address(_) | Act::Shell(_) | Act::Undecidable(_) => false,
        };
        own || self.uses.iter().any(|group| belongs(*group, act))
    }
}

/// A name, and the same as it is called further inside: modules hold other modules, as in `shutil.os.system`.
fn tails(name: &str) -> impl Iterator<Item = &str> {
    std::iter::once(name).chain(name.match_indices('.').filter_map(|(at, _)| name.get(at + 1..)))
}

fn belongs(group: Group, act: &Act) -> bool {
    let members = group.members();
    let any = |name: &str, patterns: &[&str]| patterns.iter().any(|pattern| fits(name, pattern));
    match act {
        Act::Import(module) => any(module, members.import),
        Act::Refer(name) => tails(name).any(|name| any(name, members.call) || any(name, members.import)),
        Act::Attribute(name) => members.attribute.contains(&name.as_str()),
        Act::Shell(_) => group == Group::Processes,
        Act::Hostfile(_) => group == Group::Hostfiles,
        Act::Address(_) => group == Group::Network,
        Act::Undecidable(_) => false,
    }
}
