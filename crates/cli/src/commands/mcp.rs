//! `aludel mcp`: a server for a client that starts it itself.

mod install;

use std::sync::Arc;
use std::time::Duration;

use aludel_engine::{Engine, Environment, sessions};
use aludel_ignore::Ignore;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use tokio::time::timeout;

use crate::args::SandboxOptions;
use crate::config::Flag;
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::sandboxes::RunningBackend;
use crate::signals::Signals;
use crate::{program, state};

/// Time in which tasks end, such as a call whose answer nobody reads.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Serve the Model Context Protocol (MCP) on stdin and stdout, for a client that starts this itself
///
/// Offers tools that run Python in a sandbox of this machine and hand files in and out. It works on the state of the data directory, beside
/// a server if one is running, and ends with its input. `approval.mode` holds here, too: a program that waits is asked about by the client,
/// if it can ask, and by `aludel approvals`. `aludel serve` offers the same to remote clients at /mcp.
#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// A variable of the environment of all programs; without a value, the one that it has here. May be given several times
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    environment: Vec<String>,
    #[command(subcommand)]
    command: Option<McpCommand>,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    Install(install::InstallArgs),
}

impl McpArgs {
    pub(crate) fn flags(&self) -> Vec<Flag> {
        self.sandbox.flags().collect()
    }

    /// Returns true if it serves.
    pub(crate) fn serves(&self) -> bool {
        self.command.is_none()
    }
}

pub(crate) async fn run(args: McpArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    match args.command {
        Some(McpCommand::Install(args)) => install::run(&args, context),
        None => serve(&args.environment, context).await,
    }
}

async fn serve(variables: &[String], context: &CommandContext) -> anyhow::Result<Exit> {
    let variables = program::environment(variables, &context.host)?;
    let variables =
        Environment::new(variables.into_iter().collect()).map_err(|error| usage(format!("--env: {error}")))?;
    let mut signals = Signals::listen().context("cannot listen to signals")?;
    let approvals = context.config.approval.settings(&context.host)?;
    let store = state::open(context).await?;
    let RunningBackend { backend, packages } = RunningBackend::start(context, 1).await?;
    let mut sessions = context.config.sessions();
    sessions.environment = sessions.environment.with(&variables).map_err(|error| usage(format!("--env: {error}")))?;
    let engine = Arc::new(Engine::new(store, Arc::clone(&backend), [], approvals, packages, sessions));
    engine.tasks.spawn(sessions::heartbeat(Arc::clone(&engine)));
    let return_after = context.config.server.mcp_return_after.duration();
    let exit = tokio::select! {
        () = aludel_server::serve_mcp(&engine, return_after, tokio::io::stdin(), tokio::io::stdout()) => Exit::Success,
        () = signals.next() => Exit::Interrupted,
    };
    engine.draining.cancel();
    engine.shutdown.cancel();
    engine.tasks.close();
    timeout(END_TIMEOUT, engine.tasks.wait()).await.ignore("tasks that have not ended end with the process");
    engine.sessions.close_all().await;
    engine.meter.flush().await;
    backend.shutdown().await;
    Ok(exit)
}
