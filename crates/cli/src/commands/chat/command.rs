//! The commands of a conversation: lines that begin with a slash.

use std::path::PathBuf;

/// The commands, as they are listed.
pub(super) const HELP: &str = "\
/files            the files that programs find
/file PATH[:NAME] add a file or a directory; NAME is its place
/code             the programs so far
/save DIR         copy all files to a directory
/help             this list
/quit             end the conversation (or Ctrl-D); `aludel chat --continue` goes on with it
Everything else is a question. Ctrl-C stops an answer.";
/// The column of the descriptions in it.
pub(super) const HELP_COLUMN: usize = 18;

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
    Help,
    Files,
    File(Vec<PathBuf>),
    Code,
    Save(PathBuf),
    Quit,
}

impl ChatCommand {
    /// Parses a command; an error if it is unknown, `None` for a question.
    pub(super) fn parse(line: &str) -> Option<Result<Self, String>> {
        let line = line.trim();
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let name = name.strip_prefix('/')?;
        Some(match (name, rest) {
            ("help" | "?", "") => Ok(Self::Help),
            ("files", "") => Ok(Self::Files),
            ("file", "") => Err("/file needs a PATH".to_owned()),
            // The name may contain spaces, so several files are several lines.
            ("file", path) => Ok(Self::File(vec![path.into()])),
            ("code", "") => Ok(Self::Code),
            ("save", "") => Err("/save needs a directory".to_owned()),
            ("save", directory) => Ok(Self::Save(directory.into())),
            ("quit" | "exit", "") => Ok(Self::Quit),
            // It may be a path.
            (name, _) if name.contains('/') => return None,
            (name, _) => Err(format!("there is no command /{name} like this; /help lists them")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_questions() {
        for line in ["What is this?", "/mnt/data/a.csv has which columns?", "1 / 2", ""] {
            assert_eq!(ChatCommand::parse(line), None, "{line}");
        }
        for (line, command) in [
            (" /files ", ChatCommand::Files),
            ("/file my data.csv", ChatCommand::File(vec!["my data.csv".into()])),
            ("/save  out", ChatCommand::Save("out".into())),
            ("/exit", ChatCommand::Quit),
        ] {
            assert_eq!(ChatCommand::parse(line), Some(Ok(command)), "{line}");
        }
        for line in ["/file", "/save ", "/fiel a", "/quit now", "/"] {
            assert!(matches!(ChatCommand::parse(line), Some(Err(_))), "{line}");
        }
    }
}
