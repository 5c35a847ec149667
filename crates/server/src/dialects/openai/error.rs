//! Refusals in OpenAI's words.

use std::time::Duration;

use aludel_wire::openai;
use axum::Json;
use axum::response::{IntoResponse, Response};

use super::containers::no_container;
use super::files::no_file;
use crate::error::{ApiError, RefusalKind};

/// Renders a refusal.
pub(crate) fn refuse(error: &ApiError, _request_id: &str) -> Response {
    (error.status, Json(body(error))).into_response()
}

/// Renders a refusal as it stands in a body.
pub(super) fn body(error: &ApiError) -> openai::ErrorEnvelope {
    let kind = match error.kind {
        RefusalKind::InvalidRequest => "invalid_request_error",
        RefusalKind::Authentication => "authentication_error",
        RefusalKind::NotFound => "not_found_error",
        RefusalKind::RateLimit => "rate_limit_error",
        RefusalKind::Server => "server_error",
    };
    let error = openai::Error {
        message: error.message.clone(),
        r#type: kind.to_owned(),
        param: error.param.clone(),
        code: error.code.map(str::to_owned),
    };
    openai::ErrorEnvelope { error }
}

/// In the terms of this dialect, where sessions are containers. Other dialects have errors of their own.
impl From<aludel_engine::Error> for ApiError {
    fn from(error: aludel_engine::Error) -> Self {
        use aludel_engine::{Error, Missing};
        match error {
            Error::NotFound(Missing::Session(id)) => no_container(&id),
            Error::NotFound(Missing::File(id)) => no_file(&id).param("file_ids"),
            Error::NotFound(Missing::Model { name, known }) => {
                let known = known.join(", ");
                let message = format!("The model '{name}' does not exist here; there are: {known}.");
                Self::not_found(message).param("model").code("model_not_found")
            }
            Error::Expired(_) => Self::bad_request("Container is expired."),
            Error::SessionsFull { limit } => {
                let message = format!("All {limit} containers (server.containers) are in use; try again later.");
                Self::too_many(message, Duration::from_secs(10))
            }
            Error::SessionsShared { limit } => {
                let message = format!(
                    "Your share of the {limit} containers (server.containers) is in use; try again later, or delete some."
                );
                Self::too_many(message, Duration::from_secs(10))
            }
            Error::StorageFull { limit } => {
                let mb = limit >> 20;
                let message = format!("The {mb} MB that you may store here are used up; delete files or containers.");
                Self::bad_request(message).code("storage_limit_exceeded")
            }
            error @ Error::DiskFull(_) => Self::disk_full(error),
            Error::WorkspaceFull { limit } => {
                let mb = limit >> 20;
                Self::invalid("file", format!("The file does not fit: the files of a container may have {mb} MB."))
            }
            Error::TooManyFiles { limit } => {
                Self::invalid("file_ids", format!("Too many 'file_ids': at most {limit} are allowed."))
            }
            Error::InvalidName { shown, reason } => Self::invalid(
                "file",
                format!("Invalid file name '{shown}': {reason}. Use a plain name such as data.csv."),
            ),
            Error::FileRefused { path, reason } => {
                Self::invalid("file", format!("The container cannot take the file '{path}': {reason}."))
            }
            error => Self::internal(error),
        }
    }
}
