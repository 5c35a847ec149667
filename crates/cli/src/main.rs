//! `aludel`: a self-hosted code interpreter.
#![forbid(unsafe_code)]

mod commands;
mod config;
mod engine;
mod exit;
mod output;
mod paint;
mod progress;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use commands::Arguments;
use exit::Exit;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help goes to stdout and is no failure.
            let _nowhere_to_say_it = error.print();
            let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked_for { Exit::Success } else { Exit::Usage }.into();
        }
    };
    match commands::run(arguments) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("{} {error:#}", paint::error("error:"));
            exit::of_error(&error).into()
        }
    }
}
