//! Policies as people write them, and their decisions.

use std::cmp::Reverse;

use serde::Deserialize;

use crate::act::Act;
use crate::dotted::fits;
use crate::harmless;
use crate::judgement::Decision;
use crate::lists::LISTS;
use crate::rule::{Rule, any_group_has};

/// Bytes of a policy.
const MAX_POLICY: usize = 256 << 10;
/// Names of all rules, those of their groups among them.
const MAX_NAMES: usize = 4000;

/// A policy.
///
/// ```toml
/// default = "allow"            # what a program imports that no rule names
/// undecidable = "ask"          # what cannot be known by reading, or is on no list of harmless names: ask or refuse
/// modules = ["house_style"]    # modules that programs may import besides Python's own and those of the default template
///
/// [[rule]]
/// do = "ask"                   # allow, ask or refuse; of all rules that fit, the strictest holds
/// import = ["socket", "requests"]            # modules, with everything below them
/// call = ["os.remove", "shutil.*"]           # functions, by the name of where they come from, also when they are only passed on
/// attribute = ["__subclasses__"]             # attributes, whosever they are
/// uses = ["network", "processes"]            # groups of all that, see [`Group`]
/// ```
#[derive(Debug, Clone)]
pub struct Rules(pub(crate) Policy);

/// A policy as it is written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Policy {
    default: Decision,
    pub(crate) undecidable: Decision,
    modules: Vec<String>,
    #[serde(rename = "rule")]
    rules: Vec<Rule>,
}

/// A mistake in a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

/// The default policy.
const USUAL: &str = r#"
default = "allow"
undecidable = "ask"
[[rule]]
do = "ask"
uses = ["network", "processes", "code", "native", "introspection", "hostfiles"]
"#;

impl Rules {
    /// The usual policy: data may be worked on, everything that could lead further is asked about.
    pub fn usual() -> Self {
        Self::parse(USUAL).expect("the usual policy is right: a test reads it")
    }

    /// Reads a policy. The error says where it is wrong. An empty one is an error too: it would decide nothing.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let wrong = |why: &str| Err(PolicyError(why.to_owned()));
        if text.len() > MAX_POLICY {
            return wrong("the policy is larger than 256 KB");
        }
        let policy: Policy = toml::from_str(text).map_err(|error| PolicyError(error.to_string().trim().to_owned()))?;
        if policy.undecidable == Decision::Allow {
            return wrong(
                "`undecidable` cannot be \"allow\": then every rule could be walked around; write \"ask\" or \"refuse\"",
            );
        }
        if policy.rules.is_empty() && policy.default == Decision::Allow {
            return wrong("the policy has no rule; add a [[rule]], or use no rules at all");
        }
        for (number, rule) in (1..).zip(&policy.rules) {
            if rule.decision.is_none() {
                return wrong(&format!("rule {number}: missing field `do`, which is allow, ask or refuse"));
            }
            let is_odd = |name: &&String| {
                let name = name.strip_suffix('*').unwrap_or(name);
                name.is_empty() || !name.chars().all(|one| one.is_alphanumeric() || "._".contains(one))
            };
            if let Some(odd) = rule.names().find(is_odd) {
                return wrong(&format!("rule {number}: {odd:?} is no name, and no name with a * at its end"));
            }
            if rule.uses.is_empty() && rule.names().next().is_none() {
                return wrong(&format!("rule {number} names nothing; give it import, call, attribute or uses"));
            }
        }
        if policy.rules.iter().flat_map(Rule::parts).flat_map(Rule::names).count() > MAX_NAMES {
            return wrong("the rules name more than 4000 things, those of groups among them");
        }
        Ok(Self(policy))
    }

    /// Returns the decision about an act, and the part of the policy that makes it.
    pub(crate) fn decide(&self, act: &Act) -> (Decision, String) {
        let fitting = (1..).zip(&self.0.rules).filter(|(_, rule)| rule.names_act(act));
        if let Some((number, rule)) = fitting.max_by_key(|(number, rule)| (rule.decision, Reverse(*number))) {
            return (rule.decision.unwrap_or_default(), format!("rule {number}"));
        }
        let (decision, by) = match act {
            Act::Undecidable(_) => (self.0.undecidable, "undecidable"),
            // Others may be files that programs wrote.
            Act::Import(module) if !self.knows(module) => (self.0.undecidable, "not of the template"),
            Act::Use(name) if self.is_unlisted(name) => (self.0.undecidable, "not on the list"),
            Act::Import(_) | Act::Shell(_) => (self.0.default, "default"),
            _ => (Decision::Allow, ""),
        };
        (decision, by.to_owned())
    }

    /// Modules and functions that rules name.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &String> {
        self.0.rules.iter().flat_map(Rule::patterns)
    }

    /// Returns true if a name is one of a known package, but of nothing listed in it.
    fn is_unlisted(&self, name: &str) -> bool {
        let is_listed = harmless::has(name) || LISTS.name_takers.contains(name) || any_group_has(name);
        LISTS.is_known_module(name) && !is_listed && !self.allows(name)
    }

    /// Returns true if a module's code is known.
    fn knows(&self, module: &str) -> bool {
        LISTS.is_known_module(module) || self.allows(module)
    }

    /// Returns true if the policy allows the module of a dotted name besides those that are known.
    fn allows(&self, name: &str) -> bool {
        self.0.modules.iter().any(|module| fits(name, module))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_policy_is_said() {
        for (text, words) in [
            ("default = 'allow'", "has no rule"),
            ("undecidable = 'allow'", "cannot be \"allow\""),
            ("colour = 'red'", "unknown field"),
            ("[[rule]]\ndo = 'ask'", "rule 1 names nothing"),
            ("[[rule]]\nimport = ['os']", "missing field `do`"),
            ("[[rule]]\ndo = 'maybe'\nimport = ['os']", "maybe"),
            ("[[rule]]\ndo = 'ask'\ncall = ['os.system()']", "is no name"),
            ("[[rule]]\ndo = 'ask'\ncall = ['*']", "is no name"),
            ("[[rule]]\ndo = 'ask'\nuses = ['everything']", "everything"),
            ("[[rule]\n", "line 1"),
        ] {
            let error = Rules::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}\n{error}");
        }
        assert_eq!(Rules::usual().judge("import socket").decision, Decision::Ask);
        // A policy that says nothing asks about everything that is imported.
        assert_eq!(Rules::parse("").unwrap().0.default, Decision::Ask);
    }
}
