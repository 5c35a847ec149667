//! Limits and expiry of sessions.

use std::collections::BTreeMap;
use std::time::Duration;

use aludel_sandbox::Limits;
use aludel_sandbox::template::TemplateName;
use aludel_store::Tenant;

use crate::Environment;

/// Limits and expiry of sessions.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// The limits of a session that asks for none.
    pub limits: Limits,
    /// The most memory of a session, bytes.
    pub max_memory: u64,
    /// Idle time after which a session expires.
    pub idle: Duration,
    /// Idle time after which a session with [`crate::Session::linger`] ends its sandbox.
    pub linger: Duration,
    /// Time that a program waits for the answers of its client's tools.
    pub answers: Duration,
    /// Time for which the files of an expired session are kept.
    pub retention: Duration,
    /// Sessions that may be live at once.
    pub sessions: usize,
    /// The longest life of a client's sandbox.
    pub sandbox_lifetime: Duration,
    /// Bytes that one tenant may store.
    pub storage: u64,
    /// Templates by tenant, for tenants with another than the usual one. A model's template takes precedence.
    pub templates: BTreeMap<String, TemplateName>,
    /// Environment variables of all programs; those of a session override them.
    pub environment: Environment,
}

impl SessionSettings {
    /// The template of a tenant; `None` for the usual one.
    pub(crate) fn template_of(&self, tenant: &Tenant) -> Option<&TemplateName> {
        self.templates.get(tenant.as_str())
    }
}

impl Default for SessionSettings {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            max_memory: limits.memory,
            limits,
            idle: Duration::from_secs(20 * 60),
            linger: Duration::from_secs(2 * 60),
            answers: Duration::from_secs(5 * 60),
            retention: Duration::from_secs(30 * 24 * 3600),
            sessions: 64,
            sandbox_lifetime: Duration::from_secs(24 * 3600),
            storage: 20 << 30,
            templates: BTreeMap::new(),
            environment: Environment::default(),
        }
    }
}
