//! The caller of a request: its tenant, as handlers get it, and the mark of the server's own user.

use std::sync::Arc;

use aludel_store::Tenant;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::app::App;
use crate::error::ApiError;

/// The tenant that asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) Tenant);

/// The mark of a request over a connection of the server's own user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalUserMark;

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &Arc<App>) -> Result<Self, ApiError> {
        // Only a route outside of the layer below would lack it.
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::internal("a route that asks nobody for a key"))
    }
}
