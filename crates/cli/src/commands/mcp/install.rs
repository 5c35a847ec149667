//! `aludel mcp install`: configuration of MCP clients for this server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::color;
use crate::config::ValueOrigin;
use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::Exit;

/// Print the lines of configuration by which a client knows this server
///
/// Nothing is changed: put the lines where it says. Clients of this machine start `aludel mcp`; those that cannot, or run elsewhere, ask
/// `aludel serve` at /mcp.
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// The client [default: all of them]
    #[arg(value_enum, value_name = "CLIENT")]
    client: Option<Client>,
}

/// Clients whose configuration is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Client {
    ClaudeDesktop,
    ClaudeCode,
    #[value(name = "vscode")]
    VsCode,
    Cursor,
    #[value(name = "librechat")]
    LibreChat,
    #[value(name = "open-webui")]
    OpenWebUi,
}

/// A command that a client starts.
#[derive(Debug, Serialize)]
struct StartCommand {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    command: PathBuf,
    args: Vec<String>,
}

/// The configuration of most clients.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct McpServers {
    mcp_servers: BTreeMap<&'static str, StartCommand>,
}

/// The configuration of VS Code.
#[derive(Debug, Serialize)]
struct Servers {
    servers: BTreeMap<&'static str, StartCommand>,
}

pub(crate) fn run(args: &InstallArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let mut console = Console::new();
    let clients = args.client.map_or_else(|| Client::value_variants().to_vec(), |client| vec![client]);
    for (index, client) in clients.into_iter().enumerate() {
        if index > 0 {
            console.line(StandardStream::Stdout, "")?;
        }
        console.line(StandardStream::Stdout, &color::strong(client.title()))?;
        console.line(StandardStream::Stdout, &client.lines(context)?)?;
    }
    Ok(Exit::Success)
}

impl Client {
    fn title(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "Claude Desktop",
            Self::ClaudeCode => "Claude Code",
            Self::VsCode => "VS Code",
            Self::Cursor => "Cursor",
            Self::LibreChat => "LibreChat",
            Self::OpenWebUi => "Open WebUI",
        }
    }

    fn lines(self, context: &CommandContext) -> anyhow::Result<String> {
        let start = |kind| start(kind, context);
        let url = format!("http://{}/mcp", *context.config.server.listen);
        Ok(match self {
            Self::ClaudeDesktop => format!(
                "In claude_desktop_config.json (macOS: ~/Library/Application Support/Claude, Windows: %APPDATA%\\Claude):\n{}",
                json(&McpServers { mcp_servers: BTreeMap::from([("aludel", start(None)?)]) })?
            ),
            Self::ClaudeCode => {
                let StartCommand { command, args, .. } = start(None)?;
                let words = std::iter::once(command.display().to_string()).chain(args).map(|word| quoted(&word));
                format!(
                    "Run once:\nclaude mcp add --scope user aludel -- {}\nOr, with a server elsewhere:\n\
                     claude mcp add --transport http --scope user aludel {url} --header \"Authorization: Bearer YOUR_KEY\"",
                    words.collect::<Vec<_>>().join(" ")
                )
            }
            Self::VsCode => format!(
                "In .vscode/mcp.json of a workspace, or the user's mcp.json (command \"MCP: Open User Configuration\"):\n{}",
                json(&Servers { servers: BTreeMap::from([("aludel", start(Some("stdio"))?)]) })?
            ),
            Self::Cursor => format!(
                "In ~/.cursor/mcp.json:\n{}",
                json(&McpServers { mcp_servers: BTreeMap::from([("aludel", start(None)?)]) })?
            ),
            Self::LibreChat => format!(
                "In librechat.yaml, with `aludel serve` running (in a container, name the host instead of 127.0.0.1, allow that host \
                 in `mcpSettings.allowedDomains`, and make a key):\n\
                 mcpServers:\n  aludel:\n    type: streamable-http\n    url: {url}\n    headers:\n      Authorization: \"Bearer YOUR_KEY\"\n    \
                 timeout: 60000"
            ),
            Self::OpenWebUi => format!(
                "With `aludel serve` running: Admin Settings, External Tools, Add Server; type \"MCP (Streamable HTTP)\", \
                 URL {url}, Auth \"Bearer\" with a key of `aludel keys create`."
            ),
        })
    }
}

/// The command that starts this executable with this configuration.
fn start(kind: Option<&'static str>, context: &CommandContext) -> anyhow::Result<StartCommand> {
    let command = std::env::current_exe().context("cannot tell where this executable is")?;
    let mut args = Vec::new();
    if let Some(file) = &context.config.file {
        let file = std::path::absolute(file).context("cannot tell where the configuration is")?;
        args.extend(["--config".to_owned(), file.display().to_string()]);
    }
    let data = &context.config.server.data;
    if matches!(data.origin, ValueOrigin::Flag(_) | ValueOrigin::Environment(_)) {
        args.extend(["--data".to_owned(), data.display().to_string()]);
    }
    args.push("mcp".to_owned());
    Ok(StartCommand { kind, command, args })
}

fn json(value: &impl Serialize) -> anyhow::Result<String> {
    serde_json::to_string_pretty(value).context("cannot write the configuration")
}

/// A word as shells take it.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_shells() {
        assert_eq!(quoted("/usr/bin/aludel"), "/usr/bin/aludel");
        assert_eq!(quoted("/my dir/it's"), "'/my dir/it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
