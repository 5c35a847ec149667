//! Rules for commands of every dialect.

use std::collections::BTreeMap;

use aludel_engine::approvals::ApprovalMode;
pub(crate) use aludel_engine::sandboxes::USER;
use aludel_engine::sandboxes::{ClientSandbox, HOME, USER_VARIABLES};

use crate::app::App;
use crate::error::ApiError;

/// The directory of a command, if its client named one, and all of its variables, of which the client gave some.
pub(crate) fn command_environment(
    sandbox: &ClientSandbox,
    directory: Option<String>,
    given: BTreeMap<String, String>,
) -> (Option<String>, BTreeMap<String, String>) {
    let directory = directory.filter(|directory| !directory.is_empty()).map(|directory| absolute(&directory));
    let user = USER_VARIABLES.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let at = ("PWD".to_owned(), directory.clone().unwrap_or_else(|| HOME.to_owned()));
    let all = user.into_iter().chain(sandbox.spec().environment.clone()).chain([at]).chain(given);
    (directory, all.collect())
}

/// Refuses commands where the operator decides about programs: the rules do not read commands, and clients of this protocol do not wait for
/// a decision.
pub(crate) fn check_approval(app: &App) -> Result<(), ApiError> {
    match app.engine.approvals().mode {
        ApprovalMode::Never => Ok(()),
        ApprovalMode::Always | ApprovalMode::Rules(_) => Err(ApiError::forbidden(
            "Commands do not run where programs need approval (approval.mode); run code instead, which can be approved.",
        )),
    }
}

/// The absolute form of a client's directory: a relative one begins at the home directory.
pub(crate) fn absolute(directory: &str) -> String {
    match directory.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{HOME}{rest}"),
        _ if directory.starts_with('/') => directory.to_owned(),
        _ => format!("{HOME}/{directory}"),
    }
}
