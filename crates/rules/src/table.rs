//! Names of a policy, each with the rule that has it.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::act::Act;
use crate::dotted::{first, fits, tails};
use crate::groups::Group;
use crate::known::Escaped;
use crate::lists::LISTS;
use crate::rule::{Decision, Rule};

/// A rule that fits. The greater one is stricter, or just as strict and written before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fit {
    pub(crate) decision: Decision,
    pub(crate) rule: Reverse<usize>,
}

/// The names of all rules and their groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    import: Patterns,
    call: Patterns,
    /// Names by which something unknown leads to one of the others.
    reach: Patterns,
    attribute: HashMap<String, Fit>,
    group: HashMap<Group, Fit>,
}

impl Table {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut table = Self::default();
        for (index, rule) in rules.iter().enumerate() {
            let fit = Fit { decision: rule.decision, rule: Reverse(index) };
            rule.import.iter().for_each(|name| table.add_import(name, true, fit));
            rule.call.iter().for_each(|name| table.add_call(name, fit));
            rule.attribute.iter().for_each(|name| keep(&mut table.attribute, name.clone(), fit));
            for group in &rule.uses {
                keep(&mut table.group, *group, fit);
                let Some(members) = group.members() else { continue };
                members.import.iter().for_each(|name| table.add_import(name, LISTS.column_names.contains(name), fit));
                members.call.iter().for_each(|name| table.add_call(name, fit));
                members.attribute.iter().for_each(|name| keep(&mut table.attribute, name.clone(), fit));
            }
        }
        table
    }

    /// Adds a module. An attribute of a `common` name is one only where modules escaped.
    fn add_import(&mut self, name: &str, common: bool, fit: Fit) {
        self.import.add(name, Needs::Nothing, fit);
        self.reach.add(name, if common { Needs::Module } else { Needs::Nothing }, fit);
        self.add_rests(name, fit);
    }

    fn add_call(&mut self, name: &str, fit: Fit) {
        self.call.add(name, Needs::Nothing, fit);
        if name.contains('.') {
            self.reach.add(name, Needs::Nothing, fit);
        }
        self.add_rests(name, fit);
    }

    /// Adds the rests of a name, each for where the value before it escaped: `system` for `os`.
    fn add_rests(&mut self, name: &str, fit: Fit) {
        for (at, _) in name.match_indices('.') {
            let (value, rest) = (&name[..at], &name[at + 1..]);
            if !LISTS.method_names.contains(rest) {
                self.reach.add(rest, Needs::Value(value.to_owned()), fit);
            }
        }
    }

    /// Returns the strictest rule that fits.
    pub(crate) fn fit(&self, act: &Act, escaped: &Escaped<'_>) -> Option<Fit> {
        let find = |patterns: &Patterns, name: &str| patterns.fit(name, escaped);
        let import_or_call = |name: &str| find(&self.import, name).max(find(&self.call, name));
        match act {
            Act::Import(module) => find(&self.import, module),
            Act::Use(name) => tails(name).filter_map(import_or_call).max(),
            Act::UseOfStar(name) => import_or_call(name),
            // The result of a call is no module, by its name.
            Act::UseOfResult(name) => tails(name).filter_map(|name| find(&self.call, name)).max(),
            Act::Reach(name) => tails(name).filter_map(|name| find(&self.reach, name)).max(),
            Act::Attribute(name) => self.attribute.get(name).copied(),
            Act::Shell(_) => self.group.get(&Group::Processes).copied(),
            Act::Hostfile(_) => self.group.get(&Group::Hostfiles).copied(),
            Act::Address(_) => self.group.get(&Group::Network).copied(),
            Act::Undecidable(_) | Act::UndecidableOfModule(_) => None,
        }
    }
}

/// Keeps the strictest rule for a key.
fn keep<K: std::hash::Hash + Eq>(all: &mut HashMap<K, Fit>, key: K, fit: Fit) {
    all.entry(key).and_modify(|kept| *kept = fit.max(*kept)).or_insert(fit);
}

/// Patterns of names, by the first part of the names that they fit.
#[derive(Debug, Clone, Default)]
struct Patterns {
    by_first: HashMap<String, Vec<Pattern>>,
    /// Those with a star in the first part.
    open: Vec<Pattern>,
}

#[derive(Debug, Clone)]
struct Pattern {
    pattern: String,
    needs: Needs,
    fit: Fit,
}

/// A value that has to have escaped before a pattern counts.
#[derive(Debug, Clone)]
enum Needs {
    Nothing,
    Module,
    Value(String),
}

impl Patterns {
    fn add(&mut self, pattern: &str, needs: Needs, fit: Fit) {
        let first = first(pattern);
        let among = match first.ends_with('*') {
            true => &mut self.open,
            false => self.by_first.entry(first.to_owned()).or_default(),
        };
        among.push(Pattern { pattern: pattern.to_owned(), needs, fit });
    }

    fn fit(&self, name: &str, escaped: &Escaped<'_>) -> Option<Fit> {
        let among = self.by_first.get(first(name)).into_iter().flatten().chain(&self.open);
        let fitting = among.filter(|one| {
            fits(name, &one.pattern)
                && match &one.needs {
                    Needs::Nothing => true,
                    Needs::Module => escaped.is_module,
                    Needs::Value(value) => escaped.ends.contains(value.as_str()),
                }
        });
        fitting.map(|one| one.fit).max()
    }
}
