//! Requests for servers that programs in sandboxes start. Their clients need not belong to the sandbox's tenant.

use std::sync::Arc;

use aludel_engine::sandboxes::ClientSandbox;

/// The mark of such a request, which counts for its sandbox and not among its tenant's requests.
#[derive(Debug, Clone)]
pub(crate) struct ProgramTraffic(pub(crate) Arc<ClientSandbox>);
