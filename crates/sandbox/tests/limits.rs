//! Programs that want too much, and what becomes of them.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use std::sync::Arc;

use aludel_sandbox::memory::Memory;
use aludel_sandbox::process::Command;
use aludel_sandbox::{
    AllEventMemory, Backend, Cell, Execution, ExecutionEvent, KernelDeath, KernelOptions, LimitHit, Limits, Outcome,
    Profile, Sandbox, SandboxId, SandboxSpec, VariablesState,
};
use common::{CHECKPOINT, backend, later, limits, listen, only_entry, run, sandbox, shared, wait_beside};

#[tokio::test]
async fn an_infinite_loop_is_interrupted_and_the_state_survives() {
    // Long enough for what is to come to its end, on a machine that is busy, too.
    let limit = Duration::from_secs(3);
    let sandbox = sandbox(shared().await, Limits { timeout: limit, ..limits() }).await;
    run(&sandbox, "x = 7").await;
    let result = run(&sandbox, "while True: pass").await;
    assert_eq!(result.finished.outcome, Outcome::Limit(LimitHit::WallClock { limit }));
    assert_eq!(result.finished.state, VariablesState::Kept);
    assert_eq!(run(&sandbox, "print(x)").await.stdout, "7\n");
}

#[tokio::test]
async fn a_loop_in_c_code_is_killed_and_the_files_survive() {
    let scratch = backend().await;
    let limit = Duration::from_secs(3);
    let limits = Limits { timeout: limit, ..limits() };
    let sandbox = sandbox(&scratch.local, limits.clone()).await;
    run(&sandbox, "open('kept.txt', 'w').write('kept')").await;
    let started = Instant::now();
    // Some minutes, if nobody ended it.
    let result = run(&sandbox, "sum(range(10**11))").await;
    assert_eq!(result.finished.outcome, Outcome::Limit(LimitHit::WallClock { limit }));
    assert_eq!(result.finished.state, VariablesState::RolledBack);
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(run(&sandbox, "print(open('kept.txt').read())").await.stdout, "kept\n");

    let workspace = Arc::clone(sandbox.workspace());
    sandbox.close().await.unwrap();
    let next =
        scratch.local.create(SandboxId::unique(), SandboxSpec::new(limits).with_workspace(workspace)).await.unwrap();
    assert_eq!(run(&next, "print(open('kept.txt').read())").await.stdout, "kept\n");
}

#[tokio::test]
async fn a_library_learns_the_limits_of_the_sandbox() {
    let limits = Limits { memory: 1 << 30, disk: 384 << 20, file_size: 384 << 20, cpus: 1.0, ..limits() };
    let sandbox = sandbox(shared().await, limits).await;
    let told = "import duckdb
for name in 'memory.max', 'cpu.max': print(open('/sys/fs/cgroup/' + name).read().strip())
print(duckdb.sql(\"select current_setting('memory_limit'), current_setting('threads')\").fetchall()[0])";
    // Of the memory that files leave, DuckDB takes 80 %.
    let expected = format!("{}\n100000 100000\n('512.0 MiB', 1)\n", 640 << 20);
    let result = run(&sandbox, told).await;
    assert_eq!(result.stdout, expected, "{result:?}");
    // Thirty million rows of 60 bytes. With the host's memory for a limit, it would be ended with all variables.
    let query = "duckdb.execute('create table t as select range i, hash(range)::varchar || hash(-range)::varchar s from range(30000000)')";
    let result = run(&sandbox, query).await;
    let Outcome::Failed(error) = &result.finished.outcome else { panic!("{result:?}") };
    assert!(error.name.contains("OutOfMemory"), "{error:?}");
    assert_eq!(run(&sandbox, "print(duckdb.__name__)").await.stdout, "duckdb\n");
    for file in ["/sys/fs/cgroup/memory.max", "/sys/x", "/sys/fs/cgroup/x"] {
        let result = run(&sandbox, &format!("open('{file}', 'w')")).await;
        assert!(matches!(&result.finished.outcome, Outcome::Failed(error) if error.name == "OSError"), "{result:?}");
    }
}

#[tokio::test]
async fn a_memory_hog_fails_and_the_session_lives() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "import numpy as np\nx = 1").await;
    // The last one is as Arrow's is: a `MemoryError` of another name.
    let named = "class ArrowMemoryError(MemoryError): pass\nraise ArrowMemoryError";
    for hog in
        ["a = np.ones(10**9)", "a = [0]\nwhile True: a += a", "a = []\nwhile True: a.append(str(len(a)) * 10)", named]
    {
        let result = run(&sandbox, hog).await;
        let Outcome::Limit(LimitHit::Memory { limit, .. }) = result.finished.outcome else {
            panic!("{hog}: {result:?}")
        };
        assert_eq!(limit, 300 << 20);
        assert_eq!(result.finished.state, VariablesState::Kept, "{hog}");
        assert_eq!(run(&sandbox, "a = None\nprint(x)").await.stdout, "1\n", "{hog}");
        assert_eq!(run(&sandbox, "print(len(bytearray(60 << 20)))").await.stdout, "62914560\n", "{hog}");
    }
}

#[tokio::test]
async fn a_hog_that_evades_the_soft_limit_is_killed_with_the_figures() {
    let sandbox = sandbox(shared().await, limits()).await;
    // Shared memory is no data segment, so only the control group counts it.
    let result =
        run(&sandbox, "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1").await;
    let Outcome::Limit(LimitHit::Memory { used, limit, .. }) = result.finished.outcome else { panic!("{result:?}") };
    assert!(used > limit / 2, "{used} of {limit}");
    assert_eq!(result.finished.state, VariablesState::Lost);
}

#[tokio::test]
async fn a_limit_of_all_sandboxes_together_is_told_as_such() {
    let scratch = backend().await;
    let sandbox = sandbox(&scratch.local, limits()).await;
    run(&sandbox, "import mmap").await;
    let groups = std::fs::read_to_string(only_entry(&scratch.data.path().join("run")).join("cgroups")).unwrap();
    let files = ["memory.limit_in_bytes", "memory.max"]
        .map(|file| groups.lines().map(|group| Path::new(group).join(file)).find(|path| path.exists()));
    // Without control groups there is no such limit.
    let Some(file) = files.into_iter().flatten().next() else { return };
    std::fs::write(file, (100 << 20).to_string()).unwrap();
    let result = run(&sandbox, "m = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1").await;
    let Outcome::Limit(LimitHit::Memory { used, of_host: true, .. }) = result.finished.outcome else {
        panic!("{result:?}")
    };
    // Bytes that did not fit may be counted for a moment.
    assert!(used < 128 << 20, "{used}");
}

#[tokio::test]
async fn a_lack_of_memory_is_the_hosts_only_where_somebody_counted() {
    for (count, expected) in [(0, false), (1 << 20, true), (290 << 20, false)] {
        let memory = Memory::new(move |_, cell| {
            cell.run_out_of_memory(count);
        });
        let sandbox = memory.create(SandboxId::unique(), SandboxSpec::new(limits())).await.unwrap();
        let told = run(&sandbox, "").await;
        let Outcome::Limit(LimitHit::Memory { used, of_host, .. }) = told.finished.outcome else { panic!("{told:?}") };
        assert_eq!((used, of_host), (count, expected));
    }
}

#[tokio::test]
async fn a_flood_of_output_keeps_its_head_and_tail() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "print('first')\nimport os\nblock = b'x' * (1 << 20)\nfor _ in range(64): os.write(1, block)\nprint()\nprint('last')";
    let result = run(&sandbox, code).await;
    assert_eq!(result.finished.outcome, Outcome::Completed, "{:?}", result.finished);
    assert!(result.stdout.starts_with("first\n") && result.stdout.ends_with("\nlast\n"));
    assert!(result.stdout.len() < 70 << 10, "{}", result.stdout.len());
    let kept = limits().output;
    assert_eq!(result.finished.output_dropped, (64 << 20) + "first\n\nlast\n".len() as u64 - kept);
    assert!(
        result.stdout.contains(&format!("[{} bytes of output were left out here]", result.finished.output_dropped))
    );
}

/// Output that is dropped is read by the host, in nobody's control group.
#[tokio::test]
async fn a_flood_of_output_waits_for_the_host() {
    let limit = Duration::from_secs(1);
    let sandbox = sandbox(shared().await, Limits { timeout: limit, ..limits() }).await;
    let flood = "import os\nblock = bytes(1 << 20)\nwhile True: os.write(1, block); os.write(2, block)";
    let result = run(&sandbox, flood).await.finished;
    assert_eq!(result.outcome, Outcome::Limit(LimitHit::WallClock { limit }));
    assert!(result.output_dropped < 100 << 20, "{}", result.output_dropped);

    let arguments = ["sh", "-c", "timeout 1 yes"].map(str::to_owned).into();
    let command = Command { arguments, environment: Vec::new(), directory: "/tmp".into(), pty: None };
    let output = sandbox.run(command, b"", Duration::from_secs(30), 1000).await.unwrap();
    assert!(output.dropped < 100 << 20, "{}", output.dropped);
}

#[tokio::test]
async fn a_full_workspace_is_told_with_the_figures_and_the_session_lives() {
    let sandbox = sandbox(shared().await, limits()).await;
    for filler in [
        "for i in range(100): open(f'f{i}', 'wb').write(bytes(4 << 20))",
        // Deep down, and without any name at all.
        "import os\nfor _ in range(100): os.mkdir('d'); os.chdir('d')\nwhile True: open('big', 'ab').write(bytes(4 << 20))",
        "held = []\nwhile True:\n    f = open('unnamed', 'wb'); os.remove('unnamed'); held.append(f); f.write(bytes(4 << 20)); f.flush()",
    ] {
        let result = run(&sandbox, filler).await;
        let Outcome::Limit(LimitHit::Disk { used, limit }) = result.finished.outcome else { panic!("{result:?}") };
        assert!(used + (1 << 20) > limit && limit == 64 << 20, "{used} of {limit}");
        let clean = "import os, shutil\nos.chdir('/mnt/data'); held = None\nfor n in os.listdir(): shutil.rmtree(n) if os.path.isdir(n) else os.remove(n)";
        assert_eq!(run(&sandbox, clean).await.finished.outcome, Outcome::Completed);
        // A cell of its own: the checkpoint holds the files that were open before the last one.
        let result = run(&sandbox, "open('again', 'wb').write(bytes(8 << 20)); os.remove('again')").await;
        assert_eq!(result.finished.outcome, Outcome::Completed, "{result:?}");
    }
    let result = run(&sandbox, "open('sparse', 'wb').truncate(1 << 40)").await;
    let Outcome::Failed(error) = result.finished.outcome else { panic!("{result:?}") };
    assert!(error.value.contains("File too large"), "{error:?}");
    let result = run(&sandbox, "open('/tmp/x', 'wb').write(bytes(100 << 20))").await;
    let Outcome::Failed(error) = result.finished.outcome else { panic!("{result:?}") };
    assert!(error.value.contains("No space left"), "{error:?}");
}

#[tokio::test]
async fn too_many_files_are_told() {
    let sandbox = sandbox(shared().await, Limits { files: 1000, ..limits() }).await;
    let result = run(&sandbox, "for i in range(1100): open(f'f{i}', 'w')").await;
    assert_eq!(result.finished.outcome, Outcome::Limit(LimitHit::Files { limit: 1000 }), "{result:?}");
}

#[tokio::test]
async fn a_fork_bomb_stops_at_the_limit() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60); os._exit(0)\n        n += 1\nexcept OSError as e: print(e.errno, n < 32)";
    let result = run(&sandbox, code).await;
    assert_eq!(result.stdout, "11 True\n", "{result:?}");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_kernel_that_ends_itself_is_reported_with_its_reason() {
    let scratch = backend().await;
    for (code, death) in [
        ("import os; os._exit(7)", KernelDeath::Exited(7)),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", KernelDeath::Signalled(9)),
        ("import ctypes; ctypes.string_at(0)", KernelDeath::Signalled(11)),
        ("import os; os.abort()", KernelDeath::Signalled(6)),
    ] {
        let sandbox = sandbox(&scratch.local, limits()).await;
        let result = run(&sandbox, &format!("print('before', flush=True)\n{code}")).await;
        assert_eq!(result.finished.outcome, Outcome::KernelDied(death), "{code}");
        assert_eq!((result.stdout.as_str(), result.finished.state), ("before\n", VariablesState::Lost), "{code}");
    }
}

#[tokio::test]
async fn the_caller_can_interrupt_and_dropping_the_execution_does() {
    let sandbox = sandbox(shared().await, limits()).await;
    let execution = begun(&sandbox, "import time\nprint('on')\ntime.sleep(60)").await;
    execution.interrupter().interrupt();
    let result = listen(execution).await;
    assert_eq!((result.finished.outcome, result.finished.state), (Outcome::Interrupted, VariablesState::Kept));

    drop(sandbox.execute("time.sleep(60)").await.unwrap());
    let started = Instant::now();
    assert_eq!(run(&sandbox, "print('free')").await.stdout, "free\n");
    assert!(started.elapsed() < Duration::from_secs(20));

    // A program that ignores the interrupt is killed after the grace period.
    let ignores =
        "while True:\n    try:\n        print('on')\n        time.sleep(60)\n    except KeyboardInterrupt: pass";
    let execution = begun(&sandbox, ignores).await;
    execution.interrupter().interrupt();
    let result = listen(execution).await;
    assert_eq!((result.finished.outcome, result.finished.state), (Outcome::Interrupted, VariablesState::RolledBack));
}

/// Starts a program and waits until it has printed something.
async fn begun(sandbox: &Arc<dyn Sandbox>, code: &str) -> Execution {
    let mut execution = sandbox.execute(code).await.unwrap();
    assert_eq!(execution.next().await, Some(ExecutionEvent::Stdout("on\n".into())));
    execution
}

/// The signal may come before the program has begun, and is lost then; another one follows.
#[tokio::test]
async fn an_interrupt_at_once_ends_the_program_too() {
    let sandbox = sandbox(shared().await, Limits { grace: Duration::from_secs(20), ..limits() }).await;
    let execution = sandbox.execute("x = 1\nwhile True: pass").await.unwrap();
    execution.interrupter().interrupt();
    let result = listen(execution).await;
    assert_eq!((result.finished.outcome, result.finished.state), (Outcome::Interrupted, VariablesState::Kept));
}

#[tokio::test]
async fn a_program_that_spoils_its_channel_spoils_only_its_own_kernel() {
    let neighbour = sandbox(shared().await, limits()).await;
    run(&neighbour, "x = 1").await;
    for code in [
        "import os\nos.write(4, b'\\xff\\xff\\xff\\xff garbage')\nimport time; time.sleep(5)",
        "import os\nos.write(4, b'\\0\\0\\0\\2{}')\nimport time; time.sleep(5)",
        "import os\nos.closerange(0, 100)",
        "import os, json, struct\nframe = json.dumps({'type': 'done'}).encode()\nos.write(4, struct.pack('>I', len(frame)) + frame)\nimport time; time.sleep(0.2)\nos._exit(0)",
    ] {
        let sandbox = sandbox(shared().await, limits()).await;
        // Whatever it is told to be, it ends, and soon.
        tokio::time::timeout(Duration::from_secs(20), run(&sandbox, code)).await.expect(code);
    }
    assert_eq!(run(&neighbour, "print(x)").await.stdout, "1\n");
}

#[tokio::test]
async fn closing_ends_a_running_program_at_once() {
    let sandbox = sandbox(shared().await, limits()).await;
    let execution = sandbox
        .execute("while True:\n    try:\n        while True: pass\n    except BaseException: pass")
        .await
        .unwrap();
    let started = Instant::now();
    sandbox.close().await.unwrap();
    let result = listen(execution).await;
    assert!(matches!(result.finished.outcome, Outcome::KernelDied(_)), "{result:?}");
    // Its own time is 90 s.
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_flood_of_frames_is_cut() {
    let sandbox = sandbox(shared().await, limits()).await;
    let frames = "import os, json, struct\n\
        def send(frame):\n    data = json.dumps(frame).encode(); data = struct.pack('>I', len(data)) + data\n    \
        view = memoryview(data)\n    while view: view = view[os.write(4, view):]\n";
    let flood =
        "for _ in range(20): send({'type': 'error', 'name': 'E' * 9999, 'value': 'v' * 6000000, 'traceback': 't'})";
    let result = run(&sandbox, &format!("{frames}{flood}")).await;
    let [ExecutionEvent::Error(error)] = result.events.as_slice() else { panic!("{} events", result.events.len()) };
    assert!(error.name.len() <= 200 && error.value.len() <= 4 << 20);

    let result =
        run(&sandbox, "from IPython.display import display\nfor i in range(600): display('x' * 50000)\n'end'").await;
    let [events @ .., ExecutionEvent::Result(end)] = result.events.as_slice() else { panic!("no result") };
    assert!(events.len() <= 501, "{}", events.len());
    let Some(ExecutionEvent::Display(last)) = events.last() else { panic!("no display") };
    assert!(last.text().unwrap().contains("too much was displayed"));
    assert_eq!(end.text(), Some("'end'"));
}

#[tokio::test]
async fn a_kernel_that_is_robbed_of_its_frames_is_given_up() {
    let hit = Outcome::Limit(LimitHit::WallClock { limit: Duration::from_secs(1) });
    // The thread or the kernel may be the first to read.
    for _ in 0..10 {
        let sandbox = sandbox(shared().await, Limits { timeout: Duration::from_secs(1), ..limits() }).await;
        // A thread that lives on and reads what is meant for the kernel.
        let thief = "import threading, os\n\
            threading.Thread(target=lambda: [os.read(3, 65536) for _ in range(99)], daemon=True).start()";
        run(&sandbox, thief).await;
        let result = run(&sandbox, "print('never')").await;
        if result.finished.outcome == hit {
            assert_eq!(result.stdout, "");
            return;
        }
        assert_eq!(result.stdout, "never\n", "{result:?}");
    }
    panic!("no frame was stolen in ten sandboxes");
}

#[tokio::test]
async fn a_program_that_was_sent_by_half_never_runs() {
    let scratch = backend().await;
    let sandbox = sandbox(&scratch.local, limits()).await;
    // It does not let the kernel get to its channel.
    run(&sandbox, &later("os.kill(os.getpid(), signal.SIGSTOP)")).await;
    wait_beside(&sandbox, CHECKPOINT).await;
    wait_beside(&sandbox, "touch /tmp/now && grep -q '^State:.T' /proc/2/status").await;
    let program = format!("open('ran', 'w')\n#{}", "x".repeat(8 << 20));
    let sending = tokio::time::timeout(Duration::from_millis(300), sandbox.execute(&program)).await;
    assert!(sending.is_err(), "a stopped kernel took 8 MB");
    // The checkpoint goes on, and what was half sent is not a part of it.
    assert_eq!(run(&sandbox, "print(time.sleep)").await.finished.state, VariablesState::Kept);
    assert!(sandbox.workspace().read("ran", 10).is_err());
}

#[tokio::test]
async fn processor_time_is_bounded_for_all_processes_together() {
    let limit = Duration::from_secs(1);
    let sandbox = sandbox(shared().await, Limits { cpu_time: Some(limit), ..limits() }).await;
    // Longer than the limit: nothing of a sandbox that waits, its init included, may use the processor.
    let sleeps = run(&sandbox, "import os, time\nx = 1\ntime.sleep(1.5)").await;
    assert_eq!(sleeps.finished.outcome, Outcome::Completed);
    for burn in ["while True: pass", "if os.fork() == 0:\n    while True: pass\ntime.sleep(30)"] {
        let result = run(&sandbox, burn).await;
        assert_eq!(result.finished.outcome, Outcome::Limit(LimitHit::CpuTime { limit }), "{burn}");
    }
    assert_eq!(run(&sandbox, "print(x)").await.stdout, "1\n");
}

#[tokio::test]
async fn a_program_that_keeps_every_descriptor_keeps_its_session() {
    let sandbox = sandbox(shared().await, Limits { open_files: 64, ..limits() }).await;
    let result = run(&sandbox, "import os\nkept = []\nwhile True: kept.append(open('/dev/null'))").await;
    assert!(matches!(&result.finished.outcome, Outcome::Failed(error) if error.value.contains("Too many open files")));
    // The kernel looks around when nothing happens for a while.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let next = run(&sandbox, "print(len(kept) > 40)").await;
    assert_eq!(next.stdout, "True\n", "{next:?}");
    // There is a checkpoint, too.
    assert_eq!(run(&sandbox, "kept.clear(); os.abort()").await.finished.state, VariablesState::RolledBack);
    assert_eq!(run(&sandbox, "print(len(kept) > 40)").await.stdout, "True\n");
}

#[tokio::test]
async fn a_program_waits_for_the_reader_of_what_it_displays() {
    let sandbox = sandbox(shared().await, limits()).await;
    let displays = "from IPython.display import HTML, display\nfor number in range(40):\n    display(HTML('x' * 1_000_000))\n    \
                    open('count', 'w').write(str(number + 1))";
    let mut execution = sandbox.execute(displays).await.unwrap();
    let shown = async || {
        let arguments = ["cat", "count"].map(str::to_owned).to_vec();
        let show = Command { arguments, environment: Vec::new(), directory: "/mnt/data".into(), pty: None };
        String::from_utf8(sandbox.run(show, b"", Duration::from_secs(20), 100).await.unwrap().stdout).unwrap()
    };
    let mut counts = vec![String::new()];
    while counts.len() < 3 || counts[counts.len() - 1] != counts[counts.len() - 3] {
        tokio::time::sleep(Duration::from_millis(300)).await;
        counts.push(shown().await);
    }
    let waits_at: u32 = counts.pop().unwrap().parse().unwrap();
    assert!((1..5).contains(&waits_at), "{waits_at}");
    let (mut events, mut finished) = (0, None);
    while let Some(event) = execution.next().await {
        match event {
            ExecutionEvent::Finished(end) => finished = Some(end),
            _ => events += 1,
        }
    }
    assert_eq!((events, finished.unwrap().outcome), (40, Outcome::Completed));
}

#[tokio::test]
async fn a_long_display_waits_for_memory_unless_its_program_is_to_end() {
    let sandbox = sandbox(shared().await, limits()).await;
    let memory = AllEventMemory::new(0, 0).tenant();
    let shows = "from IPython.display import display\nx = 1\ndisplay({'image/png': 'A' * 18_000_000}, raw=True)\nx = 2";
    let other = sandbox.start_kernel(KernelOptions::default()).await.unwrap();
    let cell = || Cell { event_memory: Some(&memory), ..Cell::new(shows) };
    let value_of_x = async || listen(other.execute(Cell::new("print(x)")).await.unwrap()).await.stdout;
    let mut first = sandbox.first_kernel().execute(cell()).await.unwrap();
    assert!(matches!(first.next().await, Some(ExecutionEvent::Display(_))));
    let mut second = other.execute(cell()).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(1), second.next()).await.is_err());
    second.interrupter().interrupt();
    let ended = listen(second).await.finished;
    assert_eq!((ended.outcome, ended.state), (Outcome::Interrupted, VariablesState::Kept));
    assert_eq!(value_of_x().await, "1\n");
    let second = other.execute(cell()).await.unwrap();
    listen(first).await;
    assert_eq!(listen(second).await.finished.outcome, Outcome::Completed);
    assert_eq!(value_of_x().await, "2\n");
}

#[tokio::test]
async fn a_long_program_waits_for_memory_that_one_on_its_way_holds() {
    let scratch = backend().await;
    let memory = AllEventMemory::new(0, 0).tenant();
    let stopped = sandbox(&scratch.local, limits()).await;
    let stop = "import os, subprocess\nchild = subprocess.Popen(['sh', '-c', f'sleep 0.3; kill -STOP {os.getpid()}'])";
    run(&stopped, stop).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Seven times as long on its way: of each control character, six letters are sent.
    let nine = format!("'{}'", "\u{1}".repeat(9 << 20));
    let cell = |code| Cell { event_memory: Some(&memory), ..Cell::new(code) };
    let left = tokio::time::timeout(Duration::from_secs(1), stopped.first_kernel().execute(cell(&nine))).await;
    assert!(left.is_err(), "{left:?}");
    let other = sandbox(&scratch.local, limits()).await;
    let kernel = other.first_kernel();
    let two = format!("print(1) # {}", "\u{1}".repeat(2 << 20));
    let short = listen(kernel.execute(cell("print(0)")).await.unwrap()).await;
    assert_eq!(short.stdout, "0\n");
    let waiting = kernel.execute(cell(&two));
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    stopped.close().await.unwrap();
    assert_eq!(listen(waiting.await.unwrap()).await.stdout, "1\n");
}

/// Jupyter interrupts the process group of a kernel, too.
#[tokio::test]
async fn processes_of_a_program_end_with_it() {
    let spec = SandboxSpec {
        profile: Profile::Services,
        ..SandboxSpec::new(Limits { timeout: Duration::from_secs(1), grace: Duration::from_secs(3), ..limits() })
    };
    let sandbox = shared().await.create(SandboxId::unique(), spec).await.unwrap();
    run(&sandbox, "x = 41").await;
    let left = "import glob\nnames = [open(path).read().strip() for path in glob.glob('/proc/[0-9]*/comm')]\n\
                print(names.count('sleep'), globals().get('x'))";
    let is_over = |told: &common::Told| matches!(told.finished.outcome, Outcome::Limit(LimitHit::WallClock { .. }));
    for program in [
        "import subprocess; subprocess.run('sleep 1000; true', shell=True)",
        "import os; os.system('sleep 1000')",
        "!sleep 1000; true",
    ] {
        let ended = run(&sandbox, program).await;
        assert!(is_over(&ended), "{program}: {ended:?}");
        // A shell ends after its child.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(run(&sandbox, left).await.stdout, "0 41\n", "{program}");
    }
    let stubborn = "import signal, subprocess\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                    subprocess.Popen('trap \"\" INT; sleep 1000; true', shell=True)\nwhile True: pass";
    let ended = run(&sandbox, stubborn).await;
    assert!(is_over(&ended), "{ended:?}");
    let next = sandbox.start_kernel(KernelOptions::default()).await.unwrap();
    assert_eq!(listen(next.execute(Cell::new(left)).await.unwrap()).await.stdout, "0 None\n");
    drop(next);
    sandbox.close().await.unwrap();
}
