//! HTTP for every route: callers, and bodies that are read with bounds.

mod auth;
mod background;
mod budgets;
mod caller;
mod cors;
mod describe;
mod download;
mod form;
mod json;
mod memory;
mod message;
mod middleware;
mod mime_types;
mod paced_body;
mod params;
mod routes;
mod throttled_body;
mod timed_body;
mod ttl_cache;
mod unread_body;

pub(crate) use auth::{FRESH, KeyCache};
pub(crate) use budgets::DailyBudgets;
pub(crate) use caller::Caller;
pub use cors::Origins;
pub(crate) use describe::{BYTES, DescribeArgument, Description, FORM, JSON, MediaType, PAGE};
pub(crate) use download::{download, show};
pub(crate) use form::{FormParts, MultipartForm, Upload};
#[cfg(any(fuzzing, test))]
pub(crate) use json::body_memory;
pub(crate) use json::{Fields, RawBody, RawJson, SILENCE};
pub(crate) use memory::{MemoryCharge, memory};
pub(crate) use middleware::{GuardedBody, HEALTH, READY, bearer, is_local_host, middleware};
pub(crate) use mime_types::mime_of;
pub(crate) use params::Params;
pub(crate) use routes::{Operation, Routes, no_method};
pub(crate) use timed_body::TimedBody;
