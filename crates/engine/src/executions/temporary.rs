//! A live session that nothing is stored of.

use std::sync::Arc;

use aludel_sandbox::Limits;
use aludel_store::Tenant;

use super::ProgramTarget;
use crate::Error;
use crate::approvals::KernelPrograms;
use crate::sessions::{SandboxPermit, SessionSandbox, Sessions};

/// A live session that is not stored and not ended for others. Dropping it ends its sandbox.
#[derive(Debug)]
pub struct TemporarySession {
    sandbox: SessionSandbox,
    kernel_programs: Arc<KernelPrograms>,
    _permit: SandboxPermit,
}

impl Sessions {
    /// Opens a temporary session with these limits. `id` identifies it in the audit log.
    pub async fn open_temporary(&self, tenant: &Tenant, id: &str, limits: Limits) -> Result<TemporarySession, Error> {
        let permit = self.permit(tenant).await?;
        let (account, backend) = (Some(self.meter().account(tenant)), Arc::clone(self.backend()));
        let sandbox = SessionSandbox::create(account, backend, limits, None, self.environment().clone()).await?;
        Ok(TemporarySession { sandbox, kernel_programs: KernelPrograms::new(id), _permit: permit })
    }
}

impl TemporarySession {
    /// Its sandbox.
    pub fn sandbox(&self) -> &SessionSandbox {
        &self.sandbox
    }

    /// The target of programs that run in it.
    pub fn target(&self) -> ProgramTarget {
        ProgramTarget::Kernel {
            runtime: Arc::new(self.sandbox.clone()),
            kernel_programs: Arc::clone(&self.kernel_programs),
        }
    }
}
