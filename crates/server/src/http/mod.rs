//! HTTP for every route: callers, and bodies that are read with bounds.

mod around;
mod budgets;
mod callers;
mod cors;
mod describe;
mod download;
mod form;
mod fresh;
mod json;
mod memory;
mod message;
mod names;
mod paced_body;
mod params;
mod routes;
mod throttled_body;
mod unread_body;

pub(crate) use around::{Caller, GuardedBody, HEALTH, READY, around, bearer, is_local_host};
pub(crate) use budgets::Budgets;
pub(crate) use callers::{Callers, FRESH};
pub use cors::Origins;
pub(crate) use describe::{BYTES, DescribeArgument, Description, FORM, JSON, MediaType, PAGE};
pub(crate) use download::{download, show};
pub(crate) use form::{FormParts, MultipartForm, Upload};
#[cfg(any(fuzzing, test))]
pub(crate) use json::body_memory;
pub(crate) use json::{Fields, Plain, RawJson, SILENCE};
pub(crate) use memory::{MemoryCharge, memory};
pub(crate) use names::mime_of;
pub(crate) use params::Params;
pub(crate) use routes::{Operation, Routes};
