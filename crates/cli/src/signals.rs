//! Ctrl-C, and the request to end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// Receives SIGINT and SIGTERM. From the first call of [`Signals::listen`] on, they no longer end the process by themselves.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// True once a command answers signals.
static ARE_ANSWERED: AtomicBool = AtomicBool::new(false);

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        ARE_ANSWERED.store(true, Ordering::Relaxed);
        Self::new()
    }

    fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
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
