//! `aludel sandbox exec` and `logs`: commands that read a pipe and write to two.

use std::io::IsTerminal;

use aludel_ignore::Ignore;
use aludel_wire::e2b::Bytes;
use aludel_wire::e2b::process::{
    Input, ListResponse, ProcessConfig, ProcessEvent, SelectRequest, Selector, SendSignalRequest, Signal, StartRequest,
};
use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::output_printer::{OutputPrinter, status};
use super::process::{send, started};
use super::shell;
use crate::console::{self, Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::Exit;
use crate::remote::{CommandEvents, Remote, RemoteServer};
use crate::signals::Signals;
use crate::{program, terminal};

/// Bytes of input that are sent at once.
const PIECE: usize = 32 << 10;

#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    /// Hand on standard input
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal, with this one's size and keys
    #[arg(short, long, conflicts_with = "detach")]
    tty: bool,
    /// Print the command's number and leave it running; `aludel sandbox logs` follows it
    #[arg(short, long, conflicts_with = "interactive")]
    detach: bool,
    /// The directory in which it starts [default: /home/user]
    #[arg(short = 'C', long, value_name = "DIR")]
    directory: Option<String>,
    /// A variable of its environment; without a value, the one that it has here. May be given several times
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    environment: Vec<String>,
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// The command and its arguments; no shell reads them
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// The number of a command, as `exec --detach` prints it: show the output that nobody has seen, the last 64 KB of it, and follow
    #[arg(value_name = "COMMAND")]
    pid: Option<u32>,
}

pub(super) async fn exec(server: &RemoteServer, args: ExecArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let environment = program::environment(&args.environment, &context.host)?;
    let mut words = args.command.into_iter();
    let process = ProcessConfig {
        cmd: words.next().unwrap_or_default(),
        args: words.collect(),
        envs: environment.into_iter().collect(),
        cwd: args.directory,
    };
    let sandbox = server.find(&args.sandbox).await?;
    if args.tty {
        return shell::at_terminal(&sandbox, process, context).await;
    }
    let mut signals = Signals::listen_at_terminal().context("cannot listen to signals")?;
    let request = StartRequest { process, pty: None, tag: None, stdin: Some(args.interactive) };
    let mut events = sandbox.start(&request).await?;
    let pid = started(&mut events).await?;
    if args.detach {
        Console::new().line(StandardStream::Stdout, &pid.to_string())?;
        return Ok(Exit::Success);
    }
    let input = async {
        if args.interactive {
            // A command may end without reading everything.
            if let Err(error) = hand_on(&sandbox, pid).await {
                console::status(&format!("the rest of the input is not sent: {error:#}"));
                let process = Selector::Pid(pid);
                let closed = sandbox.call::<Value>("/process.Process/CloseStdin", &SelectRequest { process }).await;
                closed.map(drop).ignore("it may have ended");
            }
        }
        std::future::pending::<()>().await;
    };
    let followed = tokio::select! {
        followed = follow(&sandbox, pid, events, &mut signals) => followed,
        () = input => return Ok(Exit::Success),
    };
    if followed.is_err() {
        // The reader of its output has gone, as that of a pipe.
        signal(&sandbox, pid, Signal::Term).await;
    }
    followed
}

async fn signal(sandbox: &Remote, pid: u32, signal: Signal) {
    let request = SendSignalRequest { process: Selector::Pid(pid), signal };
    sandbox.call::<Value>("/process.Process/SendSignal", &request).await.ignore("it may have ended meanwhile");
}

/// Sends what is read from stdin to a command, and then its end.
async fn hand_on(sandbox: &Remote, pid: u32) -> anyhow::Result<()> {
    let (mut stdin, mut piece) = (tokio::io::stdin(), vec![0; PIECE]);
    loop {
        let read = stdin.read(&mut piece).await?;
        let process = Selector::Pid(pid);
        if read == 0 {
            sandbox.call::<Value>("/process.Process/CloseStdin", &SelectRequest { process }).await?;
            return Ok(());
        }
        let bytes = piece.get(..read).unwrap_or_default().to_vec();
        send(sandbox, pid, Input::Stdin(Bytes(bytes))).await?;
    }
}

/// Shows a command's output until it ends. Ctrl-C and the end of the terminal send it a signal, a second Ctrl-C kills it.
async fn follow(sandbox: &Remote, pid: u32, mut events: CommandEvents, signals: &mut Signals) -> anyhow::Result<Exit> {
    let (mut shown, mut was_asked) = (OutputPrinter::new(), false);
    loop {
        let event = tokio::select! {
            event = events.next() => event?,
            () = signals.next() => {
                signal(sandbox, pid, if was_asked { Signal::Kill } else { Signal::Term }).await;
                was_asked = true;
                continue;
            }
        };
        match event {
            ProcessEvent::Data(output) => shown.show(&output)?,
            // Stopped by its user, whatever signal that took.
            ProcessEvent::End(_) if was_asked => return Ok(Exit::Interrupted),
            ProcessEvent::End(ended) => return Ok(status(&ended)),
            ProcessEvent::Start(_) | ProcessEvent::Keepalive(_) => {}
        }
    }
}

pub(super) async fn logs(server: &RemoteServer, args: &LogsArgs) -> anyhow::Result<Exit> {
    let sandbox = server.find(&args.sandbox).await?;
    let Some(pid) = args.pid else {
        let listed: ListResponse = sandbox.call("/process.Process/List", &json!({})).await?;
        if listed.processes.is_empty() {
            console::status("no command runs there; `aludel sandbox exec --detach` starts one");
        }
        let mut console = Console::new();
        for process in listed.processes {
            let words = std::iter::once(process.config.cmd).chain(process.config.args).collect::<Vec<_>>().join(" ");
            console.line(StandardStream::Stdout, &format!("{:>6}  {}", process.pid, terminal::excerpt(&words, 100)))?;
        }
        return Ok(Exit::Success);
    };
    let request = SelectRequest { process: Selector::Pid(pid) };
    let mut events = sandbox.stream("/process.Process/Connect", &request).await?;
    let mut shown = OutputPrinter::new();
    loop {
        // Ctrl-C ends the following, not the command.
        match events.next().await? {
            ProcessEvent::Data(output) => shown.show(&output)?,
            ProcessEvent::End(ended) => {
                if std::io::stderr().is_terminal() {
                    console::status(&format!("the command ended: {}", terminal::excerpt(&ended.status, 100)));
                }
                return Ok(Exit::Success);
            }
            ProcessEvent::Start(_) | ProcessEvent::Keepalive(_) => {}
        }
    }
}
