//! The HTTP server: one list of routes, keys and limits in front of it, and the dialects that programs already speak behind it.
#![forbid(unsafe_code)]

mod app;
mod containers;
mod conversations;
mod error;
mod files;
mod http;
mod models;
mod responses;
mod router;
mod serve;
mod uploads;

pub use app::{App, Model, Settings};
pub use serve::{ServeError, serve};
