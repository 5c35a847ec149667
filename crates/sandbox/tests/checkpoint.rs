//! Sessions after a cell that ended its kernel.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::time::{Duration, Instant};

use std::sync::Arc;

use aludel_sandbox::process::Command;
use aludel_sandbox::{KernelDeath, LimitHit, Limits, Outcome, Sandbox, VariablesState};
use futures_util::FutureExt;

use common::{CHECKPOINT, Told, backend, later, limits, run, sandbox, shared, wait_beside};

const SHARED_MEMORY_HOG: &str = "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1";

async fn state_of(sandbox: &Arc<dyn Sandbox>) -> String {
    run(sandbox, "print(x, sorted(d), 'y' in globals(), z)").await.stdout
}

fn is_memory(result: &Told) -> bool {
    matches!(result.finished.outcome, Outcome::Limit(LimitHit::Memory { .. }))
}

#[tokio::test]
async fn a_cell_that_ends_its_kernel_leaves_the_state_before_it() {
    let sandbox = sandbox(shared().await, Limits { timeout: Duration::from_secs(2), ..limits() }).await;
    run(&sandbox, "import ctypes, os, signal\nx, d, z = 1, {'a': 1}, 0").await;
    let wall_clock = Outcome::Limit(LimitHit::WallClock { limit: Duration::from_secs(2) });
    for (round, (end, outcome)) in [
        ("ctypes.string_at(0)", Outcome::KernelDied(KernelDeath::Signalled(11))),
        ("os.abort()", Outcome::KernelDied(KernelDeath::Signalled(6))),
        ("os._exit(3)", Outcome::KernelDied(KernelDeath::Exited(3))),
        ("sum(range(10**11))", wall_clock.clone()),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", wall_clock),
    ]
    .into_iter()
    .enumerate()
    {
        let spoil =
            format!("x = 2; d['b'] = 2; y = 3; z += 1; open('written', 'w').write('{round}')\nprint('on')\n{end}");
        let result = run(&sandbox, &spoil).await;
        assert_eq!((result.finished.state, result.stdout.as_str()), (VariablesState::RolledBack, "on\n"), "{end}");
        assert_eq!(result.finished.outcome, outcome, "{end}");
        assert_eq!(state_of(&sandbox).await, "1 ['a'] False 0\n", "{end}");
        // Files are not rolled back, and it is said so.
        assert_eq!(sandbox.workspace().read("written", 9).unwrap(), round.to_string().as_bytes());
    }
}

#[tokio::test]
async fn running_out_of_memory_twice_leaves_the_state_twice() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "import numpy as np\nx, d, z = 1, {'a': 1}, np.ones(4 << 20).sum()").await;
    for _ in 0..2 {
        let result = run(&sandbox, &format!("x = 2\n{SHARED_MEMORY_HOG}")).await;
        assert!(is_memory(&result), "{result:?}");
        assert_eq!(result.finished.state, VariablesState::RolledBack);
        assert_eq!(state_of(&sandbox).await, "1 ['a'] False 4194304.0\n");
    }
}

#[tokio::test]
async fn a_kernel_with_nothing_going_on_has_a_copy_from_its_second_cell_on() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "x = 1").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    wait_beside(&sandbox, &format!("! {CHECKPOINT}")).await;
    run(&sandbox, "pass").await;
    wait_beside(&sandbox, CHECKPOINT).await;
}

#[tokio::test]
async fn a_kernel_that_ends_between_two_cells_goes_on_too() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, &later("os._exit(1)")).await;
    wait_beside(&sandbox, CHECKPOINT).await;
    // The warden reports one end after the other: once the shell's is known, the kernel's is.
    wait_beside(&sandbox, "touch /tmp/now && [ ! -e /proc/2 ]").await;
    let result = run(&sandbox, "print(x, threading.active_count())").await;
    assert_eq!((result.stdout.as_str(), result.finished.state), ("1 1\n", VariablesState::Kept));
}

#[tokio::test]
async fn a_caller_that_goes_away_while_the_checkpoint_wakes_costs_no_state() {
    for polls in [1, 2, 3, 4, 6, 8, 12, 16, 24] {
        let sandbox = sandbox(shared().await, limits()).await;
        run(&sandbox, &later("os._exit(1)")).await;
        wait_beside(&sandbox, CHECKPOINT).await;
        wait_beside(&sandbox, "touch /tmp/now && [ ! -e /proc/2 ]").await;
        let mut execution = Box::pin(sandbox.execute("print(x)"));
        for _ in 0..polls {
            if (&mut execution).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_micros(50));
        }
        drop(execution);
        let result = run(&sandbox, "print(x)").await;
        assert_eq!(result.stdout, "1\n", "{polls} polls: {result:?}");
    }
}

#[tokio::test]
async fn processes_of_the_dead_kernel_end_with_it() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "import os, subprocess").await;
    run(&sandbox, "subprocess.Popen(['sleep', '600']); os._exit(1)").await;
    let left = run(
        &sandbox,
        "print([p for p in os.listdir('/proc') if p.isdigit() and b'sleep' in open(f'/proc/{p}/cmdline', 'rb').read()])",
    );
    assert_eq!(left.await.stdout, "[]\n");
}

#[tokio::test]
async fn a_checkpoint_is_not_noticed() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "import os, random, numpy as np\nrandom.seed(1); np.random.seed(1)").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let result = run(&sandbox, "try: os.wait()\nexcept ChildProcessError: print('no child')").await;
    assert_eq!(result.stdout, "no child\n");
    let draw = "print(random.random(), np.random.rand())";
    let result = run(&sandbox, draw).await;
    // The generator of the checkpoint stands where the kernel's stood.
    run(&sandbox, "random.seed(1); np.random.seed(1)").await;
    run(&sandbox, "random.random(); np.random.rand(); os._exit(1)").await;
    assert_eq!(run(&sandbox, draw).await.stdout, result.stdout);
}

#[tokio::test]
async fn a_program_that_ends_the_checkpoint_loses_only_its_own_state() {
    let scratch = backend().await;
    let sandbox = sandbox(&scratch.local, limits()).await;
    run(&sandbox, "import os\nx = 1").await;
    let result = run(&sandbox, "os.kill(-1, 9)\nos._exit(1)").await;
    assert_eq!(result.finished.outcome, Outcome::KernelDied(KernelDeath::Exited(1)));
    assert_eq!(result.finished.state, VariablesState::Lost);
    assert!(!sandbox.is_alive());
}

#[tokio::test]
async fn threads_of_the_program_do_not_hinder_it() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(
        &sandbox,
        "import os, threading, time\nx = 1\nthreading.Thread(target=lambda: time.sleep(60), daemon=True).start()",
    )
    .await;
    let result = run(&sandbox, "x = 2; os._exit(1)").await;
    assert_eq!(result.finished.state, VariablesState::RolledBack);
    assert_eq!(run(&sandbox, "print(x, threading.active_count())").await.stdout, "1 1\n");
}

/// The system ends what is largest first; that must not be what the session is to go on with.
#[tokio::test]
async fn a_checkpoint_outlives_what_the_cell_started() {
    let sandbox = sandbox(shared().await, limits()).await;
    const HOG: &str = "import os\\nbytes = b'x' * (1 << 20)\\nkept = []\\nwhile True:\\n    kept.append(os.memfd_create('m'))\\n    for _ in range(20): os.write(kept[-1], bytes)";
    run(&sandbox, "import os, subprocess, sys\nimport numpy as np\nx, d, z = 1, {'a': 1}, 0\nlarge = np.ones(8 << 20)")
        .await;
    for hog in [format!("exec(\"{HOG}\")"), format!("subprocess.run([sys.executable, '-c', \"{HOG}\"])")] {
        // The checkpoint is taken a moment after the end of a cell.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let result = run(&sandbox, &format!("del large; x = 2; y = 3\n{hog}")).await;
        assert!(is_memory(&result), "{result:?}");
        assert_eq!(result.finished.state, VariablesState::RolledBack);
        assert_eq!(state_of(&sandbox).await, "1 ['a'] False 0\n");
        assert_eq!(run(&sandbox, "print(large.sum())").await.stdout, "8388608.0\n");
    }
}

/// On a host without memory, everybody's cells would be ended before a process at a checkpoint's rank.
#[tokio::test]
async fn what_is_forked_between_two_cells_is_ended_like_a_cell() {
    let sandbox = sandbox(shared().await, limits()).await;
    let fork = "if os.fork() == 0:\n        open('/tmp/daemon', 'w').write(str(os.getpid()))\n        time.sleep(600)";
    run(&sandbox, &later(fork)).await;
    let last = "$(grep -lx 300 /proc/[0-9]*/oom_score_adj | wc -l)";
    wait_beside(&sandbox, &format!("[ {last} -ge 1 ]")).await;
    wait_beside(&sandbox, "touch /tmp/now && [ -s /tmp/daemon ]").await;
    let ranks =
        format!("read daemon < /tmp/daemon; echo {last}; cat /proc/2/oom_score_adj /proc/$daemon/oom_score_adj");
    let command = Command {
        arguments: ["sh", "-c", &ranks].map(str::to_owned).into(),
        environment: Vec::new(),
        directory: "/".into(),
        pty: None,
    };
    let output = sandbox.run(command, b"", Duration::from_secs(30), 1000).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n1000\n1000\n");
    // In a cell, too, and nothing is lost.
    let result = run(&sandbox, "print(open('/proc/self/oom_score_adj').read()); os.abort()").await;
    assert_eq!((result.stdout.as_str(), result.finished.state), ("1000\n\n", VariablesState::RolledBack));
    assert_eq!(run(&sandbox, "print(x, open('/proc/self/oom_score_adj').read())").await.stdout, "1 1000\n\n");
}

#[tokio::test]
async fn a_false_checkpoint_cannot_be_woken_without_end() {
    let sandbox = sandbox(shared().await, Limits { timeout: Duration::from_secs(60), ..limits() }).await;
    run(&sandbox, "x = 1").await;
    let program = "import os, signal, socket, time
others = [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid())]
kernel = os.getpid()
if os.fork() == 0:
    os.setsid()
    for pid in others: os.kill(pid, signal.SIGKILL)
    os.kill(kernel, signal.SIGKILL)
    warden = socket.socket(fileno=5)
    socket.recv_fds(warden, 16, 2)
    while True: warden.send(b'checkpoint')
time.sleep(30)";
    run(&sandbox, "x = 2").await;
    let started = Instant::now();
    let told = run(&sandbox, program).await.finished;
    assert!(!sandbox.is_alive(), "{told:?}");
    // Otherwise it is given up after 5 seconds.
    assert!(started.elapsed() < Duration::from_secs(4), "{:?} {told:?}", started.elapsed());
}
