//! Signed addresses of files.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aludel_engine::sandboxes::ClientSandbox;
use axum::extract::{Query, Request};
use axum::http::Method;
use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::client_sandboxes::secrets::is_same;
use crate::error::ApiError;

/// Bytes of a path and a user's name, Linux's limit. A signature is checked with the secret of each sandbox, so longer ones are refused.
const MAX_SIGNED: usize = 4096;

/// The query of an address of a file.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct FileQuery {
    /// The path; a form may have several of its own.
    pub(super) path: Option<String>,
    /// The user.
    pub(super) username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<i64>,
}

impl FileQuery {
    /// Reads it of a request.
    pub(super) fn of(request: &Request) -> Result<Self, ApiError> {
        let query = Query::<Self>::try_from_uri(request.uri());
        query.map(|Query(query)| query).map_err(|error| ApiError::bad_request(error.body_text()))
    }

    /// Returns true if it was signed with this secret.
    fn is_signed_with(&self, method: &Method, secret: &str) -> bool {
        let Some(signature) = &self.signature else { return false };
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let operation = if is_read { "read" } else { "write" };
        let (path, user) = (self.path.as_deref().unwrap_or_default(), self.username.as_deref().unwrap_or_default());
        if path.len() + user.len() > MAX_SIGNED {
            return false;
        }
        let mut text = format!("{path}:{operation}:{user}:{secret}");
        if let Some(expiration) = self.signature_expiration {
            text = format!("{text}:{expiration}");
        }
        let digest = Sha256::digest(text.as_bytes());
        let expected = format!("v1_{}", BASE64_STANDARD_NO_PAD.encode(digest));
        is_same(signature.as_bytes(), expected.as_bytes())
    }

    fn check_expiration(&self) -> Result<(), ApiError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if self.signature_expiration.is_some_and(|end| end < i64::try_from(now).unwrap_or(i64::MAX)) {
            return Err(ApiError::unauthorized("signature is already expired"));
        }
        Ok(())
    }
}

/// Checks the signature of a request for a file of this sandbox.
pub(super) fn check(sandbox: &ClientSandbox, request: &Request) -> Result<(), ApiError> {
    let query = FileQuery::of(request)?;
    if query.signature.is_none() {
        return Err(ApiError::unauthorized("missing signature query parameter"));
    }
    if !query.is_signed_with(request.method(), sandbox.secret()) {
        return Err(ApiError::unauthorized("invalid signature"));
    }
    query.check_expiration()
}

/// The sandbox whose secret signed a request.
pub(super) fn find(app: &App, request: &Request) -> Result<Arc<ClientSandbox>, ApiError> {
    let query = FileQuery::of(request)?;
    if query.signature.is_none() {
        return Err(ApiError::unauthorized("missing signature query parameter"));
    }
    let signed = |sandbox: &ClientSandbox| query.is_signed_with(request.method(), sandbox.secret());
    let sandbox = app.engine.sandboxes.find(signed).ok_or_else(|| ApiError::unauthorized("invalid signature"))?;
    query.check_expiration()?;
    Ok(sandbox)
}
