//! Wardens that end, and the ones that take their places.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use aludel_sandbox::{Backend, BackendStatus, Error, Local, Outcome, SandboxId, SandboxSpec, VariablesState};
use common::{
    Held, all_pids, backend_at, config_at, helpers_of, limits, listen, only_entry, parent_of, run, sandbox, warden_of,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::Mutex;

/// Held by the test that runs: one counts what the whole process holds.
static ALONE: Mutex<()> = Mutex::const_new(());

/// A process without which no sandbox is made.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Warden,
    /// The warden's parent, in the host's process namespace.
    Outside,
    Zygote,
    Spawner,
    LockCounter,
}

impl Victim {
    fn kill(self, data: &Path) {
        let warden = warden_of(&only_entry(&data.join("run")));
        let pid = match self {
            Self::Warden => warden,
            Self::Outside => parent_of(warden),
            Self::Zygote => helpers_of(warden)[0],
            Self::Spawner => helpers_of(warden)[1],
            Self::LockCounter => helpers_of(warden)[2],
        };
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
}

/// Waits until the backend knows that its warden is gone.
async fn wait_until_degraded(local: &Local) {
    wait_until(|| local.health().status != BackendStatus::Ready, "nobody noticed").await;
}

async fn wait_until(mut is_so: impl FnMut() -> bool, words: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{words}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Warnings of this process.
static WARNINGS: parking_lot::Mutex<Vec<String>> = parking_lot::Mutex::new(Vec::new());

/// Collects [`WARNINGS`].
struct WarningCollector;

impl tracing::Subscriber for WarningCollector {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut words = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            words.push_str(&format!("{field}: {value:?} "));
        });
        WARNINGS.lock().push(words);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn local_sandbox_a_backend_that_is_shut_down_while_its_pool_fills_warns_of_nothing() {
    let _alone = ALONE.lock().await;
    tracing::subscriber::set_global_default(WarningCollector).unwrap();
    for millis in [10, 30, 60, 100] {
        let data = tempfile::tempdir().unwrap();
        let local = backend_at(data.path(), limits(), 64).await;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        WARNINGS.lock().clear();
        local.shutdown().await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
        let warnings = std::mem::take(&mut *WARNINGS.lock());
        assert!(warnings.is_empty(), "after {millis} ms: {warnings:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn local_sandbox_another_warden_takes_over() {
    let _alone = ALONE.lock().await;
    for victim in [Victim::Warden, Victim::Outside, Victim::Zygote, Victim::Spawner, Victim::LockCounter] {
        let data = tempfile::tempdir().unwrap();
        let local = backend_at(data.path(), limits(), 1).await;
        let busy = sandbox(&local, limits()).await;
        run(&busy, "open('file', 'w').write('kept')\nx = 1").await;
        let execution = busy.execute("open('late', 'w').write('as well')\nwhile True: pass").await.unwrap();
        let old = only_entry(&data.path().join("run"));
        let groups = std::fs::read_to_string(old.join("cgroups")).unwrap();
        let started = Instant::now();
        victim.kill(data.path());
        let result = listen(execution).await.finished;
        assert!(matches!(result.outcome, Outcome::KernelDied(_)), "{victim:?} {result:?}");
        assert_eq!(result.state, VariablesState::Lost);
        wait_until_degraded(&local).await;
        assert_eq!(local.health().pooled, 0);
        // Only the clock shows the gap.
        let next = sandbox(&local, limits()).await;
        assert_eq!(run(&next, "print('x' in dir())").await.stdout, "False\n");
        println!("{victim:?}: a program ran {} ms after the kill", started.elapsed().as_millis());
        assert_eq!(local.health().status, BackendStatus::Ready);
        assert!(matches!(busy.execute("1").await, Err(Error::KernelGone(_))));
        let on_the_old = SandboxSpec::new(limits()).with_workspace(busy.workspace().clone());
        let refused = local.create(SandboxId::unique(), on_the_old).await;
        assert!(matches!(refused, Err(Error::WorkspaceLost)), "{refused:?}");
        assert_eq!(busy.workspace().read("file", 10).unwrap(), b"kept");
        busy.close().await.unwrap();
        assert!(!old.exists(), "{victim:?}");
        assert!(groups.lines().all(|group| !Path::new(group).exists()), "{groups}");
        drop((busy, next));
        wait_until(|| local.health().pooled == 1, "the pool is not filled again").await;
        local.shutdown().await;
        assert_eq!(std::fs::read_dir(data.path().join("run")).unwrap().count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn local_sandbox_another_warden_takes_the_place_of_one_that_hangs() {
    let _alone = ALONE.lock().await;
    let data = tempfile::tempdir().unwrap();
    let config = config_at(data.path(), limits(), 0);
    let local = Local::start_impatient(config, Duration::from_millis(500)).await.unwrap();
    let busy = sandbox(&local, limits()).await;
    let execution = busy.execute("while True: pass").await.unwrap();
    let old = only_entry(&data.path().join("run"));
    kill_process(Pid::from_raw(warden_of(&old)).unwrap(), Signal::STOP).unwrap();
    let result = listen(execution).await.finished;
    assert!(matches!(result.outcome, Outcome::KernelDied(_)), "{result:?}");
    assert_eq!(result.state, VariablesState::Lost);
    wait_until(|| !old.exists(), "the old instance is still there").await;
    let next = sandbox(&local, limits()).await;
    assert_eq!(run(&next, "print(1)").await.stdout, "1\n");
    drop((busy, next));
    local.shutdown().await;
}

/// Things that this process and its backend hold on the host.
#[derive(Debug)]
struct Footprint {
    descriptors: usize,
    /// Our own, not the runtime's.
    threads: usize,
    children: usize,
    mounts: usize,
    instances: usize,
    groups: usize,
}

impl Footprint {
    fn take(data: &Path) -> Self {
        let count = |directory: &str| std::fs::read_dir(directory).unwrap().count();
        let own = i32::try_from(std::process::id()).unwrap();
        let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = names.map(|thread| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default());
        let groups = std::fs::read_to_string(only_entry(&data.join("run")).join("cgroups")).unwrap();
        let prefix = format!("aludel-{own}-");
        let siblings = groups.lines().filter_map(|group| std::fs::read_dir(Path::new(group).parent()?).ok()).flatten();
        Self {
            descriptors: count("/proc/self/fd"),
            threads: names.filter(|name| name.starts_with("aludel-")).count(),
            children: all_pids().filter(|pid| parent_of(*pid) == own).count(),
            mounts: std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
            instances: count(data.join("run").to_str().unwrap()),
            groups: siblings.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count(),
        }
    }

    /// Waits until no more is held than this: threads of the last warden's client may be about to let go of something.
    async fn no_more_soon(&self, data: &Path) {
        let figures = |Self { descriptors, threads, children, mounts, instances, groups }: &Self| {
            [*descriptors, *threads, *children, *mounts, *instances, *groups]
        };
        let before = figures(self);
        let is_no_more = || figures(&Self::take(data)).iter().zip(before).all(|(now, before)| *now <= before);
        wait_until(is_no_more, &format!("more is held than after the first kill: {self:?}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn local_sandbox_ten_kills_fail_no_request_and_leave_nothing() {
    let _alone = ALONE.lock().await;
    let data = tempfile::tempdir().unwrap();
    let local = backend_at(data.path(), limits(), 0).await;
    let mut first = None;
    for round in 0..10 {
        let kept = sandbox(&local, limits()).await;
        run(&kept, "x = 1").await;
        let creates: Vec<_> = (0..4)
            .map(|_| {
                let local = local.clone();
                tokio::spawn(async move { local.create(SandboxId::unique(), SandboxSpec::new(limits())).await })
            })
            .collect();
        // Before they are asked for, while they are made, and after.
        tokio::time::sleep(Duration::from_millis(round * 3)).await;
        let started = Instant::now();
        [Victim::Warden, Victim::Zygote, Victim::Outside][round as usize % 3].kill(data.path());
        for create in creates {
            drop(create.await.unwrap().unwrap());
        }
        drop(kept);
        let next = sandbox(&local, limits()).await;
        assert_eq!(run(&next, "print(1)").await.stdout, "1\n");
        println!("round {round}: a program ran {} ms after the kill", started.elapsed().as_millis());
        next.close().await.unwrap();
        drop(next);
        Held::nothing_soon(data.path()).await;
        let first = first.get_or_insert_with(|| Footprint::take(data.path()));
        first.no_more_soon(data.path()).await;
    }
    local.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_sandbox_a_backend_ends_while_a_warden_is_started() {
    let _alone = ALONE.lock().await;
    let data = tempfile::tempdir().unwrap();
    let local = backend_at(data.path(), limits(), 0).await;
    Victim::Warden.kill(data.path());
    wait_until_degraded(&local).await;
    let waiting = local.create(SandboxId::unique(), SandboxSpec::new(limits()));
    let (made, ()) = tokio::join!(waiting, local.shutdown());
    assert!(matches!(made, Err(Error::Over(_))), "{made:?}");
    assert_eq!(std::fs::read_dir(data.path().join("run")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn local_sandbox_a_warden_is_started_when_one_can_be() {
    let _alone = ALONE.lock().await;
    let data = tempfile::tempdir().unwrap();
    let local = backend_at(data.path(), limits(), 0).await;
    let (run_directory, aside) = (data.path().join("run"), data.path().join("aside"));
    let (old, victim) = (only_entry(&run_directory), warden_of(&only_entry(&run_directory)));
    let groups = std::fs::read_to_string(old.join("cgroups")).unwrap();
    std::fs::rename(&run_directory, &aside).unwrap();
    std::fs::write(&run_directory, "no directory").unwrap();
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    let is_refused = || match local.health().status {
        BackendStatus::Degraded { reason } => reason.contains(run_directory.to_str().unwrap()),
        BackendStatus::Ready => false,
    };
    wait_until(is_refused, "the reason is not told").await;
    let waiting = local.create(SandboxId::unique(), SandboxSpec::new(limits()));
    let (made, ()) = tokio::join!(waiting, async {
        std::fs::remove_file(&run_directory).unwrap();
        std::fs::rename(&aside, &run_directory).unwrap();
    });
    assert_eq!(run(&made.unwrap(), "print(1)").await.stdout, "1\n");
    local.shutdown().await;
    // The next start removes leftovers that could not be removed then.
    assert!(old.exists());
    backend_at(data.path(), limits(), 0).await.shutdown().await;
    assert!(!old.exists() && groups.lines().all(|group| !Path::new(group).exists()), "{groups}");
}
