//! Lines that a person types, with editing and a history.

use std::path::{Path, PathBuf};

use aludel_ignore::Ignore;
use anyhow::Context as _;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use tokio::sync::oneshot;

/// The name of the file with the history, beside the store.
const HISTORY: &str = "history";
/// Lines of the history.
const MAX_HISTORY: usize = 1000;
/// The words before each line.
const PROMPT: &str = "> ";

/// A line, or the event that replaced it.
pub(super) enum ChatLine {
    /// Something was typed.
    Text(String),
    /// Nothing, or it was given up by Ctrl-C.
    Dropped,
    /// There are no more.
    End,
}

/// Lines from standard input.
pub(super) struct LineReader {
    /// A thread that reads has it.
    editor: Option<DefaultEditor>,
    history: PathBuf,
    /// The settings of the terminal before anything was read.
    before: Option<Termios>,
}

impl LineReader {
    /// Lines with a history in this directory.
    pub(super) fn new(state: &Path) -> anyhow::Result<Self> {
        let config = Config::builder().auto_add_history(true).build();
        let mut editor = DefaultEditor::with_config(config).context("cannot read lines")?;
        editor.set_max_history_size(MAX_HISTORY).context("cannot keep a history")?;
        let history = state.join(HISTORY);
        editor.load_history(&history).ignore("there is no history at first");
        Ok(Self { editor: Some(editor), history, before: tcgetattr(std::io::stdin()).ok() })
    }

    /// Reads the next line. If this is dropped before its end, there are no more lines: a thread still reads, because reading from a
    /// terminal cannot be cancelled.
    pub(super) async fn next(&mut self) -> anyhow::Result<ChatLine> {
        let Some(mut editor) = self.editor.take() else { return Ok(ChatLine::End) };
        let (sender, read) = oneshot::channel();
        std::thread::spawn(move || {
            let line = editor.readline(PROMPT);
            sender.send((editor, line)).ignore("the receiver is gone if the process ends");
        });
        let (mut editor, line) = read.await.context("lines can no longer be read")?;
        let line = match line {
            Ok(line) if line.trim().is_empty() => ChatLine::Dropped,
            Ok(line) => {
                editor.save_history(&self.history).ignore("the history may not be writable");
                ChatLine::Text(line)
            }
            Err(ReadlineError::Interrupted) => ChatLine::Dropped,
            Err(ReadlineError::Eof) => ChatLine::End,
            Err(error) => return Err(error).context("cannot read a line"),
        };
        self.editor = Some(editor);
        Ok(line)
    }
}

impl Drop for LineReader {
    fn drop(&mut self) {
        if let (None, Some(before)) = (&self.editor, &self.before) {
            // A thread may have left the terminal in the state for editing.
            tcsetattr(std::io::stdin(), OptionalActions::Now, before).ignore("the terminal may be gone");
        }
    }
}
