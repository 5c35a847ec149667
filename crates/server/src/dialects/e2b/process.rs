//! Commands in a sandbox: the service `process.Process`, and other routes of its server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::execution::{ExitStatus, SIGKILL, SIGTERM};
use aludel_engine::sandboxes::{
    ClientSandbox, MAX_TAG, ProcessEnd, ProcessEvent, ProcessSpec, ProcessStream, ProcessView, PtySize, SandboxProcess,
};
use aludel_ignore::Ignore;
use aludel_wire::e2b::process::{
    Empty, Ended, EventMessage, Input, ListResponse, Output, ProcessConfig, ProcessInfo, SelectRequest, Selector,
    SendInputRequest, SendSignalRequest, Signal, StartRequest, Started, UpdateRequest,
};
use aludel_wire::e2b::{Bytes, ConnectCode, Metric, process};
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::time::timeout;

use super::connect::{Client, Failure, FirstFrame, Message, StreamFailure, deadline, keepalive, stream};
use super::describe;
use super::target::TargetSandbox;
use super::user::{check_user, named_user};
use crate::app::App;
use crate::client_sandboxes::commands::{check_approval, command_environment};
use crate::client_sandboxes::listing::listing;
use crate::error::ApiError;

/// The longest wait for the end of a killed command.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// `List`
pub(super) async fn list(State(app): State<Arc<App>>, reached: TargetSandbox) -> Result<Response, Failure> {
    let list = async {
        let running = reached.sandbox.processes().running();
        let processes = running.iter().map(|process| ProcessInfo {
            config: config(process.spec()),
            pid: process.pid(),
            tag: process.spec().tag.clone(),
        });
        Ok::<_, Failure>(ListResponse { processes: processes.collect() })
    };
    listing(&app, &reached.sandbox, list).await
}

fn config(spec: &ProcessSpec) -> ProcessConfig {
    let (cmd, args) = spec.arguments.split_first().map(|(cmd, args)| (cmd.clone(), args.to_vec())).unwrap_or_default();
    ProcessConfig { cmd, args, envs: spec.environment.clone(), cwd: spec.directory.clone() }
}

/// `Start`
pub(super) async fn start(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    headers: HeaderMap,
    FirstFrame(request): FirstFrame<StartRequest>,
) -> Result<Response, StreamFailure> {
    check_user(named_user(&headers).as_deref())?;
    check_approval(&app)?;
    let StartRequest { process, pty, tag, stdin } = request;
    let (directory, environment) = command_environment(&sandbox, process.cwd, process.envs);
    let spec = ProcessSpec {
        arguments: std::iter::once(process.cmd).chain(process.args).collect(),
        environment,
        directory,
        tag,
        pty: pty.map(|pty| window(pty.size)),
        input: stdin.unwrap_or(true),
        time_limit: deadline(&headers),
        log: false,
    };
    // In a task: if the client disconnects, the command is still registered.
    let started = app.tasks.finish(async move { sandbox.processes().start(spec).await }).await??;
    Ok(follow(started, keepalive(&headers)))
}

/// The size of a terminal, at least one character each way.
fn window(size: process::PtySize) -> PtySize {
    let bounded = |count: u32| u16::try_from(count.max(1)).unwrap_or(u16::MAX);
    PtySize { columns: bounded(size.cols), rows: bounded(size.rows) }
}

/// `Connect`
pub(super) async fn connect(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    headers: HeaderMap,
    FirstFrame(request): FirstFrame<SelectRequest>,
) -> Result<Response, StreamFailure> {
    Ok(follow(find(&sandbox, &request.process)?.attach()?, keepalive(&headers)))
}

fn follow(attached: ProcessView, pause: Duration) -> Response {
    stream(move |client| tell(client, attached, pause))
}

/// Sends a command's events to a client until its end.
async fn tell(client: Client, mut attached: ProcessView, pause: Duration) -> Result<(), Failure> {
    let event = |event| EventMessage { event };
    let alive = event(process::ProcessEvent::Keepalive(Empty {}));
    client.send(&event(process::ProcessEvent::Start(Started { pid: attached.process.pid() }))).await;
    loop {
        let Ok(next) = timeout(pause, attached.next()).await else {
            client.send(&alive).await;
            continue;
        };
        match next {
            Some(ProcessEvent::Output(stream, bytes)) => {
                let bytes = Bytes(bytes.into());
                let output = match stream {
                    ProcessStream::Stdout => Output::Stdout(bytes),
                    ProcessStream::Stderr => Output::Stderr(bytes),
                    ProcessStream::Pty => Output::Pty(bytes),
                };
                client.send(&event(process::ProcessEvent::Data(output))).await;
            }
            Some(ProcessEvent::Ended(ProcessEnd::TimedOut)) => {
                return Err(Failure::new(ConnectCode::DeadlineExceeded, "the time of the command is over"));
            }
            Some(ProcessEvent::Ended(ProcessEnd::Status(status))) => {
                client.send(&event(process::ProcessEvent::End(ended(status)))).await;
                return Ok(());
            }
            Some(ProcessEvent::Ended(ProcessEnd::SandboxEnded)) | None => {
                return Err(Failure::sandbox_ended());
            }
        }
    }
}

fn ended(status: ExitStatus) -> Ended {
    match status {
        ExitStatus::Code(code) => {
            let status = format!("exit status {code}");
            let error = (code != 0).then(|| status.clone());
            Ended { exit_code: code, exited: true, status, error }
        }
        ExitStatus::Signal(signal) => {
            let status = match signal {
                SIGKILL => "signal: killed".to_owned(),
                SIGTERM => "signal: terminated".to_owned(),
                signal => format!("signal: {signal}"),
            };
            Ended { exit_code: -1, exited: false, error: Some(status.clone()), status }
        }
    }
}

fn find(sandbox: &ClientSandbox, selector: &Selector) -> Result<Arc<SandboxProcess>, Failure> {
    match selector {
        Selector::Pid(pid) => {
            let process = sandbox.processes().of_pid(*pid);
            process.ok_or_else(|| Failure::not_found(format!("process with pid {pid} not found")))
        }
        Selector::Tag(tag) => {
            let tag: String = tag.chars().take(MAX_TAG).collect();
            let process = sandbox.processes().of_tag(&tag);
            process.ok_or_else(|| Failure::not_found(format!("process with tag {tag} not found")))
        }
    }
}

/// A running command.
fn find_running(sandbox: &ClientSandbox, selector: &Selector) -> Result<Arc<SandboxProcess>, Failure> {
    let process = find(sandbox, selector)?;
    if process.has_ended() {
        return Err(Failure::not_found(format!("process with pid {} not found", process.pid())));
    }
    Ok(process)
}

/// `SendInput`
pub(super) async fn send_input(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Message(request): Message<SendInputRequest>,
) -> Result<Json<Empty>, Failure> {
    let process = find_running(&sandbox, &request.process)?;
    match request.input {
        Input::Stdin(Bytes(bytes)) => process.send(&bytes).await?,
        Input::Pty(Bytes(bytes)) if process.spec().pty.is_some() => process.send(&bytes).await?,
        Input::Pty(_) => return Err(Failure::invalid("the command has no terminal")),
    }
    Ok(Json(Empty {}))
}

/// `CloseStdin`
pub(super) async fn close_stdin(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Message(request): Message<SelectRequest>,
) -> Result<Json<Empty>, Failure> {
    find_running(&sandbox, &request.process)?.close_input().await;
    Ok(Json(Empty {}))
}

/// `SendSignal`
pub(super) async fn send_signal(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Message(request): Message<SendSignalRequest>,
) -> Result<Json<Empty>, Failure> {
    let signal = match request.signal {
        Signal::Term => SIGTERM,
        Signal::Kill => SIGKILL,
    };
    let process = find_running(&sandbox, &request.process)?;
    process.signal(signal).await;
    if request.signal == Signal::Kill {
        // A later request must not find it; the wait is bounded.
        timeout(KILL_TIMEOUT, process.ended()).await.ignore("the wait is bounded");
    }
    Ok(Json(Empty {}))
}

/// `Update`
pub(super) async fn update(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Message(request): Message<UpdateRequest>,
) -> Result<Json<Empty>, Failure> {
    let process = find_running(&sandbox, &request.process)?;
    if let Some(pty) = request.pty {
        if process.spec().pty.is_none() {
            return Err(Failure::invalid("the command has no terminal"));
        }
        process.resize(window(pty.size)).await;
    }
    Ok(Json(Empty {}))
}

/// `GET /envs`
pub(super) async fn environment(TargetSandbox { sandbox, .. }: TargetSandbox) -> Json<BTreeMap<String, String>> {
    Json(sandbox.spec().environment.clone())
}

/// `GET /metrics`
pub(super) async fn metrics(TargetSandbox { sandbox, .. }: TargetSandbox) -> Result<Json<Metric>, ApiError> {
    Ok(Json(describe::metric(&sandbox).await))
}
