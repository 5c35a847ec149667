//! Budgets of keys: once a budget is used up, requests that cost something are refused.

use std::time::Duration;

use aludel_store::{Error, Store, Tenant, UsedUp};
use axum::http::Method;
use jiff::Timestamp;

use super::ttl_cache::TtlCache;
use crate::error::ApiError;

/// Ends of the paths of POST requests that read, count, or end something, and cost nothing.
const FREE: [&str; 13] = [
    "/cancel",
    "/pause",
    "/v1/responses/input_tokens",
    "/v1/messages/count_tokens",
    ":countTokens",
    "/process.Process/List",
    "/process.Process/Connect",
    "/process.Process/SendSignal",
    "/filesystem.Filesystem/Stat",
    "/filesystem.Filesystem/ListDir",
    "/filesystem.Filesystem/GetWatcherEvents",
    "/filesystem.Filesystem/RemoveWatcher",
    "/filesystem.Filesystem/Remove",
];
/// Paths of MCP's messages. The tool that runs programs checks the budget itself.
const MCP: [&str; 2] = ["/mcp", "/messages"];
/// Seconds of a day.
const DAY: i64 = 24 * 3600;

/// The used-up budgets, read from the store at most once a second for each tenant.
#[derive(Debug)]
pub(crate) struct DailyBudgets {
    known: TtlCache<Tenant, Option<UsedUp>>,
}

impl DailyBudgets {
    /// A cache whose entries are valid for this long.
    pub(crate) fn new(fresh: Duration) -> Self {
        Self { known: TtlCache::new(fresh) }
    }

    /// Refuses a request that costs something if its tenant has used up its daily budget.
    pub(crate) async fn check_request(
        &self,
        store: &Store,
        tenant: &Tenant,
        method: &Method,
        path: &str,
    ) -> Result<(), ApiError> {
        let is_free_path = MCP.contains(&path) || FREE.iter().any(|end| path.ends_with(end));
        if method.is_safe() || *method == Method::DELETE || is_free_path {
            Ok(())
        } else {
            self.check(store, tenant).await
        }
    }

    /// Refuses work for a tenant that has used up its daily budget.
    pub(crate) async fn check(&self, store: &Store, tenant: &Tenant) -> Result<(), ApiError> {
        let Some(used_up) = self.used_up(store, tenant).await? else { return Ok(()) };
        let budget = match used_up {
            UsedUp::Requests(most) => format!("{most} requests"),
            UsedUp::Tokens(most) => format!("{most} tokens"),
            UsedUp::ProgramSeconds(most) => format!("{most} seconds of programs"),
        };
        let tomorrow = Duration::from_secs((DAY - Timestamp::now().as_second().rem_euclid(DAY)).unsigned_abs());
        let message = format!(
            "This API key has used up its budget of {budget} a day. It has one again at midnight UTC; the operator of this \
             server can give it more (`aludel keys limit`)."
        );
        let error = ApiError::too_many(message, tomorrow).code("insufficient_quota");
        Err(ApiError { should_retry: Some(false), ..error })
    }

    async fn used_up(&self, store: &Store, tenant: &Tenant) -> Result<Option<UsedUp>, Error> {
        if let Some(used_up) = self.known.get(tenant) {
            return Ok(used_up);
        }
        let used_up = store.used_up(tenant).await?;
        self.known.insert(tenant.clone(), used_up);
        Ok(used_up)
    }
}
