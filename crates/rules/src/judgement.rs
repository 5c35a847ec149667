//! Judgements of programs.

use std::fmt;

use serde::Deserialize;

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

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => formatter.write_str(&self.what),
            line => write!(formatter, "line {line} {}", self.what),
        }
    }
}
