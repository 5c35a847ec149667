//! The last conversation at the terminal, saved for `--continue`: a file beside the store, whose sessions have the files.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aludel_agent::Item;
use aludel_store::SessionId;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::context::CommandContext;
use crate::exit::usage;
use crate::state;

/// Time for which a conversation is kept.
pub(crate) const CONVERSATION_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a saved conversation; the oldest questions are left out.
const MAX_BYTES: usize = 4 << 20;
/// The name of the file in the directory of the state.
const NAME: &str = "conversation.json";

/// A conversation that can be gone on with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedConversation {
    session: String,
    /// The process that kept it, which may still go on with it.
    process: u32,
    /// The conversation, with the output of programs.
    pub(crate) items: Vec<Item>,
}

impl SavedConversation {
    /// A conversation of this process.
    pub(crate) fn new(session: &SessionId, items: &[Item]) -> Self {
        Self { session: session.to_string(), process: std::process::id(), items: items.to_vec() }
    }

    /// Reads the last one, if there is one.
    pub(crate) fn read(context: &CommandContext) -> anyhow::Result<Option<Self>> {
        let path = path(context);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).with_context(|| {
                format!("the last conversation cannot be read; remove {} to forget it", path.display())
            })?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Reads the last one for `--continue`; fails if there is none.
    pub(crate) fn read_to_continue(context: &CommandContext) -> anyhow::Result<Self> {
        Self::read(context)?.ok_or_else(|| usage("--continue: no question was asked before, or it was forgotten"))
    }

    /// Replaces the last one. Returns the session that is no longer needed, if there is one.
    pub(crate) fn write(mut self, context: &CommandContext) -> anyhow::Result<Option<SessionId>> {
        self.shorten();
        let last = Self::read(context).ok().flatten().filter(|last| last.session != self.session && !last.is_in_use());
        let path = path(context);
        let written = || {
            let mut file = tempfile::Builder::new()
                .permissions(PermissionsExt::from_mode(0o600))
                .tempfile_in(path.parent().unwrap_or(Path::new(".")))?;
            file.write_all(&serde_json::to_vec(&self)?)?;
            file.persist(&path)?;
            Ok::<_, io::Error>(())
        };
        written().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(last.and_then(|last| last.session()))
    }

    /// The session with its files.
    pub(crate) fn session(&self) -> Option<SessionId> {
        SessionId::parse(&self.session)
    }

    /// Returns true if another process may still go on with it.
    fn is_in_use(&self) -> bool {
        self.process != std::process::id() && Path::new(&format!("/proc/{}", self.process)).exists()
    }

    /// Leaves out the oldest questions with their answers until the rest is short enough.
    fn shorten(&mut self) {
        let bytes = |item: &Item| serde_json::to_vec(item).map_or(0, |text| text.len());
        let mut sizes: Vec<usize> = self.items.iter().map(bytes).collect();
        while sizes.iter().sum::<usize>() > MAX_BYTES {
            let next = self.items.iter().skip(1).position(|item| matches!(item, Item::User(_)));
            let end = next.map_or(self.items.len(), |index| index + 1);
            self.items.drain(..end);
            sizes.drain(..end);
        }
    }
}

fn path(context: &CommandContext) -> PathBuf {
    state::directory(&context.config.server.data).join(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_questions_are_left_out() {
        let long = "x".repeat(MAX_BYTES / 2);
        let exchange = |answer: &str| [Item::user("q"), Item::Assistant(answer.to_owned())];
        let mut kept =
            SavedConversation::new(&SessionId::new(), &[exchange(&long), exchange(&long), exchange("short")].concat());
        kept.shorten();
        assert_eq!(kept.items, [exchange(&long), exchange("short")].concat());
        let mut huge = SavedConversation::new(&SessionId::new(), &exchange(&long.repeat(3)));
        huge.shorten();
        assert_eq!(huge.items, []);
    }
}
