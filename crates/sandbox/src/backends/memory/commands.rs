//! Scripted commands: they read and print nothing, and run until a signal or the end of their sandbox.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use aludel_ignore::Ignore;
use parking_lot::Mutex;
use tokio::io::{duplex, empty};
use tokio::sync::oneshot;

use crate::process::{ExitStatus, Process};

/// Bytes that a command's pipes hold.
const PIPE_BYTES: usize = 64;

/// The commands of one sandbox.
#[derive(Debug, Default)]
pub(super) struct Commands {
    live: Mutex<Vec<Weak<CommandEnd>>>,
    last_id: AtomicU32,
}

/// The sender of a command's end, until it has ended.
#[derive(Debug)]
struct CommandEnd(Mutex<Option<oneshot::Sender<Option<ExitStatus>>>>);

impl CommandEnd {
    fn tell(&self, status: Option<ExitStatus>) {
        let sender = self.0.lock().take();
        if let Some(sender) = sender {
            sender.send(status).ignore("the receiver may be gone");
        }
    }
}

impl Commands {
    /// Starts a command. Its pipes stay open after its end, as when a child of its holds them.
    pub(super) fn start(&self) -> Process {
        let (sender, ended) = oneshot::channel();
        let end = Arc::new(CommandEnd(Mutex::new(Some(sender))));
        let mut live = self.live.lock();
        live.retain(|command| command.strong_count() > 0);
        live.push(Arc::downgrade(&end));
        let ((stdin, input), (stdout, output)) = (duplex(PIPE_BYTES), duplex(PIPE_BYTES));
        let held = [input, output];
        let signal = move |signal| {
            let _held_open = &held;
            end.tell(Some(ExitStatus::Signal(signal)));
        };
        Process {
            stdin: Some(Box::new(stdin)),
            stdout: Box::new(stdout),
            stderr: Box::new(empty()),
            id: self.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            signal: Box::new(signal),
            resize: None,
            ended,
        }
    }

    /// Ends all of them, since their sandbox ends.
    pub(super) fn end(&self) {
        self.live.lock().iter().filter_map(Weak::upgrade).for_each(|command| command.tell(None));
    }
}
