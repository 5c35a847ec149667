//! `aludel sandbox`: sandboxes of a server for people, and sandboxes for a program that starts this one.

mod command;
mod copy;
mod list;
mod output_printer;
mod port;
mod process;
mod shell;
mod stdio;

use std::collections::BTreeMap;
use std::time::Duration;

use aludel_wire::e2b::NewSandbox;
use clap::{Args, Subcommand};

use crate::config::DurationValue;
use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::remote::{RemoteServer, ServerArgs};
use crate::{program, terminal};

/// Make and use sandboxes of a server
///
/// The server is the one that runs on the data directory, or the one that --url names; `aludel serve` starts one. SANDBOX is an id, the
/// beginning of an id, or the name that `create --name` gave. Sandboxes that the SDKs of E2B made with the same key are listed, too.
#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    command: SandboxCommand,
}

#[derive(Debug, Subcommand)]
enum SandboxCommand {
    /// List sandboxes that live
    Ls {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Make a sandbox and print its id
    Create(CreateArgs),
    /// Run a command in a sandbox and exit with its status
    Exec(command::ExecArgs),
    /// Open a shell in a sandbox; without SANDBOX, in a new one that ends with the shell
    Shell(shell::ShellArgs),
    /// Copy a file or a directory into a sandbox or out of one
    Cp(copy::CopyArgs),
    /// List the commands that run in a sandbox, or follow the output of one
    Logs(command::LogsArgs),
    /// Reach a port of a sandbox's programs at an address of this machine
    Port(port::PortArgs),
    /// End sandboxes
    Kill {
        /// Sandboxes to end
        #[arg(value_name = "SANDBOX", required_unless_present = "all")]
        sandboxes: Vec<String>,
        /// All of them
        #[arg(long, conflicts_with = "sandboxes")]
        all: bool,
    },
    /// Make sandboxes without a server and run programs in them, as JSON lines on stdin ask
    #[command(after_help = stdio::HELP)]
    Stdio,
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// A name to call it by, which no other sandbox has
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The template that it starts from; the server offers its own and those of `sandbox.templates`
    #[arg(long, value_name = "NAME", default_value = "base")]
    template: String,
    /// Time until it ends, such as 30m; at most `sandbox.lifetime` of the server
    #[arg(long, value_name = "TIME", default_value = "1h")]
    timeout: String,
    /// A variable of all its commands and programs; without a value, the one that it has here. May be given several times
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    environment: Vec<String>,
}

pub(crate) async fn run(args: SandboxArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let SandboxArgs { server, command } = args;
    if matches!(command, SandboxCommand::Stdio) {
        return stdio::run(context).await;
    }
    let server = RemoteServer::of(&server, context)?;
    match command {
        SandboxCommand::Ls { json } => list::run(&server, json).await,
        SandboxCommand::Create(args) => create(&server, args, context).await,
        SandboxCommand::Exec(args) => command::exec(&server, args, context).await,
        SandboxCommand::Shell(args) => shell::run(&server, args, context).await,
        SandboxCommand::Cp(args) => copy::run(&server, &args).await,
        SandboxCommand::Logs(args) => command::logs(&server, &args).await,
        SandboxCommand::Port(args) => port::run(&server, args).await,
        SandboxCommand::Kill { sandboxes, all } => kill(&server, sandboxes, all).await,
        SandboxCommand::Stdio => Ok(Exit::Success),
    }
}

async fn create(server: &RemoteServer, args: CreateArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let timeout: DurationValue =
        args.timeout.parse().map_err(|why| usage(format!("--timeout {}: {why}", args.timeout)))?;
    let environment = program::environment(&args.environment, &context.host)?;
    if let Some(name) = &args.name {
        let there = server.list().await?.into_iter().find(|listed| listed.metadata.get("name") == Some(name));
        if let Some(there) = there {
            return Err(usage(format!(
                "the sandbox {} is called {} already; `aludel sandbox kill {}` ends it, or take another name",
                there.sandbox_id,
                terminal::name(name),
                there.sandbox_id
            )));
        }
    }
    let sandbox =
        server.create(&new(args.template, timeout.duration(), args.name, environment.into_iter().collect())).await?;
    Console::new().line(StandardStream::Stdout, &sandbox.id)?;
    Ok(Exit::Success)
}

/// A sandbox to be made.
fn new(template: String, timeout: Duration, name: Option<String>, environment: BTreeMap<String, String>) -> NewSandbox {
    NewSandbox {
        template_id: template,
        timeout: Some(i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX)),
        // Another request may be under way for the same name.
        unique_name: name.is_some().then_some(true),
        auto_pause: None,
        auto_pause_memory: None,
        auto_resume: None,
        secure: None,
        allow_internet_access: None,
        network: None,
        metadata: name.map(|name| BTreeMap::from([("name".to_owned(), name)])),
        env_vars: Some(environment),
        volume_mounts: None,
        mcp: None,
    }
}

async fn kill(server: &RemoteServer, named: Vec<String>, all: bool) -> anyhow::Result<Exit> {
    let named = if all { server.list().await?.into_iter().map(|listed| listed.sandbox_id).collect() } else { named };
    let (mut console, mut exit) = (Console::new(), Exit::Success);
    for name in named {
        // The others are ended even if one fails.
        let killed = async {
            let sandbox = server.find(&name).await?;
            sandbox.kill().await?;
            anyhow::Ok(sandbox.id)
        };
        match killed.await {
            Ok(id) => console.line(StandardStream::Stdout, &id)?,
            Err(error) => {
                exit = Exit::of_error(&error);
                crate::console::fail(&crate::exit::words(&error));
            }
        }
    }
    Ok(exit)
}
