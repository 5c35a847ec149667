//! Standard input and output: one message a line, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use aludel_engine::Engine;
use aludel_ignore::Ignore;
use aludel_store::Tenant;
use rmcp::service::serve_server_with_ct;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Mcp;
use super::server::Server;
use super::tools::Profile;
use crate::auth::DailyBudgets;

/// Time for which a budget's state is believed.
const BUDGETS_FRESH: Duration = Duration::from_secs(1);

/// Serves a client on these streams until it closes its end. Running programs are then interrupted.
pub async fn serve(
    engine: &Arc<Engine>,
    return_after: Duration,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) {
    let mcp = Mcp::new(engine, Arc::new(DailyBudgets::new(BUDGETS_FRESH)), return_after);
    let server = Server::new(&mcp, &Tenant::terminal(), Profile::Full);
    if let Ok(serving) = serve_server_with_ct(server, (input, output), engine.shutdown.child_token()).await {
        serving.waiting().await.ignore("it ends with the client, for whatever reason");
    }
}
