//! Policies as people write them, and their decisions.

use std::cmp::Reverse;

use serde::Deserialize;

use crate::act::Act;
use crate::dotted::fits;
use crate::groups::{Group, Members};
use crate::harmless;
use crate::lists::LISTS;

/// Bytes of a policy.
const MAX_POLICY: usize = 256 << 10;
/// Rules of a policy.
const MAX_RULES: usize = 1000;
/// Names of all rules.
const MAX_NAMES: usize = 4000;

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
    default: Decision,
    pub(crate) undecidable: Decision,
    modules: Vec<String>,
    names: Vec<Named>,
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

/// One rule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(rename = "do")]
    decision: Decision,
    #[serde(default)]
    import: Vec<String>,
    #[serde(default)]
    call: Vec<String>,
    #[serde(default)]
    attribute: Vec<String>,
    #[serde(default)]
    uses: Vec<Group>,
}

/// Something that a rule names, itself or by a group.
#[derive(Debug, Clone)]
struct Named {
    pattern: Pattern,
    decision: Decision,
    /// Rules that are written before count before.
    rule: usize,
}

#[derive(Debug, Clone)]
enum Pattern {
    Import(String),
    Call(String),
    Attribute(String),
    Group(Group),
}

impl Pattern {
    fn fits(&self, act: &Act) -> bool {
        match (self, act) {
            (Self::Import(pattern), Act::Import(name) | Act::Use(name)) | (Self::Call(pattern), Act::Use(name)) => {
                fits(name, pattern)
            }
            (Self::Import(pattern) | Self::Call(pattern), Act::Reach(name)) => pattern == name,
            (Self::Attribute(attribute), Act::Attribute(name)) => attribute == name,
            (Self::Group(Group::Processes), Act::Shell(_))
            | (Self::Group(Group::Hostfiles), Act::Hostfile(_))
            | (Self::Group(Group::Network), Act::Address(_)) => true,
            _ => false,
        }
    }
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
        let mut names = Vec::new();
        for (rule, Rule { decision, import, call, attribute, uses }) in policy.rules.into_iter().enumerate() {
            let odd = |name: &&String| {
                let name = name.strip_suffix('*').unwrap_or(name);
                name.is_empty()
                    || !name.chars().all(|character| character.is_alphanumeric() || "._".contains(character))
            };
            if let Some(odd) = import.iter().chain(&call).chain(&attribute).find(odd) {
                return wrong(&format!("rule {}: {odd:?} is no name, and no name with a * at its end", rule + 1));
            }
            let before = names.len();
            let mut add = |pattern| names.push(Named { pattern, decision, rule });
            let own = Members { import, call, attribute };
            for Members { import, call, attribute } in uses.iter().map(|group| group.members()).chain([&own]) {
                import.iter().cloned().map(Pattern::Import).for_each(&mut add);
                call.iter().cloned().map(Pattern::Call).for_each(&mut add);
                attribute.iter().cloned().map(Pattern::Attribute).for_each(&mut add);
            }
            uses.into_iter().map(Pattern::Group).for_each(add);
            if names.len() == before {
                return wrong(&format!("rule {} names nothing; give it import, call, attribute or uses", rule + 1));
            }
            if names.len() > MAX_NAMES {
                return wrong("the rules name more than 4000 things, those of groups among them");
            }
        }
        Ok(Self { default: policy.default, undecidable: policy.undecidable, modules: policy.modules, names })
    }

    /// Returns the decision about an act, and the part of the policy that makes it.
    pub(crate) fn decide(&self, act: &Act) -> (Decision, String) {
        let fitting = self.names.iter().filter(|named| named.pattern.fits(act));
        if let Some(named) = fitting.max_by_key(|named| (named.decision, Reverse(named.rule))) {
            return (named.decision, format!("rule {}", named.rule + 1));
        }
        let (decision, by) = match act {
            Act::Undecidable(_) => (self.undecidable, "undecidable"),
            Act::Import(module) if !self.knows(module) => (self.undecidable, "not of the template"),
            Act::Use(name) if self.is_unlisted(name) => (self.undecidable, "not on the list"),
            Act::Import(_) | Act::Shell(_) => (self.default, "default"),
            _ => (Decision::Allow, ""),
        };
        (decision, by.to_owned())
    }

    /// Modules and functions that rules name.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &String> {
        self.names.iter().filter_map(|named| match &named.pattern {
            Pattern::Import(pattern) | Pattern::Call(pattern) => Some(pattern),
            _ => None,
        })
    }

    /// Returns true if a name is one of a known package, but of nothing listed in it.
    fn is_unlisted(&self, name: &str) -> bool {
        LISTS.is_known_module(name)
            && !(harmless::has(name)
                || self.names_module(name)
                || LISTS.name_takers.contains(name)
                || Group::any_has(name))
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
