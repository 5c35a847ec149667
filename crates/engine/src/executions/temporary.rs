//! A live session that nothing is stored of.

use std::sync::Arc;

use aludel_sandbox::Limits;
use aludel_store::Tenant;

use super::ProgramTarget;
use crate::Error;
use crate::approvals::Namespace;
use crate::sessions::{LivePermit, LiveSession, Sessions};

/// A live session that nothing is stored of, and that is ended for no other. Dropping it ends its sandbox.
#[derive(Debug)]
pub struct TemporarySession {
    live: LiveSession,
    namespace: Arc<Namespace>,
    _permit: LivePermit,
}

impl Sessions {
    /// Opens a temporary session with these limits. `id` stands for it in the audit log.
    pub async fn open_temporary(&self, tenant: &Tenant, id: &str, limits: Limits) -> Result<TemporarySession, Error> {
        let permit = self.permit(tenant).await?;
        let live = LiveSession::create(Arc::clone(self.backend()), limits, None, self.environment().clone()).await?;
        Ok(TemporarySession { live, namespace: Namespace::new(id), _permit: permit })
    }
}

impl TemporarySession {
    /// Its live part.
    pub fn live(&self) -> &LiveSession {
        &self.live
    }

    /// The target of programs that run in it.
    pub fn target(&self) -> ProgramTarget {
        ProgramTarget::Kernel { runtime: Arc::new(self.live.clone()), namespace: Arc::clone(&self.namespace) }
    }
}
