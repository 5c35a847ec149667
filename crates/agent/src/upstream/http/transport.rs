//! The way to a model's server.

use std::fmt;

use futures_util::future::BoxFuture;
use reqwest::{Request, Response};

/// A sender of requests: a [`reqwest::Client`], or a server in the same process.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Sends a request. Returns the answer as soon as its head has arrived.
    fn send(&self, request: Request) -> BoxFuture<'static, reqwest::Result<Response>>;
}

impl Transport for reqwest::Client {
    fn send(&self, request: Request) -> BoxFuture<'static, reqwest::Result<Response>> {
        Box::pin(self.execute(request))
    }
}
