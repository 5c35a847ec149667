//! `aludel sandbox shell` and `exec --tty`: a command on this terminal.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_wire::e2b::Bytes;
use aludel_wire::e2b::process::{
    Input, Output, ProcessConfig, ProcessEvent, Pty, PtySize, Selector, StartRequest, UpdateRequest,
};
use anyhow::Context as _;
use clap::Args;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use super::output_printer::status;
use super::process::{send, started};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::remote::{CommandEvents, Remote, RemoteServer};
use crate::signals::Signals;

/// Lifetime of a sandbox for a single shell, counted from its last extension.
const SANDBOX_LIFE: Duration = Duration::from_secs(300);
/// Pause between two times.
const PUT_OFF: Duration = Duration::from_secs(60);
/// End of the input of a terminal, Ctrl-D.
const END_OF_INPUT: u8 = 4;

#[derive(Debug, Args)]
pub(super) struct ShellArgs {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: Option<String>,
}

pub(super) async fn run(server: &RemoteServer, args: ShellArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let process =
        ProcessConfig { cmd: "/bin/bash".to_owned(), args: vec!["-il".to_owned()], ..ProcessConfig::default() };
    check_terminal()?;
    if let Some(named) = &args.sandbox {
        return at_terminal(&server.find(named).await?, process, context).await;
    }
    let sandbox = server.create(&super::new("base".to_owned(), SANDBOX_LIFE, None, BTreeMap::new())).await?;
    let kept = async {
        loop {
            tokio::time::sleep(PUT_OFF).await;
            sandbox.extend_lifetime(SANDBOX_LIFE).await.ignore("the next attempt may succeed");
        }
    };
    let exit = tokio::select! {
        exit = at_terminal(&sandbox, process, context) => exit,
        () = kept => Ok(Exit::Success),
    };
    sandbox.kill().await.ignore("it ends by itself within minutes");
    exit
}

fn check_terminal() -> anyhow::Result<()> {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return Ok(());
    }
    Err(usage("stdin and stdout must be a terminal; `aludel sandbox exec -i` takes input from elsewhere"))
}

/// Runs a command with this terminal.
pub(super) async fn at_terminal(
    sandbox: &Remote,
    mut process: ProcessConfig,
    context: &CommandContext,
) -> anyhow::Result<Exit> {
    check_terminal()?;
    let kind = context.host.variable("TERM").unwrap_or("xterm-256color");
    process.envs.entry("TERM".to_owned()).or_insert_with(|| kind.to_owned());
    let mut resized = signal(SignalKind::window_change()).context("cannot listen to signals")?;
    let mut signals = Signals::listen_at_terminal().context("cannot listen to signals")?;
    let request = StartRequest { process, pty: Some(Pty { size: size() }), tag: None, stdin: Some(true) };
    let mut events = sandbox.start(&request).await?;
    let pid = started(&mut events).await?;
    let raw = RawMode::begin().context("cannot change the terminal")?;
    let keys = async {
        let (mut stdin, mut piece) = (tokio::io::stdin(), [0; 4096]);
        loop {
            tokio::select! {
                read = stdin.read(&mut piece) => {
                    let read = read?;
                    if read == 0 {
                        send(sandbox, pid, Input::Pty(Bytes(vec![END_OF_INPUT]))).await?;
                        return anyhow::Ok(());
                    }
                    let bytes = piece.get(..read).unwrap_or_default().to_vec();
                    send(sandbox, pid, Input::Pty(Bytes(bytes))).await?;
                }
                _ = resized.recv() => {
                    let request = UpdateRequest { process: Selector::Pid(pid), pty: Some(Pty { size: size() }) };
                    sandbox.call::<Value>("/process.Process/Update", &request).await?;
                }
            }
        }
    };
    let keys = async {
        keys.await.ignore("the events report the end of the command or the server");
        std::future::pending::<()>().await;
    };
    let exit = tokio::select! {
        exit = show(events) => exit,
        () = keys => Ok(Exit::Success),
        () = signals.next() => Ok(Exit::Interrupted),
    };
    drop(raw);
    exit
}

/// Writes a command's terminal output to this terminal until it ends.
async fn show(mut events: CommandEvents) -> anyhow::Result<Exit> {
    loop {
        match events.next().await? {
            ProcessEvent::Data(Output::Pty(bytes) | Output::Stdout(bytes) | Output::Stderr(bytes)) => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&bytes.0)?;
                stdout.flush()?;
            }
            ProcessEvent::End(ended) => return Ok(status(&ended)),
            ProcessEvent::Start(_) | ProcessEvent::Keepalive(_) => {}
        }
    }
}

/// The size of this terminal.
fn size() -> PtySize {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or(PtySize { cols: 80, rows: 24 }, |size| PtySize { cols: size.ws_col.into(), rows: size.ws_row.into() })
}

/// A terminal that hands on every key, until this is dropped.
struct RawMode(Termios);

impl RawMode {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        tcsetattr(io::stdin(), OptionalActions::Now, &self.0).ignore("the terminal may be gone");
    }
}
