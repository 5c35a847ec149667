//! The protocols that programs already speak, one folder each.

pub(crate) mod openai;

use std::sync::Arc;

use aludel_engine::turns;
use aludel_store::Store;
use axum::Router;
use axum::response::Response;

use crate::app::App;
use crate::error::ApiError;

/// A protocol that clients speak.
pub(crate) struct Dialect {
    /// Its routes.
    pub(crate) routes: fn() -> Router<Arc<App>>,
    /// The answer to a request that is refused before or in place of its own answer: a status and a body.
    pub(crate) refuse: fn(&ApiError) -> Response,
    /// Its kinds of stored requests.
    pub(crate) stored: fn(&Store) -> Vec<Arc<dyn turns::Dialect>>,
}

/// All of them. The first one's words are used where no dialect is asked, such as for unknown routes.
pub(crate) const ALL: &[Dialect] = &[openai::OPENAI];
