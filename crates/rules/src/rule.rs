//! Rules of a policy, and groups of names that they use.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::act::Act;
use crate::dotted::fits;
use crate::judgement::Decision;

/// A group of modules, functions and attributes. `groups.toml` has them, and says what they have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Group {
    Network,
    Processes,
    Code,
    Native,
    Introspection,
    Deletion,
    Hostfiles,
}

/// A rule of a policy, or a group, which decides nothing itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Rule {
    #[serde(rename = "do")]
    pub(crate) decision: Option<Decision>,
    /// Modules, with everything below them.
    import: Vec<String>,
    /// Functions and classes.
    call: Vec<String>,
    /// Attributes of anything.
    attribute: Vec<String>,
    pub(crate) uses: Vec<Group>,
}

static GROUPS: LazyLock<HashMap<Group, Rule>> =
    LazyLock::new(|| toml::from_str(include_str!("groups.toml")).expect("the groups are right: every test reads them"));

impl Rule {
    /// The rule itself, and the groups that it uses.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Self> {
        self.uses.iter().filter_map(|group| GROUPS.get(group)).chain([self])
    }

    /// All names besides those of groups.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.import.iter().chain(&self.call).chain(&self.attribute)
    }

    /// Modules and functions, those of groups among them.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &String> {
        self.parts().flat_map(|part| part.import.iter().chain(&part.call))
    }

    /// Returns true if the rule says what becomes of an act.
    pub(crate) fn names_act(&self, act: &Act) -> bool {
        match act {
            Act::Import(used) => self.parts().any(|part| part.import.iter().any(|name| fits(used, name))),
            Act::Use(used) => self.patterns().any(|name| fits(used, name)),
            Act::Reach(used) => self.patterns().any(|name| name == used),
            Act::Attribute(used) => self.parts().any(|part| part.attribute.contains(used)),
            Act::Shell(_) => self.uses.contains(&Group::Processes),
            Act::Hostfile(_) => self.uses.contains(&Group::Hostfiles),
            Act::Address(_) => self.uses.contains(&Group::Network),
            Act::Undecidable(_) => false,
        }
    }
}

/// Returns true if a name belongs to a group: the rules say what becomes of it.
pub(crate) fn any_group_has(name: &str) -> bool {
    GROUPS.values().flat_map(Rule::patterns).any(|pattern| fits(name, pattern))
}
