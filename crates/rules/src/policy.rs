//! Policies as people write them.

use serde::Deserialize;

use crate::rule::{Decision, Rule};
use crate::table::Table;

/// Bytes of a policy.
const MAX_POLICY: usize = 256 << 10;
/// Rules of a policy, and names of one rule.
const MAX_RULES: usize = 1000;

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
pub struct Rules {
    pub(crate) default: Decision,
    pub(crate) undecidable: Decision,
    pub(crate) modules: Vec<String>,
    pub(crate) table: Table,
}

/// A policy as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default = "ask")]
    default: Decision,
    #[serde(default = "ask")]
    undecidable: Decision,
    #[serde(default)]
    modules: Vec<String>,
    #[serde(default, rename = "rule")]
    rules: Vec<Rule>,
}

/// A mistake in a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

fn ask() -> Decision {
    Decision::Ask
}

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
        let policy: Written = toml::from_str(text).map_err(|error| PolicyError(error.to_string().trim().to_owned()))?;
        if policy.undecidable == Decision::Allow {
            return wrong(
                "`undecidable` cannot be \"allow\": then every rule could be walked around; write \"ask\" or \"refuse\"",
            );
        }
        if policy.rules.is_empty() && policy.default == Decision::Allow {
            return wrong("the policy has no rule; add a [[rule]], or use no rules at all");
        }
        if policy.rules.len() > MAX_RULES {
            return wrong("the policy has more than 1000 rules");
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            let names = || rule.import.iter().chain(&rule.call).chain(&rule.attribute);
            if names().next().is_none() && rule.uses.is_empty() {
                return wrong(&format!("rule {} names nothing; give it import, call, attribute or uses", index + 1));
            }
            if names().count() > MAX_RULES {
                return wrong(&format!("rule {} names more than 1000 things", index + 1));
            }
            let odd = |name: &&String| {
                let name = name.strip_suffix('*').unwrap_or(name);
                name.is_empty()
                    || !name.chars().all(|character| character.is_alphanumeric() || "._".contains(character))
            };
            if let Some(odd) = names().find(odd) {
                return wrong(&format!("rule {}: {odd:?} is no name, and no name with a * at its end", index + 1));
            }
        }
        let table = Table::new(&policy.rules);
        Ok(Self { default: policy.default, undecidable: policy.undecidable, modules: policy.modules, table })
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
        assert_eq!(Rules::parse("").unwrap().default, Decision::Ask);
    }
}
