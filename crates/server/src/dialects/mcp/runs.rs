//! Programs that may outlive the call that started them, and their results for later calls.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::executions::{self, ClientProgram, DirectEvent, DirectExecution};
use aludel_engine::{Engine, Error};
use aludel_store::{ApprovalRecord, Tenant};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::output::{Collector, ProgramEnd};

/// Time for which the result of a program that ended is kept.
const KEEP: Duration = Duration::from_secs(600);
/// Results that are kept of one tenant, and of all together. One takes up to 100 KB.
const MAX_ENDED_EACH: usize = 64;
const MAX_ENDED: usize = 512;

/// Programs by tenant, in the order of their start.
#[derive(Debug, Default)]
pub(super) struct Runs(Mutex<HashMap<Tenant, VecDeque<Arc<Run>>>>);

/// One program.
#[derive(Debug)]
pub(super) struct Run {
    /// The execution's id.
    pub(super) id: String,
    /// The session that it runs in.
    pub(super) session: String,
    /// SHA-256 of the program.
    pub(super) sha256: String,
    /// Its stage, which changes.
    pub(super) stage: watch::Receiver<Stage>,
    /// Token that interrupts it.
    pub(super) cancel: CancellationToken,
}

/// A stage of a program.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// It runs, or waits for its kernel.
    Running {
        /// The last line that it printed.
        last_line: String,
    },
    /// It waits for a decision.
    AwaitsApproval(Arc<ApprovalRecord>),
    /// It ended at this time.
    Ended(Instant, Arc<ProgramEnd>),
}

impl Runs {
    /// Starts a program in a session. It can be found by its id until ten minutes after its end.
    pub(super) fn start(
        &self,
        engine: &Arc<Engine>,
        program: ClientProgram,
        session: String,
    ) -> Result<Arc<Run>, Error> {
        let (tenant, id) = (program.tenant.clone(), program.id.clone());
        let sha256 = aludel_store::program_digest(&program.code);
        let execution = executions::start(engine, program)?;
        let (sender, stage) = watch::channel(Stage::Running { last_line: String::new() });
        let run = Arc::new(Run { id, session, sha256, stage, cancel: execution.canceller() });
        engine.tasks.spawn(collect(execution, sender).in_current_span());
        let mut runs = self.0.lock();
        runs.entry(tenant.clone()).or_default().push_back(Arc::clone(&run));
        forget_old(&mut runs, &tenant);
        Ok(run)
    }

    /// Returns the program of this id, if it belongs to this tenant and is not forgotten.
    pub(super) fn find(&self, tenant: &Tenant, id: &str) -> Option<Arc<Run>> {
        let mut runs = self.0.lock();
        forget_old(&mut runs, tenant);
        runs.get(tenant)?.iter().find(|run| run.id == id).cloned()
    }
}

impl Run {
    fn ended_at(&self) -> Option<Instant> {
        match &*self.stage.borrow() {
            Stage::Ended(at, _) => Some(*at),
            Stage::Running { .. } | Stage::AwaitsApproval(_) => None,
        }
    }
}

/// Forgets results that are old enough, and the oldest of those beyond the limits: the tenant's own, or of the tenant with most.
fn forget_old(runs: &mut HashMap<Tenant, VecDeque<Arc<Run>>>, tenant: &Tenant) {
    let ended = |runs: &VecDeque<Arc<Run>>| runs.iter().filter(|run| run.ended_at().is_some()).count();
    for runs in runs.values_mut() {
        runs.retain(|run| run.ended_at().is_none_or(|at| at.elapsed() < KEEP));
    }
    runs.retain(|_, runs| !runs.is_empty());
    while runs.get(tenant).is_some_and(|runs| ended(runs) > MAX_ENDED_EACH) {
        runs.get_mut(tenant).into_iter().for_each(forget_oldest);
    }
    while runs.values().map(ended).sum::<usize>() > MAX_ENDED {
        runs.values_mut().max_by_key(|runs| ended(runs)).into_iter().for_each(forget_oldest);
    }
}

fn forget_oldest(runs: &mut VecDeque<Arc<Run>>) {
    let oldest = runs.iter().enumerate().filter_map(|(index, run)| Some((run.ended_at()?, index))).min();
    if let Some((_, index)) = oldest {
        runs.remove(index);
    }
}

/// Follows a program to its end.
async fn collect(mut execution: DirectExecution, stage: watch::Sender<Stage>) {
    let mut collector = Collector::default();
    while let Some(event) = execution.next().await {
        match event {
            DirectEvent::ApprovalRequested(record) => {
                stage.send_replace(Stage::AwaitsApproval(Arc::new(record)));
            }
            DirectEvent::Started => {
                stage.send_replace(Stage::Running { last_line: String::new() });
            }
            DirectEvent::Output(output) => {
                collector.record(output);
                let last_line = collector.last_line();
                stage.send_replace(Stage::Running { last_line });
            }
            DirectEvent::Ended(end) => {
                stage.send_replace(Stage::Ended(Instant::now(), Arc::new(collector.finish(end))));
                return;
            }
        }
    }
    stage.send_replace(Stage::Ended(Instant::now(), Arc::new(ProgramEnd::lost())));
}

#[cfg(test)]
mod tests {
    use aludel_engine::ApprovalPolicy;
    use aludel_engine::executions::ProgramTarget;
    use aludel_engine::sessions::SessionChoice;
    use aludel_sandbox::memory::Memory;
    use aludel_store::{Store, fresh_id};

    use super::*;

    #[tokio::test]
    async fn the_results_that_are_kept_are_bounded() {
        let data = tempfile::tempdir().unwrap();
        let (store, backend) = (Store::open(data.path()).await.unwrap(), Arc::new(Memory::default()));
        let engine = Engine::new(store, backend, [], ApprovalPolicy::default(), Vec::new(), Default::default());
        let (engine, tenant, runs) = (Arc::new(engine), Tenant::local(), Runs::default());
        let choice = SessionChoice::Auto { file_ids: Vec::new(), memory: None };
        let session = engine.sessions.open(&tenant, choice).await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..MAX_ENDED_EACH + 3 {
            let program = ClientProgram {
                id: fresh_id("exec_"),
                tenant: tenant.clone(),
                sender: String::new(),
                target: ProgramTarget::Session(Arc::clone(&session)),
                code: "1".to_owned(),
                timeout: None,
            };
            ids.push(program.id.clone());
            let run = runs.start(&engine, program, session.id().to_string()).unwrap();
            run.stage.clone().wait_for(|stage| matches!(stage, Stage::Ended(..))).await.unwrap();
        }
        let kept: Vec<bool> = ids.iter().map(|id| runs.find(&tenant, id).is_some()).collect();
        assert_eq!(kept.iter().filter(|kept| **kept).count(), MAX_ENDED_EACH);
        assert!(!kept[0] && !kept[2] && kept[3]);
        assert!(runs.find(&Tenant::terminal(), &ids[3]).is_none());
    }
}
