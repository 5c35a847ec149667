//! Paths of the server itself that need no key.

/// The path of the liveness check, open to anyone.
pub(crate) const HEALTH: &str = "/healthz";
/// The same, where those look who come from a server of sandboxes.
pub(crate) const HEALTH_OF_SANDBOXES: &str = "/health";
/// The path of the readiness check.
pub(crate) const READY: &str = "/readyz";
/// The page of all documents.
pub(crate) const DOCS: &str = "/docs";
/// The path of the documents: the server's own, and below it one for each dialect.
pub(crate) const OPENAPI: &str = "/openapi.json";
/// The beginning of the paths of dialects' documents.
pub(crate) const OF_DIALECTS: &str = "/openapi/";
