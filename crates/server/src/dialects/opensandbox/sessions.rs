//! Shells with a memory: a file in the sandbox keeps their variables, functions and directory between two lines.

use std::collections::BTreeMap;
use std::sync::Arc;

use aludel_engine::sandboxes::HOME;
use aludel_store::random_hex;
use aludel_wire::opensandbox::commands::{NewSession, RunInSession, Session};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::commands::{self, NewCommand, SHELL};
use super::target::TargetSandbox;
use crate::app::App;
use crate::client_sandboxes::commands::{absolute, check_approval};
use crate::client_sandboxes::refusal::{refused, refused_file};
use crate::error::ApiError;
use crate::http::{Fields, RawBody};

/// The program of a line: `$0` is the file, `$1` a new directory, if any, and `$2` the line. If the directory of the line before is gone,
/// the shell says so and goes on at home, as in OpenSandbox's own server.
const PROGRAM: &str = concat!(
    "trap 'code=$?; { export -p; declare -f; printf \"cd %q\\n\" \"$(pwd)\"; } >\"$0\"; exit $code' EXIT\n",
    "if [ -n \"$1\" ]; then . \"$0\" 2>/dev/null; cd \"$1\" || exit; else . \"$0\" || cd; fi\n",
    "eval \"$2\"",
);

/// The file of a session; `None` for an id that is not ours.
fn file(id: &str) -> Option<String> {
    let digits = id.strip_prefix("sh_")?;
    let is_plain = digits.len() == 24 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_plain.then(|| format!("/tmp/.{id}"))
}

fn unknown(id: &str) -> ApiError {
    let id: String = id.chars().take(64).collect();
    ApiError::not_found(format!("session not found: {id}")).code("CONTEXT_NOT_FOUND")
}

/// `POST /session`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    body: RawBody,
) -> Result<Json<Session>, ApiError> {
    check_approval(&app)?;
    let NewSession { cwd } = match body.bytes.clone() {
        bytes if bytes.is_empty() => NewSession::default(),
        bytes => body.json(&app, bytes).await?,
    };
    let directory = cwd.filter(|directory| !directory.is_empty()).map_or_else(|| HOME.to_owned(), |cwd| absolute(&cwd));
    let session_id = format!("sh_{:.24}", random_hex());
    let Some(path) = file(&session_id) else { return Err(ApiError::internal("an id of a session that is none")) };
    let files = sandbox.files().await.map_err(refused)?;
    let mut state = files.create(&path, BTreeMap::new()).await.map_err(refused_file)?;
    let line = format!("cd '{}'\n", directory.replace('\'', r"'\''"));
    state.write(line.into()).await.map_err(refused_file)?;
    state.finish().await.map_err(refused_file)?;
    Ok(Json(Session { session_id }))
}

/// `POST /session/{session}/run`
pub(super) async fn run(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Path((_, id)): Path<(String, String)>,
    body: Fields,
) -> Result<Response, ApiError> {
    let RunInSession { command, cwd, timeout } = body.read()?;
    let path = file(&id).ok_or_else(|| unknown(&id))?;
    let files = sandbox.files().await.map_err(refused)?;
    files.stat(&path).await.map_err(|_| unknown(&id))?;
    let directory = cwd.filter(|directory| !directory.is_empty()).map(|cwd| absolute(&cwd)).unwrap_or_default();
    let new = NewCommand {
        arguments: vec![SHELL.to_owned(), "-c".to_owned(), PROGRAM.to_owned(), path, directory, command],
        directory: None,
        environment: BTreeMap::new(),
        time_limit: commands::limit(timeout),
    };
    commands::follow(&app, &sandbox, new).await
}

/// `DELETE /session/{session}`
pub(super) async fn remove(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Path((_, id)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let path = file(&id).ok_or_else(|| unknown(&id))?;
    let files = sandbox.files().await.map_err(refused)?;
    files.stat(&path).await.map_err(|_| unknown(&id))?;
    files.remove(&path).await.map_err(refused_file)?;
    Ok(StatusCode::OK)
}
