//! Refusals: clients match some of them word by word.

use aludel_store::{AddOutcome, ThreadId};

use crate::error::ApiError;

/// The refusal of vector stores: clients would repeat the request on any other status.
pub(super) async fn no_vector_stores() -> ApiError {
    unsupported()
}

/// 400: there is no search in files.
pub(super) fn unsupported() -> ApiError {
    let message = "file_search and vector stores are not served here; attach files to code_interpreter instead";
    ApiError::bad_request(message).code("unsupported_feature")
}

/// 400: the version that the vendor ended first.
pub(super) fn first_version() -> ApiError {
    ApiError::bad_request("The first version of the Assistants API is not served; send 'OpenAI-Beta: assistants=v2'.")
        .code("invalid_beta")
}

/// 404, for an object that does not exist or belongs to another tenant.
pub(super) fn none_found(kind: &str, id: &str) -> ApiError {
    ApiError::not_found(format!("No {kind} found with id '{id}'."))
}

/// The outcome of adding a message, with texts that clients parse.
pub(super) fn added_message(added: AddOutcome, thread: &ThreadId) -> Result<(), ApiError> {
    match added {
        AddOutcome::Locked(run) => {
            Err(ApiError::bad_request(format!("Can't add messages to {thread} while a run {run} is active.")))
        }
        added => check(&added, thread, "messages"),
    }
}

/// The outcome of beginning a run, with texts that clients parse.
pub(super) fn begun(added: AddOutcome, thread: &ThreadId) -> Result<(), ApiError> {
    match added {
        AddOutcome::Locked(run) => {
            Err(ApiError::bad_request(format!("Thread {thread} already has an active run {run}.")))
        }
        added => check(&added, thread, "runs and messages"),
    }
}

/// The outcome of adding anything else.
pub(super) fn check(added: &AddOutcome, thread: &ThreadId, what: &str) -> Result<(), ApiError> {
    match added {
        AddOutcome::Added => Ok(()),
        AddOutcome::NoThread => Err(none_found("thread", thread.as_str())),
        AddOutcome::Full { limit } => Err(too_many(*limit, what)),
        AddOutcome::Locked(_) => Err(ApiError::internal("a lock where there is none")),
    }
}

/// 400: too many objects of a kind.
pub(super) fn too_many(limit: u64, what: &str) -> ApiError {
    ApiError::bad_request(format!("There are {limit} {what} already, and no more may be made; delete some."))
}
