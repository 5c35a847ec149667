//! The link to a kernel on this machine: its streams, and the warden for signals.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::warden_client::KernelHandle;
use crate::Usage;
use crate::backends::streams::Streams;
use crate::frame::{Channel, FromKernel, ToKernel};
use crate::guest_pipe::Touched;
use crate::link::{KernelExit, Link, LinkControl, LinkInput, OutputStream, Signal};

/// The longest wait for the first word of a checkpoint.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The host's side of a kernel.
pub(super) struct LocalLink {
    pub(super) handle: Arc<KernelHandle>,
    pub(super) streams: Streams,
}

impl Link for LocalLink {
    type Control = KernelHandle;

    fn control(&self) -> &Arc<KernelHandle> {
        &self.handle
    }

    fn exit(&self) -> watch::Receiver<Option<KernelExit>> {
        self.handle.exit()
    }

    async fn send(&mut self, frame: &ToKernel<'_>) -> io::Result<()> {
        self.streams.send(frame).await
    }

    async fn receive(&mut self) -> io::Result<LinkInput> {
        self.streams.receive().await
    }

    fn accept(&mut self) {
        self.streams.accept();
    }

    async fn printed(&mut self, stream: OutputStream) -> Vec<u8> {
        self.streams.printed(stream).await
    }

    async fn restore(&mut self) -> bool {
        if !self.handle.is_alone() {
            self.handle.end();
            return false;
        }
        let Ok((mut channel, theirs)) = Channel::pair(Touched::set()) else { return false };
        if !self.handle.restore(theirs).await {
            // Nothing in its place is woken any more.
            self.handle.end();
            return false;
        }
        let first = timeout(RESTORE_TIMEOUT, channel.receive_short()).await;
        self.streams.replace_channel(channel);
        matches!(first, Ok(Ok(Some(FromKernel::Restored))))
    }
}

impl LinkControl for KernelHandle {
    fn signal(&self, signal: Signal) {
        KernelHandle::signal(self, signal.number().into());
    }

    fn keeps_checkpoint(&self) -> bool {
        KernelHandle::keeps_checkpoint(self)
    }

    fn end(&self) {
        KernelHandle::end(self);
    }

    fn paused(&self) -> watch::Receiver<bool> {
        self.sandbox().paused().subscribe()
    }

    async fn usage(&self) -> Usage {
        self.sandbox().usage().await
    }

    fn is_touched(&self) -> bool {
        self.sandbox().touched().is_set()
    }

    async fn synced(&self) {
        KernelHandle::synced(self).await;
    }

    fn catch_up(&self) {
        KernelHandle::catch_up(self);
    }

    fn cell_started(&self) {
        self.foreground();
    }

    fn take_refused_calls(&self) -> Vec<String> {
        KernelHandle::take_refused_calls(self)
    }
}
