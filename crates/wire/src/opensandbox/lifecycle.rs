//! Making, finding and ending sandboxes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request for a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    /// The image that it starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// A snapshot in place of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// A template in place of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_id: Option<String>,
    /// Seconds until it ends; without it, it is ended by its client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// Amounts of resources, such as `cpu` and `memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_limits: Option<BTreeMap<String, String>>,
    /// Environment variables; those without a value are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, Option<String>>>,
    /// The client's notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// The command that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// The network that it reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    /// True if whoever speaks to its programs needs a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_access: Option<bool>,
    /// Directories of elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<Value>>,
    /// Commands at its beginning and from time to time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Value>,
    /// Credentials that are put into its requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_proxy: Option<CredentialProxy>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Image {
    /// Its name.
    pub uri: String,
}

/// Credentials that are put into the requests of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CredentialProxy {
    /// True if they are.
    #[serde(default)]
    pub enabled: bool,
}

/// The network that a sandbox reaches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicy {
    /// The rule for all that no other one names; without it, nothing is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_action: Option<Action>,
    /// Rules for names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<NetworkRule>>,
}

/// A rule for a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkRule {
    /// The decision.
    pub action: Action,
    /// The name.
    pub target: String,
}

/// The decision of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is reached.
    Allow,
    /// It is not.
    Deny,
}

/// The state of a network policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// A word for whether it holds.
    pub status: String,
    /// A word for the network that is left.
    pub mode: String,
    /// The means by which it is enforced.
    pub enforcement_mode: String,
    /// The policy.
    pub policy: NetworkPolicy,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// The image that it started from.
    pub image: Image,
    /// Its state.
    pub status: Status,
    /// The client's notes.
    pub metadata: BTreeMap<String, String>,
    /// The command that it is for.
    pub entrypoint: Vec<String>,
    /// The time when it was made, RFC 3339.
    pub created_at: String,
    /// The time when it will end, RFC 3339.
    pub expires_at: String,
}

/// The state of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The state.
    pub state: State,
}

/// States of a sandbox that others can see here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum State {
    /// It runs.
    Running,
    /// It is stopped until it is resumed.
    Paused,
}

impl State {
    /// The state as a query names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Paused => "Paused",
        }
    }
}

/// A page of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sandboxes {
    /// The sandboxes.
    pub items: Vec<Sandbox>,
    /// Position of the page.
    pub pagination: Pagination,
}

/// Position of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pagination {
    /// Its number, from 1 on.
    pub page: usize,
    /// Entries on one page.
    pub page_size: usize,
    /// Entries on all pages.
    pub total_items: usize,
    /// Pages.
    pub total_pages: usize,
    /// True if another one follows.
    pub has_next_page: bool,
}

/// The time when a sandbox ends, asked for or told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Expiration {
    /// The time, RFC 3339.
    pub expires_at: String,
}

/// An address at which a port of a sandbox is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// Host and path, without a scheme.
    pub endpoint: String,
    /// Headers that requests to it need.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}
