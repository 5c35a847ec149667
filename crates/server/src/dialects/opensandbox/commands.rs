//! Commands in a sandbox, in the foreground or the background.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::execution::{ExitStatus, SIGTERM};
use aludel_engine::sandboxes::{
    ClientSandbox, ProcessEnd, ProcessEvent, ProcessSpec, ProcessStream as Channel, ProcessView, SandboxProcess,
};
use aludel_store::random_hex;
use aludel_wire::opensandbox::code::{EventKind, Failure};
use aludel_wire::opensandbox::commands::{CommandStatus, RunCommand};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout};

use super::code::named;
use super::events::{Source, stream};
use super::target::TargetSandbox;
use super::{describe, env_file};
use crate::app::App;
use crate::client_sandboxes::commands::{USER, check_approval, command_environment};
use crate::client_sandboxes::refusal::refused;
use crate::error::ApiError;
use crate::http::{Fields, Params};

/// The shell of command lines.
pub(super) const SHELL: &str = "/bin/bash";
/// Time that a command has to end after it was asked to.
const TERM_GRACE: Duration = Duration::from_secs(3);
/// Bytes of a line that are sent at once.
const MAX_LINE: usize = 256 << 10;
/// Lines that are sent at once: a client that reads nothing holds them, and each is many times as long in its event.
const MAX_LINES: usize = 256;
/// Bytes of the longest character.
const MAX_CHARACTER: usize = 4;
/// The header with the beginning of the next part of a log.
const CURSOR: HeaderName = HeaderName::from_static("execd-commands-tail-cursor");

/// `POST /command`
pub(super) async fn run(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    body: Fields,
) -> Result<Response, ApiError> {
    let asked: RunCommand = body.read()?;
    if asked.uid.is_some() || asked.gid.is_some() {
        let message = format!("uid and gid are not supported: everything in this sandbox runs as the user '{USER}'.");
        return Err(ApiError::bad_request(message).code("NOT_SUPPORTED"));
    }
    let arguments = match (asked.command, asked.argv) {
        (Some(line), None) => vec![SHELL.to_owned(), "-c".to_owned(), line],
        (None, Some(arguments)) => arguments,
        _ => return Err(ApiError::bad_request("A command has either a command line or argv.")),
    };
    let is_background = asked.background == Some(true);
    let new = NewCommand {
        arguments,
        directory: asked.cwd,
        environment: asked.envs.unwrap_or_default(),
        time_limit: limit(asked.timeout),
    };
    if !is_background {
        return follow(&app, &sandbox, new).await;
    }
    let began = Instant::now();
    let (id, _background) = start(&app, &sandbox, new, true, |attached| attached).await?;
    let execution_time = millis(began.elapsed());
    Ok(stream(vec![EventKind::Init { text: id }, EventKind::ExecutionComplete { execution_time }], Silence))
}

/// A time limit of so many milliseconds; none for 0.
pub(super) fn limit(timeout: Option<u64>) -> Option<Duration> {
    timeout.filter(|millis| *millis > 0).map(Duration::from_millis)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A command to start.
pub(super) struct NewCommand {
    pub(super) arguments: Vec<String>,
    pub(super) directory: Option<String>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) time_limit: Option<Duration>,
}

/// Starts a command, whose output is kept for later requests if `log` is true. Returns its id and the result of `hold`, which is dropped if
/// the client is gone by then.
async fn start<T: Send + 'static>(
    app: &App,
    sandbox: &Arc<ClientSandbox>,
    new: NewCommand,
    log: bool,
    hold: impl FnOnce(ProcessView) -> T + Send + 'static,
) -> Result<(String, T), ApiError> {
    check_approval(app)?;
    let mut given = env_file::read(sandbox).await?;
    given.extend(new.environment);
    let (directory, environment) = command_environment(sandbox, new.directory, given);
    let id = format!("cmd_{:.24}", random_hex());
    let spec = ProcessSpec {
        arguments: new.arguments,
        environment,
        directory,
        tag: Some(id.clone()),
        input: false,
        pty: None,
        time_limit: new.time_limit,
        log,
    };
    let sandbox = Arc::clone(sandbox);
    // In a task: if the client disconnects, the command is still registered.
    let started = app.tasks.finish(async move { sandbox.processes().start(spec).await.map(hold).map_err(refused) });
    Ok((id, started.await??))
}

/// Starts a command and answers with its events. It is killed if the client disconnects, from its start on.
pub(super) async fn follow(app: &App, sandbox: &Arc<ClientSandbox>, new: NewCommand) -> Result<Response, ApiError> {
    let began = Instant::now();
    let (id, command) = start(app, sandbox, new, false, ForegroundCommand).await?;
    Ok(stream(vec![EventKind::Init { text: id }], CommandStream::new(command, began)))
}

/// No events.
struct Silence;

impl Source for Silence {
    fn next(&mut self) -> BoxFuture<'_, Option<Vec<EventKind>>> {
        std::future::ready(None).boxed()
    }
}

/// A command that is killed when its client is gone.
struct ForegroundCommand(ProcessView);

impl Drop for ForegroundCommand {
    fn drop(&mut self) {
        if !self.0.process.has_ended() {
            self.0.process.kill();
        }
    }
}

/// A command that is streamed, line by line.
struct CommandStream {
    command: ForegroundCommand,
    began: Instant,
    /// Output whose lines come next.
    waiting: Option<(Channel, Bytes)>,
    stdout: Lines,
    stderr: Lines,
}

impl CommandStream {
    fn new(command: ForegroundCommand, began: Instant) -> Self {
        Self { command, began, waiting: None, stdout: Lines::default(), stderr: Lines::default() }
    }
}

impl Source for CommandStream {
    fn next(&mut self) -> BoxFuture<'_, Option<Vec<EventKind>>> {
        async {
            loop {
                let mut events = Vec::new();
                let next = match self.waiting.take() {
                    Some((channel, bytes)) => ProcessEvent::Output(channel, bytes),
                    None => self.command.0.next().await?,
                };
                match next {
                    ProcessEvent::Output(channel, mut bytes) => {
                        let lines = bytes.split_to(end_of_lines(&bytes));
                        match channel {
                            Channel::Stdout | Channel::Pty => {
                                self.stdout.add(&lines, |text| events.push(EventKind::Stdout { text }));
                            }
                            Channel::Stderr => self.stderr.add(&lines, |text| events.push(EventKind::Stderr { text })),
                        }
                        self.waiting = Some((channel, bytes)).filter(|(_, bytes)| !bytes.is_empty());
                    }
                    ProcessEvent::Ended(exit) => {
                        events.extend(self.stdout.rest().map(|text| EventKind::Stdout { text }));
                        events.extend(self.stderr.rest().map(|text| EventKind::Stderr { text }));
                        events.push(ending(exit, self.began.elapsed()));
                    }
                }
                if !events.is_empty() {
                    return Some(events);
                }
            }
        }
        .boxed()
    }
}

/// The number of bytes of the first [`MAX_LINES`] lines.
fn end_of_lines(bytes: &[u8]) -> usize {
    let ends = bytes.iter().enumerate().filter(|(_, byte)| matches!(byte, b'\n' | b'\r'));
    ends.map(|(at, _)| at + 1).nth(MAX_LINES - 1).unwrap_or(bytes.len())
}

fn ending(exit: ProcessEnd, took: Duration) -> EventKind {
    match failure(exit) {
        None => EventKind::ExecutionComplete { execution_time: millis(took) },
        Some((status, words)) => {
            let (ename, evalue) = ("CommandExecError".to_owned(), status.to_string());
            EventKind::Error { error: Failure { ename, evalue, traceback: vec![words] } }
        }
    }
}

/// The exit status of a command that failed, and its description.
fn failure(exit: ProcessEnd) -> Option<(i32, String)> {
    match exit {
        ProcessEnd::Status(ExitStatus::Code(0)) => None,
        ProcessEnd::Status(ExitStatus::Code(code)) => Some((code, format!("exit status {code}"))),
        ProcessEnd::Status(ExitStatus::Signal(signal)) => Some((-1, format!("signal {signal}"))),
        ProcessEnd::TimedOut => Some((-1, "the time of the command is over".to_owned())),
        ProcessEnd::SandboxEnded => Some((-1, "the sandbox ended".to_owned())),
    }
}

/// The lines of an output, whose last one may be incomplete. They end with `\n`, `\r` or both, as execd's do.
#[derive(Default)]
struct Lines {
    /// The bytes of the last one.
    last: Vec<u8>,
    /// True if a part of the last one was passed on, since it is longer than [`MAX_LINE`].
    is_cut: bool,
    /// True after `\r`, which a `\n` may belong to.
    follows_return: bool,
}

impl Lines {
    /// Takes bytes, and passes on the lines that end in them.
    fn add(&mut self, bytes: &[u8], mut tell: impl FnMut(String)) {
        for byte in bytes {
            let belongs_to_last = *byte == b'\n' && self.follows_return;
            self.follows_return = *byte == b'\r';
            match byte {
                b'\n' if belongs_to_last => {}
                b'\n' | b'\r' => {
                    // A cut that nothing follows makes no line of its own.
                    if !std::mem::take(&mut self.is_cut) || !self.last.is_empty() {
                        tell(self.take());
                    }
                }
                byte => self.last.push(*byte),
            }
            if self.last.len() >= MAX_LINE {
                // A character is passed on whole.
                let whole = self.last.utf8_chunks().next().map_or(0, |chunk| chunk.valid().len());
                let rest =
                    if self.last.len() - whole < MAX_CHARACTER { self.last.split_off(whole) } else { Vec::new() };
                tell(self.take());
                (self.last, self.is_cut) = (rest, true);
            }
        }
    }

    /// The text after the last line's end.
    fn rest(&mut self) -> Option<String> {
        (!self.last.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.last)).into_owned()
    }
}

fn find(sandbox: &ClientSandbox, id: &str) -> Result<Arc<SandboxProcess>, ApiError> {
    let shown: String = id.chars().take(64).collect();
    let found = sandbox.processes().of_tag(&shown);
    found.ok_or_else(|| ApiError::not_found(format!("command not found: {shown}")))
}

/// `DELETE /command`
pub(super) async fn interrupt(
    State(app): State<Arc<App>>,
    TargetSandbox { sandbox, .. }: TargetSandbox,
    params: Params,
) -> Result<StatusCode, ApiError> {
    let process = find(&sandbox, named(&params)?)?;
    let ending = async move {
        process.signal(SIGTERM).await;
        if timeout(TERM_GRACE, process.ended()).await.is_err() {
            process.kill();
        }
    };
    app.tasks.finish(ending).await?;
    Ok(StatusCode::OK)
}

/// `GET /command/status/{command}`
pub(super) async fn status(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Path((_, id)): Path<(String, String)>,
) -> Result<Json<CommandStatus>, ApiError> {
    let process = find(&sandbox, &id)?;
    let content = match process.spec().arguments.as_slice() {
        [shell, flag, line] if shell == SHELL && flag == "-c" => line.clone(),
        arguments => arguments.join(" "),
    };
    let exit = process.exit();
    let failed = exit.and_then(|(exit, _)| failure(exit));
    let (exit_code, error) = match (exit, failed) {
        (None, _) => (None, None),
        (Some(_), None) => (Some(0), None),
        (Some(_), Some((code, words))) => (Some(code), Some(words)),
    };
    Ok(Json(CommandStatus {
        id,
        content,
        running: exit.is_none(),
        exit_code,
        error,
        started_at: describe::time(process.started()),
        finished_at: exit.map(|(_, at)| describe::time(at)),
    }))
}

/// `GET /command/{command}/logs`
pub(super) async fn logs(
    TargetSandbox { sandbox, .. }: TargetSandbox,
    Path((_, id)): Path<(String, String)>,
    params: Params,
) -> Result<Response, ApiError> {
    let process = find(&sandbox, &id)?;
    if !process.spec().log {
        return Err(ApiError::bad_request("Only commands in the background have a log."));
    }
    let cursor = match params.get("cursor").map(str::parse) {
        None => 0,
        Some(Ok(cursor)) => cursor,
        Some(Err(_)) => return Err(ApiError::bad_request("invalid cursor: it must be a number")),
    };
    let part = process.log(cursor);
    let mut text = String::from_utf8_lossy(&part.bytes).into_owned();
    if part.dropped > 0 {
        text.insert_str(0, &format!("[{} bytes before this are not kept]\n", part.dropped));
    }
    let kind = (CONTENT_TYPE, "text/plain; charset=utf-8".to_owned());
    Ok(([kind, (CURSOR, part.next.to_string())], text).into_response())
}

#[cfg(test)]
mod tests {
    use aludel_engine::Engine;
    use aludel_engine::sandboxes::NewSandbox;
    use aludel_sandbox::memory::{Memory, simple};
    use aludel_store::{Store, Tenant};

    use super::*;
    use crate::ServerSettings;

    #[tokio::test]
    async fn a_command_whose_client_leaves_while_it_starts_is_killed() {
        let data = tempfile::tempdir().unwrap();
        let (store, backend) = (Store::open(data.path()).await.unwrap(), Arc::new(Memory::with_commands(simple)));
        let engine = Engine::new(store, backend, [], Default::default(), Vec::new(), Default::default());
        let app = App::new(Arc::new(engine), ServerSettings::default());
        let new = NewSandbox { timeout: Duration::from_secs(60), ..NewSandbox::default() };
        let sandbox = app.engine.sandboxes.create(&Tenant::local(), new).await.unwrap();
        let (arguments, environment) = (vec!["cat".to_owned()], BTreeMap::new());
        let new = NewCommand { arguments, directory: None, environment, time_limit: None };
        let mut starting = Box::pin(follow(&app, &sandbox, new));
        assert!(futures_util::poll!(&mut starting).is_pending());
        drop(starting);
        let ended = async {
            loop {
                let records = app.store.audit_log(0, 10).await.unwrap();
                if let Some(record) = records.into_iter().find(|record| record.event == "ended") {
                    return record.outcome;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert_eq!(timeout(Duration::from_secs(10), ended).await.expect("its end"), "signal 9");
    }

    #[test]
    fn output_is_told_by_lines() {
        let (mut lines, mut complete) = (Lines::default(), Vec::new());
        for piece in ["a\r\nb", "c\n\n", "1\r2", "\r", "\n3\n\rd"] {
            lines.add(piece.as_bytes(), |line| complete.push(line));
        }
        assert_eq!(complete, ["a", "bc", "", "1", "2", "3", ""]);
        assert_eq!((lines.rest().as_deref(), lines.rest()), (Some("d"), None));
        complete.clear();
        lines.add(&vec![b'x'; MAX_LINE + 1], |line| complete.push(line));
        assert_eq!((complete[0].len(), lines.rest().as_deref()), (MAX_LINE, Some("x")));
    }

    #[test]
    fn as_many_lines_as_a_silent_client_may_hold_are_sent_at_once() {
        assert_eq!(end_of_lines(&[b'\n'].repeat(MAX_LINES + 1)), MAX_LINES);
        assert_eq!(end_of_lines(&b"a\r".repeat(MAX_LINES + 1)), 2 * MAX_LINES);
        assert_eq!(end_of_lines(b"a\nb"), 3);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_between_characters() {
        let cut = |text: &[u8]| {
            let (mut lines, mut complete) = (Lines::default(), Vec::new());
            text.chunks(1000).for_each(|piece| lines.add(piece, |line| complete.push(line)));
            assert_eq!(lines.rest(), None);
            complete
        };
        for character in ["x", "é", "€", "𝄞"] {
            for shift in 0..4 {
                let line = "-".repeat(shift) + &character.repeat(MAX_LINE);
                let complete = cut(format!("{line}\n\n").as_bytes());
                assert_eq!((complete.concat(), complete.last().map(String::as_str)), (line, Some("")));
            }
        }
        assert_eq!(cut(&[&"x".repeat(MAX_LINE).into_bytes()[..], b"\n"].concat()).len(), 1);
        assert!(cut(&[0xff].repeat(MAX_LINE)).concat().chars().all(|character| character == '\u{fffd}'));
    }
}
