//! Judgements of programs.

use std::fmt;

use serde::Deserialize;

/// Reasons that are told.
const MAX_REASONS: usize = 20;

/// Decision about a program. The greater one is the stricter one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// It runs.
    Allow,
    /// Somebody is asked.
    #[default]
    Ask,
    /// It does not run.
    Refuse,
}

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

impl Judgement {
    /// The judgement of a program of which nothing has been read.
    pub(crate) fn new() -> Self {
        Self { decision: Decision::Allow, reasons: Vec::new() }
    }

    pub(crate) fn add(&mut self, decision: Decision, reason: Reason) {
        self.decision = self.decision.max(decision);
        if decision > Decision::Allow && self.reasons.len() < MAX_REASONS && !self.reasons.contains(&reason) {
            let at = self.reasons.partition_point(|other| other.line <= reason.line);
            self.reasons.insert(at, reason);
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => formatter.write_str(&self.what),
            line => write!(formatter, "line {line} {}", self.what),
        }
    }
}
