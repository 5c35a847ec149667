//! Ctrl-C, and the request to end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// Receives SIGINT and SIGTERM, and SIGHUP where that is asked for. From the first call of [`Signals::listen`] on, they no longer end the
/// process by themselves.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

/// True once a command answers signals.
static ARE_ANSWERED: AtomicBool = AtomicBool::new(false);

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        ARE_ANSWERED.store(true, Ordering::Relaxed);
        Self::new()
    }

    /// As [`Signals::listen`], and for the end of the terminal, unless the process was started to outlive it, as nohup does.
    pub(crate) fn listen_at_terminal() -> io::Result<Self> {
        let hangup = if is_hangup_ignored()? { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { hangup, ..Self::listen()? })
    }

    fn new() -> io::Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hangup: None })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hung_up(&mut self.hangup) => {}
        }
    }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns true if SIGHUP is ignored by this process (proc_pid_status(5), `SigIgn`).
fn is_hangup_ignored() -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Its number is 1.
    Ok(ignored.is_some_and(|mask| mask & 1 == 1))
}

/// Receives SIGINT and SIGTERM for the build of a template, after which a command goes on.
#[derive(Debug)]
pub(crate) struct BuildSignals(Signals);

impl BuildSignals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self(Signals::new()?))
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        self.0.next().await;
    }

    /// Lets a signal end the process, as it would have if nobody had listened, until the command answers signals.
    pub(crate) fn end_process_until_answered(mut self) {
        tokio::spawn(async move {
            self.next().await;
            if !ARE_ANSWERED.load(Ordering::Relaxed) {
                std::process::exit(Exit::Interrupted.status().into());
            }
        });
    }
}

/// Keeps SIGUSR1 and SIGUSR2 from ending this process, which a script for the logs of other servers may send. Programs that it starts
/// do not inherit this.
pub(crate) fn ignore_user_signals() -> io::Result<()> {
    for kind in [SignalKind::user_defined1(), SignalKind::user_defined2()] {
        drop(signal(kind)?);
    }
    Ok(())
}

/// Receives SIGHUP, on which the configuration is read again.
#[derive(Debug)]
pub(crate) struct Hangups(Signal);

impl Hangups {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::hangup())?))
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}
