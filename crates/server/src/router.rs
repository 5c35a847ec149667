//! The routes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{ACCEPT, UPGRADE};
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt, service_fn};

use crate::app::App;
use crate::dialects::openai::azure;
use crate::dialects::{self, Dialect};
use crate::error::ApiError;
use crate::http::{ServedRoutes, no_method};
use crate::middleware::middleware;
use crate::{openapi, own_routes, paths};

/// All routes as one service.
pub(crate) type AllRoutes = BoxCloneSyncService<Request, Response, Infallible>;

/// The routes of a dialect that shares paths with others, and the test for its requests.
type ClaimedRoutes = (fn(&Request) -> bool, Router);

/// All routes. Each dialect that claims requests has its own router, and the others share one.
pub(crate) fn routes(app: &Arc<App>) -> AllRoutes {
    let claimed = dialects::ALL.iter().filter_map(|dialect| {
        let routes = (dialect.routes)().into_router().fallback(no_route);
        Some((dialect.claims?, with_middleware(routes, app, dialect)))
    });
    let (claimed, shared): (Arc<[ClaimedRoutes]>, Router) = (claimed.collect(), shared(app));
    BoxCloneSyncService::new(service_fn(move |mut request: Request| {
        let own = claimed.iter().find(|(claims, _)| claims(&request)).map(|(_, routes)| routes);
        // Not what is for a program in a sandbox.
        if own.is_none() {
            azure::rename(&mut request);
            if request.headers().contains_key(UPGRADE) {
                request.extensions_mut().insert(ServedRoutes(shared.clone()));
            }
        }
        let is_person = own.is_none() && is_browser_at_root(&request);
        let routes = own.unwrap_or(&shared).clone();
        async move {
            match is_person {
                // Relative, since a proxy may have put a path before it.
                true => Ok(Redirect::temporary(paths::DOCS.trim_start_matches('/')).into_response()),
                false => routes.oneshot(request).await,
            }
        }
    }))
}

/// Returns true for a person who looks at the server's address: there is no API, and nothing else to read.
fn is_browser_at_root(request: &Request) -> bool {
    let takes_pages = || {
        let accepted = request.headers().get(ACCEPT).and_then(|accepted| accepted.to_str().ok());
        accepted.is_some_and(|accepted| accepted.contains("text/html"))
    };
    request.method() == Method::GET && request.uri().path() == "/" && takes_pages()
}

/// The routes of the server itself, and of the dialects with unique paths.
fn shared(app: &Arc<App>) -> Router {
    let own = own_routes::routes().into_router().merge(openapi::routes().into_router());
    let own = with_middleware(own.fallback(no_route), app, &dialects::ALL[0]);
    let dialects = dialects::ALL.iter().filter(|dialect| dialect.claims.is_none());
    dialects.fold(own, |routes, dialect| routes.merge(with_middleware((dialect.routes)().into_router(), app, dialect)))
}

/// Adds the layer around routes, whose refusals are rendered by `dialect`.
fn with_middleware(routes: Router<Arc<App>>, app: &Arc<App>, dialect: &'static Dialect) -> Router {
    let app = Arc::clone(app);
    let layer = from_fn_with_state((Arc::clone(&app), dialect), middleware);
    let routes = routes.method_not_allowed_fallback(no_method).layer(layer);
    let pages = app.origins.layer().filter(|_| dialect.answers_pages);
    match pages {
        Some(pages) => routes.layer(pages).with_state(app),
        None => routes.with_state(app),
    }
}

async fn no_route(method: Method, uri: Uri) -> ApiError {
    let path = uri.path();
    let advice = if path.starts_with("/v1/v1/") {
        "The path has /v1 twice: the client adds it itself, so its base URL ends before it."
    } else if path == "/mcp/" {
        "MCP is at /mcp, without a slash at its end."
    } else if path.starts_with("/v1/") {
        "There is no such API here."
    } else {
        "The API is under /v1, and /docs lists it."
    };
    ApiError::not_found(format!("Unknown request URL: {method} {path}. {advice}")).code("unknown_url")
}
