//! Programs beside the kernel.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::time::{Duration, Instant};

use aludel_sandbox::process::{Command, ExitStatus};
use aludel_sandbox::{Backend, Error, Profile, SandboxId, SandboxSpec};
use common::{limits, listen, run, sandbox, shared, wait_beside};

fn command(arguments: &[&str]) -> Command {
    let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    Command { arguments, environment: Vec::new(), directory: "/mnt/data".into(), pty: None }
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_program_reads_writes_and_tells_its_status() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "open('f', 'w').write('of the kernel')").await;
    let shell = Command {
        environment: vec![("WORD".into(), "given".into())],
        ..command(&["sh", "-c", "cat; cat /mnt/data/f; pwd; echo $WORD; echo wrong >&2; exit 3"])
    };
    let output = sandbox.run(shell, b"input\n", LONG, 1000).await.unwrap();
    assert_eq!(output.status, Some(ExitStatus::Code(3)));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "input\nof the kernel/mnt/data\ngiven\n");
    assert_eq!((output.stderr.as_slice(), output.dropped), (b"wrong\n".as_slice(), 0));
    let elsewhere = Command { directory: "/tmp".into(), ..command(&["pwd"]) };
    assert_eq!(sandbox.run(elsewhere, b"", LONG, 1000).await.unwrap().stdout, b"/tmp\n");
}

#[tokio::test]
async fn the_streams_of_a_program_and_of_a_cell_can_be_opened_by_path() {
    let sandbox = sandbox(shared().await, limits()).await;
    let script = "set -e; cat /dev/stdin; echo out > /dev/stdout; echo both | tee /dev/stderr; timeout 5 echo in time";
    let output = sandbox.run(command(&["bash", "-c", script]), b"input\n", LONG, 1000).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "input\nout\nboth\nin time\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "both\n");
    let cell = run(&sandbox, "!echo wrong > /dev/stderr\nopen('/dev/stdout', 'w').write('out')\nNone").await;
    assert_eq!((cell.stdout.as_str(), cell.stderr.as_str()), ("out", "wrong\n"));
}

#[tokio::test]
async fn everyday_commands_work_without_a_network_and_without_the_machines_proc() {
    let sandbox = sandbox(shared().await, limits()).await;
    for (script, expected) in [
        (
            "sleep 99 & ps aux | grep -c ' sleep 99$'; ps -ef | head -1 | awk '{print $1}'; ps -o comm= -p $!; kill $!",
            "1\nUSER\nsleep\n",
        ),
        ("python3 -m venv v && v/bin/python -c 'import pandas; print(pandas.__name__)'", "pandas\n"),
        (". v/bin/activate; pip install --no-deps pandas | cut -d' ' -f1-4", "Requirement already satisfied: pandas\n"),
        (
            "git init -q r 2>&1; git clone -q https://example.com/x 2>&1 | head -1",
            "There is no network in this sandbox, so git cannot reach https://example.com/x.\n",
        ),
        ("grep -c '^ID=' /etc/os-release", "1\n"),
    ] {
        let output = sandbox.run(command(&["bash", "-c", script]), b"", LONG, 10_000).await.unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!((stdout.as_str(), stderr.as_str()), (expected, ""), "{script}");
    }
}

#[tokio::test]
async fn a_program_computes_on_the_sandboxs_processors() {
    let sandbox = sandbox(shared().await, aludel_sandbox::Limits { cpus: 2.0, ..limits() }).await;
    let tell = || command(&["sh", "-c", "echo $OMP_NUM_THREADS $MKL_NUM_THREADS"]);
    assert_eq!(sandbox.run(tell(), b"", LONG, 1000).await.unwrap().stdout, b"2 2\n");
    let own = Command { environment: vec![("OMP_NUM_THREADS".into(), "7".into())], ..tell() };
    assert_eq!(sandbox.run(own, b"", LONG, 1000).await.unwrap().stdout, b"7 2\n");
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let sandbox = sandbox(shared().await, limits()).await;
    for (command, reason) in [
        (command(&["no-such-program"]), "No such file"),
        (command(&["/etc/passwd"]), "Permission denied"),
        (Command { directory: "/nowhere".into(), ..command(&["true"]) }, "/nowhere"),
    ] {
        let Err(Error::Start(text)) = sandbox.run(command, b"", LONG, 10).await else { panic!("it started: {reason}") };
        assert!(text.contains(reason), "{text}");
    }
}

#[tokio::test]
async fn a_sandbox_with_all_its_processes_says_so() {
    let sandbox = sandbox(shared().await, aludel_sandbox::Limits { processes: 8, ..limits() }).await;
    let mut running = Vec::new();
    let refused = loop {
        match sandbox.spawn(command(&["sleep", "600"])).await {
            Ok(process) if running.len() < 8 => running.push(process),
            Ok(_) => panic!("more than 8 processes run"),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoProcess), "{refused:?} after {}", running.len());
}

#[tokio::test]
async fn a_long_command_line_and_a_long_input_arrive() {
    let sandbox = sandbox(shared().await, limits()).await;
    let part = "x".repeat(64 << 10);
    let long: Vec<&str> = ["printf", "%s"].into_iter().chain(std::iter::repeat_n(part.as_str(), 16)).collect();
    let output = sandbox.run(command(&long), b"", LONG, 2 << 20).await.unwrap();
    assert_eq!(output.stdout.len(), 1 << 20);
    let output = sandbox.run(command(&["wc", "-c"]), &vec![b'a'; 50 << 20], LONG, 100).await.unwrap();
    assert_eq!(output.stdout, b"52428800\n");
}

#[tokio::test]
async fn time_and_output_are_bounded() {
    let sandbox = sandbox(shared().await, limits()).await;
    let started = Instant::now();
    let hang = command(&["sh", "-c", "sleep 600 & sleep 601"]);
    let output = sandbox.run(hang, b"", Duration::from_millis(300), 10).await.unwrap();
    assert_eq!(output.status, None);
    assert!(started.elapsed() < Duration::from_secs(20));
    let flood = command(&["sh", "-c", "head -c 3000000 /dev/zero"]);
    let output = sandbox.run(flood, b"", LONG, 1000).await.unwrap();
    assert_eq!((output.stdout.len(), output.dropped), (1000, 2_999_000));
    // Neither sleeper is left.
    wait_beside(&sandbox, "! grep -qsz '^60[01]$' /proc/[0-9]*/cmdline").await;
}

#[tokio::test]
async fn a_program_is_confined_like_the_kernel() {
    let sandbox = sandbox(shared().await, limits()).await;
    let look = "import os\nprint(os.getuid() > 0, [l for l in open('/proc/self/status') if l[:4] in ('CapE', 'NoNe', 'Secc')], sorted(os.listdir('/proc/self/fd')))\ntry: os.mount('a', 'b')\nexcept AttributeError: pass\nimport socket\ntry: socket.socket()\nexcept PermissionError: print('refused')";
    let of_kernel = run(&sandbox, look).await.stdout;
    let program = sandbox.run(command(&["python3", "-c", look]), b"", LONG, 10_000).await.unwrap();
    let of_program = String::from_utf8(program.stdout).unwrap();
    let without_descriptors = |text: &str| text.split("['0'").next().unwrap().to_owned();
    assert_eq!(without_descriptors(&of_kernel), without_descriptors(&of_program));
    // The standard streams and the listing itself.
    assert!(of_program.contains("['0', '1', '2', '3']") && of_program.ends_with("refused\n"), "{of_program}");
}

/// It is forked into a sandbox in which hostile programs may be running: until its filter is in place, none of them may get at it.
#[tokio::test]
async fn nobody_reaches_into_a_program_that_is_being_confined() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = r#"
import os
seen, reached = set(), 0
while not os.path.exists('/tmp/enough'):
    for process in set(os.listdir('/proc')) - {'1', '2', 'self', 'thread-self'}:
        try:
            # Opening it takes the right to look into the process.
            memory = os.open(f'/proc/{process}/environ', os.O_RDONLY)
            reached += 'Seccomp:\t0' in open(f'/proc/{process}/status').read()
            os.close(memory)
        except OSError: pass
        seen.add(process)
    if len(seen) > 5: open('/tmp/some', 'w')
print(len(seen) > 5, reached)
"#;
    let execution = sandbox.execute(code).await.unwrap();
    for number in 0..1000 {
        let looks = sandbox.run(command(&["test", "-e", "/tmp/some"]), b"", LONG, 10).await.unwrap();
        // Sixty at least, and as many as it takes until some were met.
        if number >= 60 && looks.status == Some(ExitStatus::Code(0)) {
            break;
        }
    }
    sandbox.run(command(&["touch", "/tmp/enough"]), b"", LONG, 10).await.unwrap();
    let result = listen(execution).await;
    assert_eq!(result.stdout, "True 0\n", "{result:?}");
}

#[tokio::test]
async fn commands_that_copy_and_pack_files_succeed() {
    let script = "set -e; cd /tmp; mkdir -p from/sub; echo x > from/a; chmod 750 from/a; ln -s a from/l\n\
        cp -p from/a p; cp -a from copy; install -m 755 from/a installed; test \"$(stat -c %a p installed)\" = \"$(printf '750\\n755')\"\n\
        tar cf t.tar from; tar czf t.tgz from; mkdir out; tar xpf t.tgz -C out; diff -r from out/from; dd if=t.tar of=d status=none\n\
        sort from/a > sorted; mv installed /mnt/data/moved; echo fine";
    for profile in [Profile::Data, Profile::Services] {
        let spec = SandboxSpec { profile, ..SandboxSpec::new(limits()) };
        let sandbox = shared().await.create(SandboxId::unique(), spec).await.unwrap();
        let code = format!(
            "import subprocess\nprint(subprocess.run(['sh', '-c', {script:?}], capture_output=True, text=True))"
        );
        let result = run(&sandbox, &code).await;
        assert!(result.stdout.contains("stdout='fine\\n', stderr=''"), "{result:?}");
        assert!(result.finished.relevant_refused_calls().is_empty(), "{result:?}");
        sandbox.close().await.unwrap();
    }
}
