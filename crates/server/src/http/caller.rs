//! The tenant of a request, as handlers get it.

use std::sync::Arc;

use aludel_store::Tenant;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::app::App;
use crate::error::ApiError;

/// The tenant that asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) Tenant);

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &Arc<App>) -> Result<Self, ApiError> {
        // Only a route outside of the layer below would lack it.
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::internal("a route that asks nobody for a key"))
    }
}
