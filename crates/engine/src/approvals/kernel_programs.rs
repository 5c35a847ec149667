//! The programs of one kernel: their language, the names that they share, and their order.

use std::sync::Arc;

use aludel_rules::{Judgement, Known, Rules};
use aludel_sandbox::Language;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::Error;
use crate::arrivals::{Arrival, ArrivalOrder};
use crate::processor_time::ProcessorShare;

/// The programs of one kernel: the names that they share, as far as the rules have read them, and the order in which they arrived.
#[derive(Debug)]
pub struct KernelPrograms {
    id: String,
    language: Option<Language>,
    known: Arc<Mutex<Known>>,
    arrivals: ArrivalOrder,
}

impl KernelPrograms {
    /// Those of a kernel before its first program. `id` is the session's or sandbox's id, for the audit log.
    pub fn new(id: impl Into<String>) -> Arc<Self> {
        Self::of_language(id, None)
    }

    /// Those of a kernel of another language than the engine's.
    pub fn of_language(id: impl Into<String>, language: Option<Language>) -> Arc<Self> {
        Arc::new(Self { id: id.into(), language, known: Arc::default(), arrivals: ArrivalOrder::default() })
    }

    /// The kernel's language, where it is not the engine's.
    pub(super) fn language(&self) -> Option<&Language> {
        self.language.as_ref()
    }

    /// The id of the session or sandbox.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The place of a program that arrives now, among those that wait for the kernel.
    pub(crate) fn arrive(&self) -> Arrival {
        self.arrivals.arrive()
    }

    /// Judges a program that follows the ones judged before, in a thread of its own at the cost of a share. Waits while another one is
    /// judged.
    pub(super) async fn judge(
        &self,
        rules: Arc<Rules>,
        code: String,
        share: ProcessorShare,
    ) -> Result<Judgement, Error> {
        let mut known = Arc::clone(&self.known).lock_owned().await;
        share.wait().await;
        let judging = move || {
            let began = Instant::now();
            let judgement = rules.judge_after(&mut known, &code);
            // The rules have a thread of their own, whose time is not this one's.
            share.take(began.elapsed());
            judgement
        };
        tokio::task::spawn_blocking(judging).await.map_err(Error::internal)
    }
}
