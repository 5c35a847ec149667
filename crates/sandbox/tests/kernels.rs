//! Several kernels in one sandbox, as far as the local backend goes beyond the contract.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use aludel_sandbox::process::{Command, ExitStatus};
use aludel_sandbox::{
    Cell, Error, Kernel, KernelDeath, KernelOptions, LimitHit, Limits, Outcome, Sandbox, VariablesState,
};
use common::{CHECKPOINT, Told, limits, listen, run, sandbox, shared, wait_beside};

async fn start(sandbox: &Arc<dyn Sandbox>) -> Arc<dyn Kernel> {
    sandbox.start_kernel(KernelOptions::default()).await.unwrap()
}

async fn run_in(kernel: &Arc<dyn Kernel>, code: &str) -> Told {
    listen(kernel.execute(Cell::new(code)).await.unwrap()).await
}

#[tokio::test]
async fn a_further_kernel_is_confined_like_the_first() {
    let sandbox = sandbox(shared().await, limits()).await;
    let look = "import os\nprint(os.getuid() > 0, [l for l in open('/proc/self/status') if l[:3] in ('Cap', 'NoN', 'Sec', 'Uid')], open('/proc/self/cgroup').read(), [os.readlink(f'/proc/self/ns/{n}') for n in sorted(os.listdir('/proc/self/ns'))], sorted(os.listdir('/proc/self/fd'))[:5], open('/proc/self/environ').read() != '', os.getsid(0) == os.getpid())";
    // Above the fifth, the first alone has the socket of its checkpoint: `no_program_sends_the_host_a_descriptor`.
    let first = run(&sandbox, look).await;
    let further = run_in(&start(&sandbox).await, look).await;
    assert_eq!(first.finished.outcome, Outcome::Completed, "{first:?}");
    assert_eq!(first.stdout, further.stdout);
}

/// It is forked into a sandbox in which hostile programs may be running: until its filter is in place, none of them may get at it.
#[tokio::test]
async fn nobody_reaches_into_a_kernel_that_is_being_confined() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = r"
import os
seen, reached = set(), 0
while not os.path.exists('/tmp/enough'):
    for process in set(os.listdir('/proc')) - {'1', '2', 'self', 'thread-self'}:
        try:
            memory = os.open(f'/proc/{process}/environ', os.O_RDONLY)
            reached += 1
            os.close(memory)
        except OSError: pass
        seen.add(process)
print(len(seen) > 5, reached)
";
    let execution = sandbox.execute(code).await.unwrap();
    for _ in 0..20 {
        let kernel = start(&sandbox).await;
        assert_eq!(run_in(&kernel, "1").await.finished.outcome, Outcome::Completed);
        kernel.close().await;
    }
    run_in(&start(&sandbox).await, "open('/tmp/enough', 'w')").await;
    let result = listen(execution).await;
    assert_eq!(result.stdout, "True 0\n", "{result:?}");
}

#[tokio::test]
async fn a_kernel_starts_where_it_is_told_to() {
    let sandbox = sandbox(shared().await, limits()).await;
    let within = |directory: &str| KernelOptions { directory: Some(directory.into()), ..KernelOptions::default() };
    let kernel = sandbox.start_kernel(within("/tmp")).await.unwrap();
    let program =
        "import os, subprocess\nprint(os.getcwd(), subprocess.run('pwd', capture_output=True, text=True).stdout)";
    assert_eq!(run_in(&kernel, program).await.stdout, "/tmp /tmp\n\n");
    let refused = sandbox.start_kernel(within("/nowhere")).await;
    assert!(matches!(&refused, Err(Error::Start(reason)) if reason.contains("/nowhere")), "{refused:?}");
    // A checkpoint from before would not know of it.
    run(&sandbox, "x = 1").await;
    run(&sandbox, "pass").await;
    drop(kernel);
    wait_beside(&sandbox, CHECKPOINT).await;
    sandbox.first_kernel().configure(&within("/tmp")).await.unwrap();
    let result = run(&sandbox, "import os; os._exit(1)").await;
    assert_eq!(result.finished.state, VariablesState::RolledBack);
    assert_eq!(run(&sandbox, "import os; print(os.getcwd(), x)").await.stdout, "/tmp 1\n");
}

#[tokio::test]
async fn refused_calls_are_told_to_the_kernel_that_made_them() {
    let sandbox = sandbox(shared().await, limits()).await;
    let kernel = start(&sandbox).await;
    let refused = run_in(&kernel, "import os\ntry: os.chroot('/')\nexcept PermissionError: print('refused')").await;
    assert_eq!((refused.stdout.as_str(), refused.finished.refused_calls), ("refused\n", vec!["chroot".to_owned()]));
    assert!(run(&sandbox, "1").await.finished.refused_calls.is_empty());
}

#[tokio::test]
async fn kernels_share_one_limit_of_memory() {
    let sandbox = sandbox(shared().await, Limits { memory: 200 << 20, ..limits() }).await;
    run(&sandbox, "x = 1").await;
    let kernel = start(&sandbox).await;
    // Neither reaches the limit alone.
    let fill = "block = bytearray(b'x') * (120 << 20)\nprint('filled')";
    assert_eq!(run_in(&kernel, fill).await.stdout, "filled\n");
    let result = run(&sandbox, fill).await;
    let is_memory = matches!(result.finished.outcome, Outcome::Limit(LimitHit::Memory { .. }));
    // The system ends the largest process, whichever that is, and its end is reported a moment later.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !is_memory && kernel.is_alive() {
        assert!(std::time::Instant::now() < deadline, "{result:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn want_of_memory_is_told_of_the_process_that_it_ended_alone() {
    let sandbox = sandbox(shared().await, limits()).await;
    let hog = "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1";
    let result = run_in(&start(&sandbox).await, hog).await;
    assert!(matches!(result.finished.outcome, Outcome::Limit(LimitHit::Memory { .. })), "{result:?}");
    let command = Command {
        arguments: ["python3", "-c", hog].map(str::to_owned).into(),
        environment: Vec::new(),
        directory: "/tmp".into(),
        pty: None,
    };
    let output = sandbox.spawn(command).await.unwrap().output(b"", Duration::from_secs(60), 100).await.unwrap();
    assert_eq!(output.status, Some(ExitStatus::Signal(9)), "{output:?}");
    // Nor does it hear of a process that dies later for another reason.
    let child = format!("import subprocess, sys; print(subprocess.run([sys.executable, '-c', {hog:?}]).returncode)");
    assert_eq!(run(&sandbox, &child).await.stdout, "-9\n");
    for kernel in [start(&sandbox).await, sandbox.first_kernel()] {
        let result = run_in(&kernel, "import os; os.kill(os.getpid(), 9)").await;
        assert_eq!(result.finished.outcome, Outcome::KernelDied(KernelDeath::Signalled(9)), "{result:?}");
    }
}

#[tokio::test]
async fn a_program_goes_on_when_the_first_kernel_dies() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "x = 1").await;
    run(&sandbox, "pass").await;
    wait_beside(&sandbox, CHECKPOINT).await;
    let arguments = ["sh", "-c", "read word; echo $word"].map(str::to_owned).into();
    let command = Command { arguments, environment: Vec::new(), directory: "/tmp".into(), pty: None };
    let process = sandbox.spawn(command).await.unwrap();
    let result = run(&sandbox, "import os; os._exit(1)").await;
    assert_eq!(result.finished.state, VariablesState::Lost, "a checkpoint would end the program");
    let output = process.output(b"alive\n", Duration::from_secs(20), 100).await.unwrap();
    assert_eq!((output.status, output.stdout.as_slice()), (Some(ExitStatus::Code(0)), b"alive\n".as_slice()));
    // The checkpoint that was not needed has gone, and another kernel may take the place.
    wait_beside(&sandbox, "! grep -qs '^Name:.python' /proc/[0-9]*/status").await;
    assert_eq!(run_in(&start(&sandbox).await, "print(2)").await.stdout, "2\n");
}

#[tokio::test]
async fn a_time_zone_and_a_path_of_modules_are_in_force_as_variables() {
    let sandbox = sandbox(shared().await, limits()).await;
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let environment = vec![pair("TZ", "Asia/Tokyo"), pair("PYTHONPATH", "/mnt/data/lib")];
    let kernel = sandbox.start_kernel(KernelOptions { environment, ..KernelOptions::default() }).await.unwrap();
    let write = "import os, time\nos.mkdir('lib')\nopen('lib/mine.py', 'w').write('x = 7')\n\
                 import mine\nprint(mine.x, time.strftime('%z'))";
    assert_eq!(run_in(&kernel, write).await.stdout, "7 +0900\n");
    let cell = |environment| Cell { environment, ..Cell::new("print(time.strftime('%z'))") };
    let other = [pair("TZ", "Etc/GMT-2")];
    assert_eq!(listen(kernel.execute(cell(&other)).await.unwrap()).await.stdout, "+0200\n");
    assert_eq!(listen(kernel.execute(cell(&[])).await.unwrap()).await.stdout, "+0900\n");
}

#[tokio::test]
async fn charts_in_any_font_fall_back_to_those_of_other_scripts() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "from matplotlib import font_manager as fonts\n\
                print(len(fonts.fontManager._find_fonts_by_props(fonts.FontProperties(family='DejaVu Sans'))))";
    assert_eq!(run(&sandbox, code).await.stdout, "4\n");
}
