//! HTTP for every route: its caller, its description, and bodies that are read with bounds.

mod background;
mod caller;
mod describe;
mod download;
mod form;
mod guarded_body;
mod headers;
mod json;
mod memory;
mod message;
mod mime_types;
mod paced_body;
mod params;
mod program_traffic;
mod routes;
mod timed_body;
mod web_socket;

pub(crate) use caller::{Caller, LocalUserMark};
pub(crate) use describe::{BYTES, DescribeArgument, Description, FORM, JSON, MediaType, PAGE};
pub(crate) use download::{ENCODED, attachment, download, show};
pub(crate) use form::{FormParts, MultipartForm, Upload};
pub(crate) use guarded_body::GuardedBody;
pub(crate) use headers::{ACCEL_BUFFERING, bearer, is_local_host};
#[cfg(any(fuzzing, test))]
pub(crate) use json::body_memory;
pub(crate) use json::{BODY_READ_TIMEOUT, Fields, RawBody, RawJson};
pub(crate) use memory::{MemoryCharge, RequestMemory, memory, stored_memory};
pub(crate) use mime_types::mime_of;
pub(crate) use params::Params;
pub(crate) use program_traffic::ProgramTraffic;
pub(crate) use routes::{Operation, Routes, ServedRoutes, no_method};
pub(crate) use timed_body::TimedBody;
pub(crate) use web_socket::{SocketMessage, WebSocket, WebSocketUpgrade};
