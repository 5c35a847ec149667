//! Routes with their documentation: a route cannot be served without it.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{Method, Uri};
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, Route, any, on};
use schemars::JsonSchema;
use tower::{Layer, Service};

use super::describe::{Described, Description, JSON, MediaType};
use crate::app::App;
use crate::error::ApiError;

/// Routes of a dialect, with what they do.
pub(crate) struct Routes {
    router: Router<Arc<App>>,
    operations: Vec<Operation>,
}

/// All routes that are served, for messages of a WebSocket that are requests of their own.
#[derive(Debug, Clone)]
pub(crate) struct ServedRoutes(pub(crate) Router);

/// A method of a path.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    /// The method.
    pub(crate) method: Method,
    /// The path, with its parameters in braces; `{*name}` is any number of segments.
    pub(crate) path: String,
    /// One line on what it does.
    pub(crate) summary: &'static str,
    /// Its body and its answer.
    pub(crate) description: Description,
}

impl Routes {
    /// An empty set of routes.
    pub(crate) fn new() -> Self {
        Self { router: Router::new(), operations: Vec::new() }
    }

    /// Adds a `GET`.
    pub(crate) fn get<H: Handler<T, Arc<App>> + Described<T>, T: 'static>(
        self,
        path: &str,
        handler: H,
        summary: &'static str,
    ) -> Self {
        self.on(MethodFilter::GET, Method::GET, path, handler, summary)
    }

    /// Adds a `POST`.
    pub(crate) fn post<H: Handler<T, Arc<App>> + Described<T>, T: 'static>(
        self,
        path: &str,
        handler: H,
        summary: &'static str,
    ) -> Self {
        self.on(MethodFilter::POST, Method::POST, path, handler, summary)
    }

    /// Adds a `PUT`.
    pub(crate) fn put<H: Handler<T, Arc<App>> + Described<T>, T: 'static>(
        self,
        path: &str,
        handler: H,
        summary: &'static str,
    ) -> Self {
        self.on(MethodFilter::PUT, Method::PUT, path, handler, summary)
    }

    /// Adds a `PATCH`.
    pub(crate) fn patch<H: Handler<T, Arc<App>> + Described<T>, T: 'static>(
        self,
        path: &str,
        handler: H,
        summary: &'static str,
    ) -> Self {
        self.on(MethodFilter::PATCH, Method::PATCH, path, handler, summary)
    }

    /// Adds a `DELETE`.
    pub(crate) fn delete<H: Handler<T, Arc<App>> + Described<T>, T: 'static>(
        self,
        path: &str,
        handler: H,
        summary: &'static str,
    ) -> Self {
        self.on(MethodFilter::DELETE, Method::DELETE, path, handler, summary)
    }

    fn on<H: Handler<T, Arc<App>> + Described<T>, T: 'static>(
        mut self,
        filter: MethodFilter,
        method: Method,
        path: &str,
        handler: H,
        summary: &'static str,
    ) -> Self {
        self.operations.push(Operation { method, path: path.to_owned(), summary, description: H::description() });
        Self { router: self.router.route(path, on(filter, handler)), ..self }
    }

    /// Declares that the body of the last added route is JSON of a type.
    pub(crate) fn takes<T: JsonSchema>(self) -> Self {
        self.described(|description| {
            description.body.push(MediaType::json::<T>(JSON));
            description.lacks_body = false;
        })
    }

    /// Declares that the body of the last added route is of a media type, and not JSON with a schema.
    pub(crate) fn takes_any(self, media: &'static str) -> Self {
        self.described(|description| {
            description.body.push(MediaType::plain(media));
            description.lacks_body = false;
        })
    }

    /// Declares that the last added route reads no field of a body.
    pub(crate) fn takes_nothing(self) -> Self {
        self.described(|description| description.lacks_body = false)
    }

    /// Declares the query parameters of the last added route.
    pub(crate) fn asks(self, names: &[&'static str]) -> Self {
        self.described(|description| description.query.extend(names))
    }

    /// Declares that the answer of the last added route is JSON of a type.
    pub(crate) fn gives<T: JsonSchema>(self) -> Self {
        self.described(|description| {
            description.answers.push(MediaType::json::<T>(JSON));
            description.lacks_answer = false;
        })
    }

    /// Declares that the answer of the last added route may be a stream whose events have JSON of a type.
    pub(crate) fn streams<T: JsonSchema>(self, media: &'static str) -> Self {
        self.described(|description| {
            description.answers.push(MediaType::json::<T>(media));
            description.lacks_answer = false;
        })
    }

    /// Declares that the answer of the last added route is of a media type, and not JSON with a schema.
    pub(crate) fn gives_any(self, media: &'static str) -> Self {
        self.described(|description| {
            description.answers.push(MediaType::plain(media));
            description.lacks_answer = false;
        })
    }

    /// Declares that the answer of the last added route is only a status.
    pub(crate) fn gives_nothing(self) -> Self {
        self.described(|description| description.lacks_answer = false)
    }

    fn described(mut self, describe: impl FnOnce(&mut Description)) -> Self {
        if let Some(last) = self.operations.last_mut() {
            describe(&mut last.description);
        }
        self
    }

    /// Answers every method of a path with a refusal of the dialect; not part of the documentation.
    pub(crate) fn refuse<H: Handler<T, Arc<App>>, T: 'static>(self, path: &str, handler: H) -> Self {
        Self { router: self.router.route(path, any(handler)), ..self }
    }

    /// Adds other routes.
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.operations.extend(other.operations);
        Self { router: self.router.merge(other.router), ..self }
    }

    /// Adds other routes below a path.
    pub(crate) fn nest(mut self, path: &str, other: Self) -> Self {
        let below = |operation: Operation| Operation { path: format!("{path}{}", operation.path), ..operation };
        self.operations.extend(other.operations.into_iter().map(below));
        Self { router: self.router.nest(path, other.router), ..self }
    }

    /// Adds a layer around the routes so far, for all methods.
    pub(crate) fn layer<L>(self, layer: L) -> Self
    where
        L: Layer<Route> + Clone + Send + Sync + 'static,
        L::Service: Service<Request> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request>>::Response: IntoResponse + 'static,
        <L::Service as Service<Request>>::Error: Into<Infallible> + 'static,
        <L::Service as Service<Request>>::Future: Send + 'static,
    {
        Self { router: self.router.method_not_allowed_fallback(no_method).layer(layer), ..self }
    }

    /// The router.
    pub(crate) fn into_router(self) -> Router<Arc<App>> {
        self.router
    }

    /// The operations, in the order in which they were added.
    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }
}

/// Refuses a method that a path does not have.
pub(crate) async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::method_not_allowed(format!("{} cannot be asked with {method}.", uri.path())).code("method_not_allowed")
}
