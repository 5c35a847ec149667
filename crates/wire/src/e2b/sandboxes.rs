//! The control plane.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A request for a sandbox, of both generations of paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewSandbox {
    /// The template, by id or name.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Seconds until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// True if it is to be paused when its time is over, and not ended.
    #[serde(default, rename = "autoPause", skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
    /// False if its processes are to end when it is paused because its time is over.
    #[serde(default, rename = "autoPauseMemory", skip_serializing_if = "Option::is_none")]
    pub auto_pause_memory: Option<bool>,
    /// A paused sandbox that goes on by itself.
    #[serde(default, rename = "autoResume", skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<AutoResume>,
    /// False if no token is to be needed for it; only the first generation asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure: Option<bool>,
    /// True if it may reach the internet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// The network that it reaches and by which it is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The client's notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Environment variables.
    #[serde(default, rename = "envVars", skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Volumes to mount.
    #[serde(default, rename = "volumeMounts", skip_serializing_if = "Option::is_none")]
    pub volume_mounts: Option<Vec<serde_json::Value>>,
    /// MCP servers to start in it, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<BTreeMap<String, serde_json::Value>>,
    /// True if it is not to be made when another one has the `name` of its metadata. A field of this server's own.
    #[serde(default, rename = "uniqueName", skip_serializing_if = "Option::is_none")]
    pub unique_name: Option<bool>,
}

/// A paused sandbox that goes on by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AutoResume {
    /// True if it does.
    pub enabled: bool,
}

/// The network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// False if a token is needed to speak to its programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// Addresses that it may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// Addresses that it may not reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// The name that its programs see in requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    /// True if it may reach the internet.
    #[serde(
        default,
        rename = "allow_internet_access",
        alias = "allowInternetAccess",
        skip_serializing_if = "Option::is_none"
    )]
    pub allow_internet_access: Option<bool>,
    /// Changes of its requests to hosts, by host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<serde_json::Value>,
    /// The proxy that its requests go through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<serde_json::Value>,
}

/// A request that sets the time until a sandbox ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Timeout {
    /// Seconds from now.
    pub timeout: i64,
}

/// A request to pause a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Pause {
    /// False if its processes are to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// A request to connect to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Connect {
    /// Seconds from now until which it lives at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A request to resume a sandbox, of the first generation.
pub type Resume = Connect;

/// A request to let a sandbox live longer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Refresh {
    /// Seconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<i64>,
}

/// A sandbox as it is made or connected to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sandbox {
    /// Its template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// The machine that it is on.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// The version of what serves its files and processes, which says what that can do.
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
    /// The token for its files, processes and kernels.
    #[serde(rename = "envdAccessToken", skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// The token for its programs' ports, if one is needed.
    #[serde(rename = "trafficAccessToken")]
    pub traffic_access_token: Option<String>,
    /// The domain below which it is reached. Without it, clients would send the tokens to the vendor's.
    pub domain: String,
}

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It does.
    Running,
    /// It stands still.
    Paused,
}

/// A sandbox in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListedSandbox {
    /// Its template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// The machine that it is on.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// Time when it was made, RFC 3339.
    #[serde(rename = "startedAt")]
    pub started_at: String,
    /// Time when it ends, RFC 3339.
    #[serde(rename = "endAt")]
    pub end_at: String,
    /// Processors.
    #[serde(rename = "cpuCount")]
    pub cpu_count: u32,
    /// Memory in MB.
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    /// Room for files in MB.
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    /// The version of what serves its files and processes.
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
    /// Its state.
    pub state: State,
    /// The client's notes.
    pub metadata: BTreeMap<String, String>,
}

/// The fate of a sandbox whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    /// It ends.
    Kill,
    /// It stands still.
    Pause,
}

/// The course of a sandbox's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// True if it goes on when somebody speaks to it while it is paused.
    pub auto_resume: bool,
    /// Its fate when its time is over.
    pub on_timeout: OnTimeout,
}

/// The name of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateAlias {
    /// The template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// True if everybody may use it.
    pub public: bool,
}

/// A sandbox with all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxDetail {
    /// As in a list.
    #[serde(flatten)]
    pub listed: ListedSandbox,
    /// The token for its files, processes and kernels.
    #[serde(rename = "envdAccessToken", skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// The domain below which it is reached.
    pub domain: String,
    /// True if it may reach the internet.
    #[serde(rename = "allowInternetAccess")]
    pub allow_internet_access: bool,
    /// The course of its life.
    pub lifecycle: Lifecycle,
}

/// The resources that a sandbox used at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// The time, RFC 3339.
    pub timestamp: String,
    /// The time, seconds since 1970.
    pub timestamp_unix: i64,
    /// Processors.
    pub cpu_count: u32,
    /// Use of all of them, percent.
    pub cpu_used_pct: f64,
    /// Memory in use, bytes.
    pub mem_used: u64,
    /// Memory, bytes.
    pub mem_total: u64,
    /// Memory of files that could be let go, bytes.
    pub mem_cache: u64,
    /// Room for files in use, bytes.
    pub disk_used: u64,
    /// Room for files, bytes.
    pub disk_total: u64,
}

/// A sandbox's log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Logs {
    /// Its lines.
    pub logs: Vec<serde_json::Value>,
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WrittenFile {
    /// Its path.
    pub path: String,
    /// Its name.
    pub name: String,
    /// `file`.
    pub r#type: String,
    /// The client's attributes, if it has any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}
