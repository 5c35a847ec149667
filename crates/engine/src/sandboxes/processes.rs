//! Commands that run in a sandbox and outlive the clients that started them.

mod audit_note;
mod output_log;
mod process;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aludel_sandbox::Sandbox;
pub use aludel_sandbox::process::PtySize;
use aludel_sandbox::process::{Command, ExitStatus};
use aludel_store::{AuditEvent, Tenant};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};

use self::audit_note::{AuditNote, command_line};
pub use self::output_log::{LogPart, ProcessStream};
pub use self::process::{ProcessEvent, ProcessView, SandboxProcess};
use super::{HOME, Shared};
use crate::Error;
use crate::environment::check_names;
use crate::meter::Leftovers;

/// Commands of one sandbox that run at once, including those that are starting.
const MAX_RUNNING: usize = 128;
/// Ended commands of one sandbox that clients can still look up.
const MAX_ENDED: usize = 32;
/// Signals and sizes that wait for a command.
const MAX_ORDERS: usize = 16;
/// Bytes of a command line and its variables.
const MAX_COMMAND: usize = 1 << 20;
/// Bytes of a command line and its variables that are kept and shown.
const MAX_SHOWN: usize = 16 << 10;
/// Bytes of a client's name for a command.
pub const MAX_TAG: usize = 128;
/// Bytes of one command's entries in the audit log, besides the command itself.
const AUDIT_ENTRIES_BYTES: u64 = 4096;

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// By itself or by a signal.
    Status(ExitStatus),
    /// It was killed when its time was over.
    TimedOut,
    /// The sandbox ended first.
    SandboxEnded,
}

/// A command to start.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// The program, and its arguments.
    pub arguments: Vec<String>,
    /// Environment variables beside those that every process of a sandbox has.
    pub environment: BTreeMap<String, String>,
    /// The directory in which it starts; home if there is none.
    pub directory: Option<String>,
    /// The client's name for it.
    pub tag: Option<String>,
    /// True if its stdin stays open for input of clients; always so in a terminal.
    pub input: bool,
    /// The size of its terminal; `None` for pipes.
    pub pty: Option<PtySize>,
    /// Time after which it is killed. While the sandbox is paused, it does not count.
    pub time_limit: Option<Duration>,
    /// True if its output is for [`SandboxProcess::log`], not for its next follower.
    pub log: bool,
}

impl ProcessSpec {
    /// Shortens the command line and the variables, which are kept as long as the command is known.
    fn shortened(mut self) -> Self {
        let (mut left, mut kept) = (MAX_SHOWN, 0);
        for word in &mut self.arguments {
            if left == 0 {
                break;
            }
            word.truncate(word.floor_char_boundary(left));
            word.shrink_to_fit();
            left -= left.min(word.len() + 1);
            kept += 1;
        }
        self.arguments.truncate(kept);
        self.arguments.shrink_to_fit();
        self.environment.retain(|name, value| {
            let bytes = name.len() + value.len() + 1;
            let is_kept = bytes <= left;
            left -= if is_kept { bytes } else { 0 };
            is_kept
        });
        self
    }
}

/// The commands of one sandbox.
pub struct Processes {
    sandbox: Arc<dyn Sandbox>,
    leftovers: Arc<Leftovers>,
    shared: Shared,
    tenant: Tenant,
    sandbox_id: String,
    /// The number of the last command, which counts on when another sandbox takes this id over.
    last: Arc<AtomicU32>,
    /// Commands by number.
    known: Mutex<BTreeMap<u32, Arc<SandboxProcess>>>,
    /// Held by each command from before it starts.
    permits: Arc<Semaphore>,
    /// True while the sandbox is paused.
    paused: watch::Sender<bool>,
}

impl fmt::Debug for Processes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Processes").field("sandbox", &self.sandbox_id).finish_non_exhaustive()
    }
}

impl Processes {
    pub(super) fn new(
        sandbox: Arc<dyn Sandbox>,
        leftovers: Arc<Leftovers>,
        shared: Shared,
        tenant: Tenant,
        sandbox_id: String,
        last: Arc<AtomicU32>,
    ) -> Self {
        let (known, permits) = (Mutex::default(), Arc::new(Semaphore::new(MAX_RUNNING)));
        let paused = watch::Sender::new(false);
        Self { sandbox, leftovers, shared, tenant, sandbox_id, last, known, permits, paused }
    }

    /// Stops the clocks of the commands, or lets them go on.
    pub(super) fn set_paused(&self, is_paused: bool) {
        self.paused.send_replace(is_paused);
    }

    /// Starts a command. It is in the audit log before it runs.
    pub async fn start(&self, spec: ProcessSpec) -> Result<ProcessView, Error> {
        Self::check(&spec)?;
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| Error::SandboxFull { limit: MAX_RUNNING, things: "commands" })?;
        self.shared.processor_time.share_of(&self.tenant).start_process().await;
        let line = command_line(&spec.arguments);
        let bytes = AUDIT_ENTRIES_BYTES + line.len() as u64;
        let _room = self.shared.store.reserve(&self.tenant, bytes..=bytes).await?;
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (store, tenant) = (self.shared.store.clone(), self.tenant.clone());
        let mut note = AuditNote::new(store, tenant, self.sandbox_id.clone(), number, line);
        note.write(AuditEvent::Started, "the client", "").await?;
        note.shorten();
        let command = Command {
            arguments: spec.arguments.clone(),
            environment: spec.environment.clone().into_iter().collect(),
            directory: spec.directory.clone().unwrap_or_else(|| HOME.to_owned()),
            pty: spec.pty,
        };
        let mut started = match self.sandbox.spawn(command).await {
            Ok(started) => started,
            Err(error) => {
                note.write(AuditEvent::Ended, "", &error.to_string()).await?;
                return Err(error.into());
            }
        };
        let input = if spec.input || spec.pty.is_some() { started.stdin.take() } else { None };
        drop(started.stdin.take());
        let (pid, (orders, receiver)) = (started.id(), mpsc::channel(MAX_ORDERS));
        let process = Arc::new(SandboxProcess::new(pid, number, spec.shortened(), input, orders));
        let attached = process.attach()?;
        self.remember(&process);
        let time = (self.shared.meter.command(&self.tenant), self.leftovers.attend());
        let running = process::run(process, started, receiver, note, time, self.paused.subscribe(), permit);
        self.shared.tasks.spawn(self.shared.processor_time.share_of(&self.tenant).pace(running));
        Ok(attached)
    }

    fn check(spec: &ProcessSpec) -> Result<(), Error> {
        let invalid = |field, reason: String| Err(Error::Invalid { field, reason });
        let words = spec.arguments.iter().map(String::len).sum::<usize>();
        let variables = spec.environment.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if spec.arguments.first().is_none_or(String::is_empty) {
            return invalid("cmd", "there is no command".to_owned());
        }
        if words + variables > MAX_COMMAND {
            return invalid("cmd", format!("a command and its variables may have {} KB", MAX_COMMAND >> 10));
        }
        if spec.arguments.iter().chain(&spec.directory).any(|word| word.contains('\0')) {
            return invalid("cmd", "a command has no zero bytes".to_owned());
        }
        if spec.tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
            return invalid("tag", format!("a tag has at most {MAX_TAG} bytes"));
        }
        check_names(&spec.environment)?;
        Ok(())
    }

    fn remember(&self, process: &Arc<SandboxProcess>) {
        let mut known = self.known.lock();
        known.insert(process.number, Arc::clone(process));
        let ended: Vec<_> =
            known.values().filter(|process| process.has_ended()).map(|process| process.number).collect();
        for number in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
            known.remove(number);
        }
    }

    /// The commands that run, in the order in which they were started.
    pub fn running(&self) -> Vec<Arc<SandboxProcess>> {
        self.known.lock().values().filter(|process| !process.has_ended()).cloned().collect()
    }

    /// The last started command with this process id, running or ended.
    pub fn of_pid(&self, pid: u32) -> Option<Arc<SandboxProcess>> {
        self.known.lock().values().rev().find(|process| process.pid() == pid).cloned()
    }

    /// The command that was last started under this tag.
    pub fn of_tag(&self, tag: &str) -> Option<Arc<SandboxProcess>> {
        self.known.lock().values().rev().find(|process| process.spec().tag.as_deref() == Some(tag)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_command_no_more_is_kept_than_is_shown() {
        let long = "é".repeat(MAX_SHOWN / 2 - 4);
        let variables = [("A", "x"), ("B", long.as_str()), ("C", "y")];
        let environment: BTreeMap<_, _> =
            variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let arguments = vec!["sh".to_owned(), "-c".to_owned(), "true".to_owned()];
        let spec = ProcessSpec { arguments: arguments.clone(), environment, ..ProcessSpec::default() }.shortened();
        assert_eq!((spec.arguments, spec.environment.into_keys().collect::<String>()), (arguments, "AC".to_owned()));
        let words = vec!["sh".to_owned(), long.clone(), long, "end".to_owned()];
        let spec = ProcessSpec { arguments: words.clone(), ..ProcessSpec::default() }.shortened();
        assert_eq!((&spec.arguments[..2], spec.arguments[2].as_str()), (&words[..2], "éé"));
        assert_eq!(spec.arguments.len(), 3);
    }
}
