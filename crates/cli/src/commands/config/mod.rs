//! `aludel config`: the values with their origins, and the reference of all settings.

mod import;

use clap::{Args, Subcommand};
use serde_json::{Map, json};

use super::serve;
use crate::config::{self, ConfigEntry, ValueOrigin};
use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::{color, json, terminal};

/// Show the configuration, with the origin of each value
///
/// Values come, in rising order, from defaults, from a file (--config FILE, $ALUDEL_CONFIG, ./aludel.toml,
/// ~/.config/aludel/aludel.toml or /etc/aludel/aludel.toml, the first that is there), from the environment (ALUDEL_SANDBOX_MEMORY and so
/// on) and from flags. Keys of models are never shown. The exit status is 2 for a configuration that `aludel serve` refuses.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Tell every setting: its form, default, description and variable; with PART those whose name contains it
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "", conflicts_with = "json")]
    explain: Option<String>,
    /// Print the reference of all settings as Markdown
    #[arg(long, conflicts_with_all = ["json", "explain"])]
    markdown: bool,
    /// Print a JSON schema of aludel.toml, for editors
    #[arg(long, conflicts_with_all = ["json", "explain", "markdown"])]
    schema: bool,
    #[command(subcommand)]
    command: Option<ConfigCommand>,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    Import(import::ConfigImportArgs),
}

pub(crate) fn run(args: &ConfigArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    if let Some(ConfigCommand::Import(args)) = &args.command {
        return import::run(args);
    }
    if args.schema {
        let schema = serde_json::to_string_pretty(&config::schema())?;
        Console::new().line(StandardStream::Stdout, &schema)?;
        return Ok(Exit::Success);
    }
    let reference = match &args.explain {
        Some(part) => Some(config::explain(part).ok_or_else(|| usage(format!("no setting's name contains {part:?}")))?),
        None => args.markdown.then(config::markdown),
    };
    if let Some(text) = reference {
        Console::new().line(StandardStream::Stdout, text.trim_end())?;
        return Ok(Exit::Success);
    }
    let entries = context.config.entries();
    if args.json {
        let values: Map<_, _> = entries
            .into_iter()
            .map(|ConfigEntry { key, value, origin }| (key, json!({ "value": value, "origin": origin.to_string() })))
            .collect();
        json::print(&json!({ "file": context.config.file, "values": values }))?;
        return serve::check(context).map(|()| Exit::Success);
    }
    let mut console = Console::new();
    let file = match &context.config.file {
        Some(file) => file.display().to_string(),
        None => "none found".to_owned(),
    };
    console.line(StandardStream::Stdout, &format!("{}  {file}\n", color::strong("configuration file")))?;
    let width = |of: fn(&ConfigEntry) -> &str| entries.iter().map(|entry| of(entry).chars().count()).max().unwrap_or(0);
    let (key_width, value_width) = (width(|entry| &entry.key), width(|entry| &entry.value));
    for ConfigEntry { key, value, origin } in &entries {
        let origin = match origin {
            ValueOrigin::Default => color::faint("default"),
            given => terminal::name(&given.to_string()),
        };
        let (key, value) = (terminal::name(key), terminal::name(value));
        console.line(StandardStream::Stdout, &format!("{key:key_width$}  {value:value_width$}  {origin}"))?;
    }
    serve::check(context).map(|()| Exit::Success)
}
