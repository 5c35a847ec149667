//! Calls of `python` and `wait`: they start a program, follow it for a while, and return while it goes on if it takes longer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::excerpt;
use aludel_engine::executions::{ClientProgram, ProgramTarget};
use aludel_engine::{Arrival, SessionFile};
use aludel_ignore::Ignore;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, JsonObject,
    ProgressNotificationParam,
};
use rmcp::service::RequestContext;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::error::ToolError;
use super::output::ProgramEnd;
use super::runs::{Run, Stage};
use super::server::Server;
use super::tools::{Profile, ProgramAlone, PythonArguments, Report, ReportedFile, Status, WaitArguments};
use super::{approve, resources};

/// Time between two notices of progress.
const BEAT: Duration = Duration::from_secs(2);
/// The longest time that a client can give a program or a wait, seconds. The sandbox has its own limit.
const MAX_SECONDS: f64 = 86_400.0;
/// Bytes of all images in a result over HTTP; further ones are only linked. With images as base64, a message stays below the 1 MiB that
/// the official Python client takes as an event.
pub(super) const MAX_IMAGES: u64 = 512 << 10;
/// The same over a pipe, where the official clients for Node take 10 MiB.
const MAX_IMAGES_IN_LINE: u64 = 4 << 20;
/// Bytes of the files that a result names, as links. It names each a second time in its structured part.
const MAX_NAMED_FILES: usize = 100 << 10;

/// The HTTP request of a message, if there is one.
pub(super) fn parts(context: &RequestContext<RoleServer>) -> Option<&Parts> {
    context.extensions.get::<Parts>()
}

/// Runs a program.
pub(super) async fn python(
    server: &Server,
    request: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
    arrival: Option<Arrival>,
) -> Result<CallToolResponse, ErrorData> {
    let arguments = match server.profile {
        Profile::Full => read::<PythonArguments>(request.arguments),
        Profile::PythonAlone => read::<ProgramAlone>(request.arguments).map(Into::into),
    };
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(error) => return Ok(failed(&error).into()),
    };
    let timeout = arguments.timeout_seconds.map(seconds);
    let run = match request.request_state {
        // The client's user has answered about a waiting program.
        Some(state) => {
            drop(arrival);
            approve::answered(server, &state, &arguments.code, request.input_responses, context).await
        }
        None => start(server, arguments, timeout, context, arrival).await,
    };
    match run {
        Ok(run) => {
            let limit = match server.profile {
                Profile::Full => server.mcp.return_after,
                // Its client has no tool to collect the result later.
                Profile::PythonAlone => Duration::from_secs_f64(MAX_SECONDS),
            };
            let interrupts = Some(run.cancel.clone());
            follow(server, &run, context, limit, interrupts).await
        }
        Err(error) => Ok(failed(&error).into()),
    }
}

async fn start(
    server: &Server,
    arguments: PythonArguments,
    timeout: Option<Duration>,
    context: &RequestContext<RoleServer>,
    arrival: Option<Arrival>,
) -> Result<Arc<Run>, ToolError> {
    let engine = &server.mcp.engine;
    if let Some(arrival) = &arrival {
        arrival.wait().await;
    }
    if arguments.code.trim().is_empty() {
        return Err(ToolError("The program is empty: send it as `code`.".to_owned()));
    }
    server.mcp.budgets.check(&engine.store, &server.tenant).await.map_err(|error| ToolError(error.message))?;
    let session = server.session(arguments.session.as_deref()).await?;
    let id = session.id().to_string();
    let program = ClientProgram {
        id: engine.store.owned_turn_id("exec").await?.into(),
        tenant: server.tenant.clone(),
        sender: approve::client(context),
        target: ProgramTarget::Session(session),
        code: arguments.code,
        timeout,
    };
    Ok(server.mcp.runs.start(engine, program, id)?)
}

/// Waits for a program that an earlier call left running.
pub(super) async fn wait(
    server: &Server,
    request: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let arguments = match read::<WaitArguments>(request.arguments) {
        Ok(arguments) => arguments,
        Err(error) => return Ok(failed(&error).into()),
    };
    let Some(run) = server.mcp.runs.find(&server.tenant, &arguments.execution) else {
        let id = excerpt::line(&arguments.execution, 80);
        let words = format!("There is no execution '{id}': results are kept for ten minutes. Run the program again.");
        return Ok(failed(&ToolError(words)).into());
    };
    let limit = arguments.timeout_seconds.map_or(Duration::MAX, seconds).min(server.mcp.return_after);
    follow(server, &run, context, limit, None).await
}

/// Follows a program until it ends or the time is over. A client that disconnects or cancels fires `interrupts`.
async fn follow(
    server: &Server,
    run: &Run,
    context: &RequestContext<RoleServer>,
    limit: Duration,
    interrupts: Option<CancellationToken>,
) -> Result<CallToolResponse, ErrorData> {
    let guard = interrupts.map(CancellationToken::drop_guard);
    let mut stage = run.stage.clone();
    let mut deadline = pin!(sleep_until(Instant::now() + limit));
    let mut progress = Progress::new(context);
    let mut is_asked = false;
    let room = if parts(context).is_some() { MAX_IMAGES } else { MAX_IMAGES_IN_LINE };
    let response = loop {
        let now = stage.borrow_and_update().clone();
        let last_line = match now {
            Stage::Ended(_, ended) => break self::ended(server, run, &ended, room).await.into(),
            Stage::AwaitsApproval(approval) if !is_asked => {
                is_asked = true;
                match approve::ask(server, run, &approval, context).await? {
                    approve::Asked::Later(response) => break response,
                    approve::Asked::Now | approve::Asked::Elsewhere => continue,
                }
            }
            Stage::AwaitsApproval(_) => "waits for approval".to_owned(),
            Stage::Running { last_line } => last_line,
        };
        tokio::select! {
            biased;
            // The guard interrupts the program.
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("The call was cancelled.", None)),
            () = &mut deadline => break running(run, &stage.borrow()).into(),
            changed = stage.changed() => {
                if changed.is_err() {
                    break self::ended(server, run, &ProgramEnd::lost(), room).await.into();
                }
            }
            () = progress.due() => progress.tell(context, last_line).await,
        }
    };
    if let Some(guard) = guard {
        // The call returns: from now on the program goes on by itself.
        let _goes_on = guard.disarm();
    }
    Ok(response)
}

/// Notices of progress, for a client that wants them.
struct Progress {
    token: Option<rmcp::model::ProgressToken>,
    began: Instant,
    next: Instant,
}

impl Progress {
    fn new(context: &RequestContext<RoleServer>) -> Self {
        let began = Instant::now();
        Self { token: context.meta.get_progress_token(), began, next: began + BEAT }
    }

    async fn due(&self) {
        match self.token {
            Some(_) => sleep_until(self.next).await,
            None => std::future::pending().await,
        }
    }

    /// Reports the call's time so far, in seconds.
    async fn tell(&mut self, context: &RequestContext<RoleServer>, last_line: String) {
        self.next = Instant::now() + BEAT;
        let Some(token) = self.token.clone() else { return };
        let mut notice = ProgressNotificationParam::new(token, self.began.elapsed().as_secs_f64());
        notice.message = (!last_line.is_empty()).then_some(last_line);
        context.peer.notify_progress(notice).await.ignore("the transport notices a client that is gone");
    }
}

/// The result of a program that ended, with so many bytes of images.
async fn ended(server: &Server, run: &Run, ended: &ProgramEnd, mut room: u64) -> CallToolResult {
    let mut content = vec![ContentBlock::text(match server.profile {
        Profile::Full => format!("{}\n{}", ended.text(), handle(run)),
        Profile::PythonAlone => ended.text(),
    })];
    let mut inline = Vec::new();
    for image in &ended.images {
        let file = resources::content(server, &run.session, &image.path, room, None).await;
        if let Ok(Some(file)) = file {
            room -= file.bytes.len() as u64;
            content.push(ContentBlock::image(BASE64_STANDARD.encode(&file.bytes), file.mime));
            inline.push(&image.id);
        }
    }
    let mut left = MAX_NAMED_FILES;
    let is_named = |file: &&SessionFile| {
        left = left.saturating_sub(resources::size_of(&resources::of(&run.session, file)));
        left > 0
    };
    let named: Vec<&SessionFile> = ended.files.iter().take_while(is_named).collect();
    let links = named.iter().filter(|file| server.profile == Profile::Full && !inline.contains(&&file.id));
    content.extend(links.map(|file| ContentBlock::resource_link(resources::of(&run.session, file))));
    if named.len() < ended.files.len() {
        content.push(ContentBlock::text(format!("and {} more files", ended.files.len() - named.len())));
    }
    let files = named.into_iter().map(|file| ReportedFile {
        path: resources::shown_path(file).to_owned(),
        uri: resources::uri(&run.session, &file.path),
        mime_type: file.mime.clone(),
        size: file.bytes,
    });
    let report = Report {
        status: ended.status,
        session: Some(run.session.clone()),
        execution: Some(run.id.clone()),
        stdout: Some(ended.stdout.clone()),
        stderr: Some(ended.stderr.clone()),
        result: ended.result.clone(),
        error: ended.error.clone(),
        note: (!ended.note.is_empty()).then(|| ended.note.clone()),
        files: Some(files.collect()),
        truncated: Some(ended.is_cut),
        duration_ms: ended.elapsed_ms,
    };
    result(content, server.profile, &report, ended.is_error())
}

/// The result of a call that returns before its program.
fn running(run: &Run, stage: &Stage) -> CallToolResult {
    let wait = format!("Call `wait` with execution '{}' for its result. Do not run it again.\n{}", run.id, handle(run));
    let text = match stage {
        Stage::AwaitsApproval(approval) => {
            format!("The program waits for the operator's approval ({}). {wait}", approval.id)
        }
        Stage::Running { last_line } if !last_line.is_empty() => {
            format!("The program still runs; it last printed: {last_line}\n{wait}")
        }
        Stage::Running { .. } | Stage::Ended(..) => format!("The program still runs. {wait}"),
    };
    let report = Report {
        status: Status::Running,
        session: Some(run.session.clone()),
        execution: Some(run.id.clone()),
        note: Some(text.clone()),
        ..Report::default()
    };
    result(vec![ContentBlock::text(text)], Profile::Full, &report, false)
}

/// The result of a call that failed.
pub(super) fn failed(error: &ToolError) -> CallToolResult {
    // Some clients give a model only the structured content.
    let report = Report { note: Some(error.0.clone()), ..Report::default() };
    result(vec![ContentBlock::text(error.0.clone())], Profile::Full, &report, true)
}

fn result(content: Vec<ContentBlock>, profile: Profile, report: &Report, is_error: bool) -> CallToolResult {
    let mut result = if is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
    if profile == Profile::Full {
        // A struct of texts and numbers can always be written.
        result.structured_content = serde_json::to_value(report).ok();
    }
    result
}

/// The text that tells a model how to continue.
fn handle(run: &Run) -> String {
    format!("(session {}: pass it as `session` to go on with these variables and files)", run.session)
}

/// Reads the arguments of a call.
pub(super) fn read<T: DeserializeOwned>(arguments: Option<JsonObject>) -> Result<T, ToolError> {
    let arguments = arguments.unwrap_or_default();
    serde_json::from_value(arguments.into()).map_err(|error| {
        ToolError(format!("The arguments cannot be read: {}.", excerpt::line(&error.to_string(), 300)))
    })
}

fn seconds(seconds: f64) -> Duration {
    // NaN and infinity count as the maximum.
    let seconds = if seconds.is_finite() { seconds.clamp(0.1, MAX_SECONDS) } else { MAX_SECONDS };
    Duration::from_secs_f64(seconds)
}
