//! The command line of aludel.
#![forbid(unsafe_code)]

mod approval;
mod args;
mod color;
mod commands;
mod config;
mod console;
mod context;
mod ending;
mod exit;
mod fold;
#[cfg(test)]
mod guide;
mod image_protocol;
mod inputs;
mod json;
mod markdown;
mod memory;
mod notebook;
mod output_directory;
mod program;
mod progress;
mod remote;
mod sandboxes;
mod saved_conversation;
mod screen;
mod show;
mod signals;
mod sixel;
mod socket;
mod spinner;
mod state;
mod template_build;
mod terminal;
mod turn;
mod turn_items;
mod upstream;
mod wrap;

use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use aludel_ignore::Ignore;
use anyhow::Context as _;
use clap::Parser;

use commands::CliArguments;
use config::HostEnvironment;
use context::CommandContext;
use exit::Exit;

/// The longest that the end of a server waits for whoever reads its log.
const LOG_TIME: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    aludel_jail::give_back_large_memory();
    let arguments = CliArguments::parse();
    let speaks_json = arguments.command.speaks_json();
    let exit = run(arguments).unwrap_or_else(|error| report(&error, speaks_json));
    aludel_server::flush_log(LOG_TIME);
    exit.into()
}

fn run(arguments: CliArguments) -> anyhow::Result<Exit> {
    let host = HostEnvironment::of_this_process();
    let config_sources = (arguments.config.clone(), arguments.flags());
    let config = config::load(&host, config_sources.0.as_deref(), &config_sources.1)?;
    arguments.command.open_log(&config);
    for warning in &config.warnings {
        console::warn(warning);
    }
    let context = CommandContext { config, host, config_sources, verbose: arguments.verbose };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    // The runtime polls a future in several places, each of which would have its own copy of all commands.
    let command: Pin<Box<dyn Future<Output = anyhow::Result<Exit>> + '_>> = Box::pin(arguments.command.run(&context));
    let exit = runtime.block_on(command);
    // A thread that still reads from a terminal must not keep the process from ending.
    runtime.shutdown_background();
    exit
}

/// Prints an error with its causes: the only place that does.
fn report(error: &anyhow::Error, speaks_json: bool) -> Exit {
    let exit = Exit::of_error(error);
    if exit == Exit::OutputClosed {
        return exit;
    }
    let message = exit::words(error);
    console::fail(&message);
    if speaks_json {
        json::end(json::EndLine::error(exit, message)).ignore("there is no other place to report it");
    }
    exit
}
