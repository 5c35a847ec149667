//! Rules of a policy, and the decisions that they make.

use serde::Deserialize;

use crate::groups::Group;

/// Decision about a program. The greater one is the stricter one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// It runs.
    Allow,
    /// Somebody is asked.
    Ask,
    /// It does not run.
    Refuse,
}

/// One rule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    #[serde(rename = "do")]
    pub(crate) decision: Decision,
    #[serde(default)]
    pub(crate) import: Vec<String>,
    #[serde(default)]
    pub(crate) call: Vec<String>,
    #[serde(default)]
    pub(crate) attribute: Vec<String>,
    #[serde(default)]
    pub(crate) uses: Vec<Group>,
}
