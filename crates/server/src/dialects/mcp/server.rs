//! The server for one client, whatever the transport and version of the protocol.

use std::sync::{Arc, OnceLock};

use aludel_engine::Session;
use aludel_engine::permits::Permit;
use aludel_engine::sessions::SessionChoice;
use aludel_store::{SessionId, Tenant};
use tokio::sync::Mutex;

use super::Mcp;
use super::error::ToolError;
use super::tools::Profile;

/// The server of one connection, or of one request in versions without connections.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) mcp: Arc<Mcp>,
    pub(super) tenant: Tenant,
    pub(super) profile: Profile,
    /// The session of calls that name none; the first such call makes it.
    pub(super) default: Arc<Mutex<Option<SessionId>>>,
    /// The permit of a connection.
    pub(super) permit: Arc<OnceLock<Arc<Permit>>>,
}

impl Server {
    /// A server for one tenant's client.
    pub(super) fn new(mcp: &Arc<Mcp>, tenant: &Tenant, profile: Profile) -> Self {
        let (mcp, tenant) = (Arc::clone(mcp), tenant.clone());
        Self { mcp, tenant, profile, default: Arc::default(), permit: Arc::default() }
    }

    /// The session that a call names, or that of the connection.
    pub(super) async fn session(&self, named: Option<&str>) -> Result<Arc<Session>, ToolError> {
        let engine = &self.mcp.engine;
        if let Some(name) = named.map(str::trim).filter(|name| !name.is_empty()) {
            return self.known_session(name).await?.ok_or_else(|| ToolError::no_session(name));
        }
        let mut default = self.default.lock().await;
        if let Some(id) = &*default
            && let Some(session) = self.known_session(id.as_str()).await?
        {
            return Ok(session);
        }
        let new = SessionChoice::Auto { file_ids: Vec::new(), memory: None };
        let session = engine.sessions.open(&self.tenant, new).await?;
        *default = Some(session.id().clone());
        Ok(session)
    }

    /// The session of this id, even if it has expired: its files still exist.
    pub(super) async fn known_session(&self, id: &str) -> Result<Option<Arc<Session>>, ToolError> {
        let engine = &self.mcp.engine;
        let Some(id) = SessionId::parse(id) else { return Ok(None) };
        if engine.store.session(&self.tenant, &id).await?.is_none() {
            return Ok(None);
        }
        Ok(Some(engine.sessions.open(&self.tenant, SessionChoice::Reuse(id)).await?))
    }
}
