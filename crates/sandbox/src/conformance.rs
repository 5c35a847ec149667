//! The contract of a backend, as a function that every backend's tests call.
#![allow(clippy::panic, reason = "what breaks the contract is said by a panic, in the test that asked")]

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout};

use crate::process::{Command, ExitStatus, PtySize};
use crate::{
    Backend, BackendStatus, Capabilities, Cell, ClientAnswer, ClientCall, Error, Execution, ExecutionEvent, FileEntry,
    Finished, Kernel, KernelDeath, KernelOptions, LimitHit, Limits, Outcome, Profile, Sandbox, SandboxId, SandboxSpec,
    VariablesState, Workspace, WorkspaceEntry, WorkspaceListing, WorkspaceUsage,
};

/// Programs in the language of the backend's kernels; each field says what its program does.
#[derive(Debug, Clone)]
pub struct ConformancePrograms {
    /// Prints `hello` and a line's end, and nothing else.
    pub prints: String,
    /// Prints `oops` and a line's end to the error output.
    pub prints_error: String,
    /// Ends with a value whose representation is `2`; `None` in a language without values of programs.
    pub has_result: Option<String>,
    /// Fails.
    pub fails: String,
    /// The name of that failure and its message.
    pub failure: (String, String),
    /// Writes `content` to the file `made`.
    pub makes_file: String,
    /// Prints what the file `given` contains.
    pub reads_file: String,
    /// Sets a variable.
    pub remembers: String,
    /// Prints `remembered` and a line's end if the variable is set, and fails if it is not.
    pub recalls: String,
    /// Prints the environment variable `WORD` and a line's end, or `none` and a line's end where it is not set.
    pub prints_variable: String,
    /// Listens on TCP port 8080 of all addresses in the background, and answers each connection with `served`.
    pub serves: String,
    /// Prints `begun` and a line's end, calls the tool `tool` with `n` 1 and 2 at once, prints each answer and a line's end, calls it with
    /// `n` 3 and prints the answer and a line's end. Fails without such a tool.
    pub calls: String,
    /// Prints `begun` and a line's end, then runs until it is interrupted.
    pub never_ends: String,
    /// Prints `begun` and a line's end, then runs until it is killed, and ignores interrupts.
    pub ignores_interrupts: String,
    /// Ends its own kernel with the status 3.
    pub dies: String,
    /// Prints 1 MiB and ends.
    pub floods: String,
    /// Writes to the file `large` without end.
    pub fills_workspace: String,
}

impl ConformancePrograms {
    /// The programs in Python.
    pub fn python() -> Self {
        let owned = str::to_owned;
        Self {
            prints: owned("print('hello')"),
            prints_error: owned("import sys\nprint('oops', file=sys.stderr)"),
            has_result: Some(owned("1 + 1")),
            fails: owned("raise ValueError('no')"),
            failure: (owned("ValueError"), owned("no")),
            makes_file: owned("with open('made', 'w') as file: file.write('content')"),
            reads_file: owned("print(open('given').read(), end='')"),
            remembers: owned("remembered = 'remembered'"),
            recalls: owned("print(remembered)"),
            prints_variable: owned("import os\nprint(os.environ.get('WORD', 'none'))"),
            serves: owned(
                "import socket, threading\nserver = socket.create_server(('', 8080))\ndef serve():\n    while True:\n        client, _ = server.accept(); client.sendall(b'served'); client.close()\nthreading.Thread(target=serve, daemon=True).start()",
            ),
            calls: owned(
                "import asyncio\nprint('begun')\nfor text in await asyncio.gather(tool({'n': 1}), tool({'n': 2})): print(text)\nprint(await tool({'n': 3}))",
            ),
            never_ends: owned("print('begun', flush=True)\nwhile True: pass"),
            ignores_interrupts: owned(
                "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun', flush=True)\nwhile True: pass",
            ),
            dies: owned("import os\nos._exit(3)"),
            floods: owned("for _ in range(1024): print('x' * 1023)"),
            fills_workspace: owned("with open('large', 'wb', 0) as file:\n    while True: file.write(bytes(1 << 20))"),
        }
    }
}

/// The longest that a step of the suite may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The limits of the suite's sandboxes.
fn limits() -> Limits {
    Limits {
        memory: 300 << 20,
        timeout: ANSWER_TIMEOUT,
        grace: Duration::from_millis(500),
        disk: 16 << 20,
        output: 64 << 10,
        ..Limits::default()
    }
}

/// Checks that a backend keeps the contract, and panics with the difference. Returns the checks that were left out because of the backend's
/// capabilities.
pub async fn conformance(backend: &dyn Backend, programs: &ConformancePrograms) -> Vec<&'static str> {
    let suite = Suite { backend, programs };
    suite.outcomes().await;
    suite.files().await;
    suite.limits().await;
    suite.interrupts().await;
    suite.ids().await;
    suite.cancelled_creates().await;
    suite.specs().await;
    let mut skipped = Vec::new();
    let Capabilities {
        enforces_disk, checkpoints, kernels, processes, terminals, attach, pause, fork, connect, ..
    } = *backend.capabilities();
    suite.environment().await;
    suite.calls().await;
    if kernels {
        suite.kernels().await;
    } else {
        skipped.push("a sandbox has several kernels");
        let sandbox = suite.create(limits()).await;
        let started = sandbox.start_kernel(KernelOptions::default()).await;
        assert!(matches!(started, Err(Error::NotSupported(_))), "further kernels");
    }
    if enforces_disk {
        suite.full_workspace().await;
    } else {
        skipped.push("a full workspace is told");
    }
    suite.deaths(checkpoints).await;
    if !checkpoints {
        skipped.push("a checkpoint takes over");
    }
    if pause {
        suite.pauses().await;
    } else {
        skipped.push("a sandbox is paused");
    }
    if connect {
        suite.ports().await;
    } else {
        skipped.push("a port is connected to");
    }
    if terminals {
        suite.terminals().await;
    } else {
        skipped.push("a command runs in a terminal");
    }
    if processes {
        suite.processes().await;
    } else {
        skipped.push("a command runs beside the kernel");
    }
    suite.not_supported(processes, pause, fork, connect, attach).await;
    assert_eq!(backend.health().status, BackendStatus::Ready, "the backend is well after all that");
    let left = timeout(ANSWER_TIMEOUT, async {
        loop {
            let left = backend.list(None).await.expect("the list");
            if left.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    left.await.expect("every sandbox that was dropped is gone");
    for check in &skipped {
        println!("not checked for want of the capability: {check}");
    }
    skipped
}

struct Suite<'a> {
    backend: &'a dyn Backend,
    programs: &'a ConformancePrograms,
}

/// The events and the end of one execution.
struct ExecutionRecord {
    stdout: String,
    stderr: String,
    events: Vec<ExecutionEvent>,
    finished: Finished,
}

impl Suite<'_> {
    async fn create(&self, limits: Limits) -> Arc<dyn Sandbox> {
        self.make(SandboxSpec::new(limits)).await
    }

    async fn make(&self, spec: SandboxSpec) -> Arc<dyn Sandbox> {
        let made = timeout(ANSWER_TIMEOUT, self.backend.create(SandboxId::unique(), spec)).await;
        made.expect("a sandbox in time").expect("a sandbox")
    }

    async fn outcomes(&self) {
        let sandbox = self.create(limits()).await;
        assert!(sandbox.is_alive());
        let result = run(&sandbox, &self.programs.prints).await;
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("hello\n", ""), "what is printed");
        assert_eq!(result.finished.outcome, Outcome::Completed);
        assert_eq!((result.finished.state, result.finished.output_dropped), (VariablesState::Kept, 0));
        assert!(result.events.is_empty(), "{:?}", result.events);
        let result = run(&sandbox, &self.programs.prints_error).await;
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("", "oops\n"), "the error output apart");
        if let Some(program) = &self.programs.has_result {
            let result = run(&sandbox, program).await;
            assert!(matches!(result.events.as_slice(), [ExecutionEvent::Result(bundle)] if bundle.text() == Some("2")));
        }
        let result = run(&sandbox, &self.programs.fails).await;
        let Outcome::Failed(error) = &result.finished.outcome else { panic!("{:?}", result.finished) };
        assert_eq!((error.name.clone(), error.value.clone()), self.programs.failure);
        assert_eq!(result.events, [ExecutionEvent::Error(error.clone())], "the exception is told before the end");
        assert_eq!(result.finished.state, VariablesState::Kept, "an exception costs no variables");
        run(&sandbox, &self.programs.remembers).await;
        assert_eq!(run(&sandbox, &self.programs.recalls).await.stdout, "remembered\n", "variables stay");
        let other = self.create(limits()).await;
        let result = run(&other, &self.programs.recalls).await;
        assert!(matches!(result.finished.outcome, Outcome::Failed(_)), "variables are the sandbox's own");
    }

    async fn files(&self) {
        let sandbox = self.create(limits()).await;
        let result = run(&sandbox, &self.programs.makes_file).await;
        let made = |file: &FileEntry| (file.path.clone(), file.size);
        assert_eq!(result.finished.files.iter().map(made).collect::<Vec<_>>(), [("made".to_owned(), 7)]);
        let result = run(&sandbox, &self.programs.prints).await;
        assert!(result.finished.files.is_empty(), "only what changed is reported");
        let workspace = Arc::clone(sandbox.workspace());
        sandbox.close().await.expect("the sandbox ends");
        drop(sandbox);
        // The files outlive the sandbox.
        let content = Arc::clone(&workspace).blocking(|files| files.read("made", 7)).await;
        assert_eq!(content.expect("the file"), b"content");
        let checked = Arc::clone(&workspace).blocking(|files| {
            assert!(files.read("made", 6).is_err(), "a file is not read beyond what was asked for");
            for name in ["", "../up", "/absolute", "a/../b", "dir/", "dir/.", "./a", "a//b"] {
                assert!(files.write(name, &mut &b"x"[..], 10).is_err(), "{name:?} was written");
            }
            files.write("given", &mut &b"given\n"[..], 6).expect("a file is written");
            assert!(files.add("given", 7, &mut &b"1234567"[..], 6).is_err(), "a limit is kept");
            assert!(files.write("over", &mut &b"1234567"[..], 6).is_err(), "a limit is kept");
            let names: Vec<_> = files.files().expect("the files").into_iter().map(|file| file.path).collect();
            assert_eq!(names, ["given", "made"], "what could not be written is not there");
            files.remove("made").expect("a file is removed");
            files.remove("made").expect("one that is not there is fine");
            let mut text = String::new();
            let (mut file, size) = files.open("given").expect("a file is opened");
            file.read_to_string(&mut text).expect("a file is read");
            assert_eq!((text.as_str(), size), ("given\n", 6));
        });
        checked.await;
        let next = self.make(SandboxSpec::new(limits()).with_workspace(workspace)).await;
        let result = run(&next, &self.programs.reads_file).await;
        assert_eq!(result.stdout, "given\n", "the next sandbox has the files: {:?}", result.finished);
    }

    async fn limits(&self) {
        let sandbox = self.create(limits()).await;
        let result = run(&sandbox, &self.programs.floods).await;
        assert_eq!(result.finished.outcome, Outcome::Completed);
        assert!(result.finished.output_dropped >= (1 << 20) - (64 << 10), "{}", result.finished.output_dropped);
        assert!(result.stdout.len() < 66 << 10, "{} bytes were passed on", result.stdout.len());
        let short = Limits { timeout: Duration::from_millis(300), ..limits() };
        for program in [&self.programs.never_ends, &self.programs.ignores_interrupts] {
            let sandbox = self.create(short.clone()).await;
            let started = Instant::now();
            let result = run(&sandbox, program).await;
            let hit = LimitHit::WallClock { limit: short.timeout };
            assert_eq!(result.finished.outcome, Outcome::Limit(hit), "{program}");
            assert!(started.elapsed() >= short.timeout);
        }
    }

    async fn interrupts(&self) {
        let sandbox = self.create(limits()).await;
        run(&sandbox, &self.programs.remembers).await;
        let mut execution = begin(&sandbox, &self.programs.never_ends).await;
        execution.interrupter().interrupt();
        let result = listen(&mut execution).await;
        assert_eq!((result.finished.outcome, result.finished.state), (Outcome::Interrupted, VariablesState::Kept));
        assert_eq!(run(&sandbox, &self.programs.recalls).await.stdout, "remembered\n", "an interrupt costs nothing");
        let mut execution = begin(&sandbox, &self.programs.ignores_interrupts).await;
        execution.interrupter().interrupt();
        let result = listen(&mut execution).await;
        assert_eq!(result.finished.outcome, Outcome::Interrupted);
        assert_ne!(result.finished.state, VariablesState::Kept, "it was killed");
        // Dropping the execution ends the program.
        let sandbox = self.create(limits()).await;
        drop(begin(&sandbox, &self.programs.never_ends).await);
        assert_eq!(run(&sandbox, &self.programs.prints).await.stdout, "hello\n", "the next one has its turn");
    }

    async fn calls(&self) {
        let short = Limits { timeout: Duration::from_secs(2), ..limits() };
        let sandbox = self.create(short.clone()).await;
        let (kernel, tools) = (sandbox.first_kernel(), ["tool".to_owned()]);
        let cell = Cell { tools: &tools, ..Cell::new(&self.programs.calls) };
        let result = run(&sandbox, &self.programs.calls).await;
        assert!(matches!(result.finished.outcome, Outcome::Failed(_)), "a cell has the tools that it was given");
        run(&sandbox, &self.programs.remembers).await;
        let answer = |text: &str| ClientAnswer { text: text.to_owned(), is_error: false };
        let mut execution = begin_in(&kernel, cell).await;
        assert_eq!(called(&mut execution).await, [1, 2], "calls that are made at once are told at once");
        tokio::time::sleep(short.timeout).await;
        execution.answer(vec![answer("one"), answer("two")]);
        let mut printed = String::new();
        while printed != "one\ntwo\n" {
            match timeout(ANSWER_TIMEOUT, execution.next()).await.expect("a word in time") {
                Some(ExecutionEvent::Stdout(text)) => printed.push_str(&text),
                other => panic!("{other:?} after answers"),
            }
        }
        assert_eq!(called(&mut execution).await, [3]);
        execution.answer(vec![answer("three"), answer("and more than was asked for")]);
        let result = listen(&mut execution).await;
        assert_eq!(
            (result.stdout.as_str(), &result.finished.outcome),
            ("three\n", &Outcome::Completed),
            "it stood still"
        );
        assert!(result.finished.elapsed < short.timeout, "waiting is not running");
        let mut execution = begin_in(&kernel, cell).await;
        called(&mut execution).await;
        execution.answer(vec![answer("one"), ClientAnswer::error("no")]);
        let result = listen(&mut execution).await;
        let Outcome::Failed(error) = &result.finished.outcome else { panic!("{:?}", result.finished) };
        assert_eq!((error.name.as_str(), error.value.as_str()), ("ToolError", "no"), "a failure is an exception");
        let mut execution = begin_in(&kernel, cell).await;
        called(&mut execution).await;
        execution.interrupter().interrupt();
        let result = listen(&mut execution).await;
        assert_eq!((result.finished.outcome, result.finished.state), (Outcome::Interrupted, VariablesState::Kept));
        let mut execution = begin_in(&kernel, cell).await;
        called(&mut execution).await;
        drop(execution);
        assert_eq!(run(&sandbox, &self.programs.recalls).await.stdout, "remembered\n", "the next one has its turn");
        let mut execution = begin_in(&kernel, cell).await;
        called(&mut execution).await;
        sandbox.close().await.expect("the sandbox ends");
        execution.answer(vec![answer("too late")]);
        let result = listen(&mut execution).await;
        assert!(matches!(result.finished.outcome, Outcome::KernelDied(_)), "{:?}", result.finished);
        for name in ["", "a b", "1", "a.b", "ä"] {
            let tools = [name.to_owned()];
            let refused = kernel.execute(Cell { tools: &tools, ..Cell::new("") }).await;
            assert!(matches!(refused, Err(Error::Start(_))), "{name:?} is no name");
        }
    }

    async fn full_workspace(&self) {
        let sandbox = self.create(limits()).await;
        let result = run(&sandbox, &self.programs.fills_workspace).await;
        let Outcome::Limit(LimitHit::Disk { used, limit }) = result.finished.outcome else {
            panic!("{:?}", result.finished)
        };
        assert!(used <= limit && limit == limits().disk, "{used} of {limit}");
        assert_eq!(run(&sandbox, &self.programs.prints).await.stdout, "hello\n", "the kernel lives");
    }

    async fn deaths(&self, checkpoints: bool) {
        let sandbox = self.create(limits()).await;
        let result = run(&sandbox, &self.programs.dies).await;
        assert_eq!(result.finished.outcome, Outcome::KernelDied(KernelDeath::Exited(3)));
        assert_eq!(result.finished.state, VariablesState::Lost, "there was nothing before it");
        assert!(!sandbox.is_alive());
        assert!(matches!(sandbox.execute(&self.programs.prints).await, Err(Error::KernelGone(_))));
        if checkpoints {
            let sandbox = self.create(limits()).await;
            run(&sandbox, &self.programs.remembers).await;
            let result = run(&sandbox, &self.programs.dies).await;
            assert_eq!(result.finished.state, VariablesState::RolledBack);
            assert_eq!(run(&sandbox, &self.programs.recalls).await.stdout, "remembered\n", "variables from before");
        }
    }

    async fn environment(&self) {
        let sandbox = self.create(limits()).await;
        let kernel = sandbox.first_kernel();
        let program = &self.programs.prints_variable;
        let word = |text: &str| vec![("WORD".to_owned(), text.to_owned())];
        assert_eq!(run(&sandbox, program).await.stdout, "none\n");
        assert_eq!(run_in(&kernel, Cell { environment: &word("cell"), ..Cell::new(program) }).await.stdout, "cell\n");
        assert_eq!(run(&sandbox, program).await.stdout, "none\n", "a variable is the cell's alone");
        let options = KernelOptions { environment: word("kernel"), ..KernelOptions::default() };
        kernel.configure(&options).await.expect("a kernel is configured");
        assert_eq!(run(&sandbox, program).await.stdout, "kernel\n", "a variable of the kernel stays");
        assert_eq!(run_in(&kernel, Cell { environment: &word("cell"), ..Cell::new(program) }).await.stdout, "cell\n");
        assert_eq!(run(&sandbox, program).await.stdout, "kernel\n", "and has its value again");
        for name in ["", "A=B", "A\0"] {
            let environment = [(name.to_owned(), String::new())];
            let refused = kernel.execute(Cell { environment: &environment, ..Cell::new(program) }).await;
            assert!(matches!(refused, Err(Error::Start(_))), "{name:?} is no name");
        }
        let execution = sandbox.execute(program).await.expect("the execution starts");
        assert_eq!(execution.number(), 7, "cells are counted");
    }

    async fn kernels(&self) {
        let ConformancePrograms { remembers, recalls, prints, never_ends, dies, .. } = &self.programs;
        let sandbox = self.create(Limits { kernels: 3, ..limits() }).await;
        run(&sandbox, remembers).await;
        let start = async || sandbox.start_kernel(KernelOptions::default()).await;
        let second = start().await.expect("a second kernel");
        let result = run_in(&second, Cell::new(recalls)).await;
        assert!(matches!(result.finished.outcome, Outcome::Failed(_)), "a kernel has variables of its own");
        let third = start().await.expect("a third kernel");
        assert!(matches!(start().await, Err(Error::Full)), "there are as many as there may be");
        // One kernel runs while the others are used.
        let mut execution = begin_in(&second, Cell::new(never_ends)).await;
        assert_eq!(run(&sandbox, recalls).await.stdout, "remembered\n");
        assert_eq!(run_in(&third, Cell::new(prints)).await.stdout, "hello\n");
        execution.interrupter().interrupt();
        let result = listen(&mut execution).await;
        assert_eq!((result.finished.outcome, result.finished.state), (Outcome::Interrupted, VariablesState::Kept));
        // The death of a kernel is reported only there.
        run_in(&second, Cell::new(remembers)).await;
        let result = run_in(&second, Cell::new(dies)).await;
        assert_eq!(result.finished.outcome, Outcome::KernelDied(KernelDeath::Exited(3)));
        assert_eq!(result.finished.state, VariablesState::Lost, "a further kernel keeps no checkpoint");
        assert!(!second.is_alive() && third.is_alive() && sandbox.is_alive());
        assert!(matches!(second.execute(Cell::new(prints)).await, Err(Error::KernelGone(_))));
        let fourth = start().await.expect("there is room for another one");
        let result = run(&sandbox, dies).await;
        assert_eq!(result.finished.state, VariablesState::Lost, "a checkpoint would end the other kernels");
        assert!(!sandbox.is_alive());
        assert_eq!(run_in(&third, Cell::new(prints)).await.stdout, "hello\n", "the others go on");
        // A kernel can be ended alone, whatever runs in it; dropping its last reference ends it too.
        let mut execution = begin_in(&third, Cell::new(never_ends)).await;
        third.close().await;
        let result = listen(&mut execution).await;
        assert!(matches!(result.finished.outcome, Outcome::KernelDied(_)), "{:?}", result.finished);
        assert!(!third.is_alive());
        drop(third);
        let others = [start().await.expect("a kernel"), start().await.expect("a kernel")];
        drop(others);
        for _ in 0..3 {
            drop(start().await.expect("those that were dropped take no room"));
        }
        let execution = begin_in(&fourth, Cell::new(never_ends)).await;
        sandbox.close().await.expect("the sandbox ends");
        assert!(
            timeout(ANSWER_TIMEOUT, ended(execution)).await.is_ok() && !fourth.is_alive(),
            "and all kernels with it"
        );
        assert!(start().await.is_err(), "nothing begins in it any more");
    }

    async fn pauses(&self) {
        let (short, rest) = (Duration::from_millis(400), Duration::from_millis(700));
        let sandbox = self.create(Limits { timeout: short, ..limits() }).await;
        run(&sandbox, &self.programs.remembers).await;
        sandbox.resume().await.expect("one that is not paused is fine");
        let started = Instant::now();
        let mut execution = begin(&sandbox, &self.programs.never_ends).await;
        sandbox.pause().await.expect("a sandbox is paused");
        sandbox.pause().await.expect("and once more");
        assert!(timeout(rest, execution.next()).await.is_err(), "no limit of time is hit meanwhile");
        if self.backend.capabilities().kernels {
            let started = sandbox.start_kernel(KernelOptions::default()).await;
            assert!(matches!(started, Err(Error::Paused)), "nothing begins meanwhile");
        }
        sandbox.resume().await.expect("a sandbox goes on");
        let result = listen(&mut execution).await;
        assert_eq!(result.finished.outcome, Outcome::Limit(LimitHit::WallClock { limit: short }));
        assert!(started.elapsed() >= short + rest, "the rest did not count: {:?}", started.elapsed());
        assert!(result.finished.elapsed < short + rest / 2, "nor as its time: {:?}", result.finished.elapsed);
        sandbox.pause().await.expect("a sandbox is paused");
        let begun = sandbox.execute(&self.programs.prints).await;
        assert!(matches!(begun, Err(Error::Paused)), "nothing begins meanwhile");
        sandbox.resume().await.expect("a sandbox goes on");
        assert_eq!(run(&sandbox, &self.programs.recalls).await.stdout, "remembered\n", "variables stay");
        let execution = begin(&sandbox, &self.programs.ignores_interrupts).await;
        sandbox.pause().await.expect("a sandbox is paused");
        timeout(ANSWER_TIMEOUT, sandbox.close()).await.expect("in time").expect("one that is paused is destroyed");
        assert!(timeout(ANSWER_TIMEOUT, ended(execution)).await.is_ok(), "and what runs in it is told to have ended");
    }

    async fn ports(&self) {
        let spec = || SandboxSpec { profile: Profile::Services, ..SandboxSpec::new(limits()) };
        let (sandbox, other) = (self.make(spec()).await, self.make(spec()).await);
        let connect =
            async |sandbox: &Arc<dyn Sandbox>| timeout(ANSWER_TIMEOUT, sandbox.connect(8080)).await.expect("in time");
        assert!(matches!(connect(&sandbox).await.err(), Some(Error::PortClosed(8080))), "nobody listens yet");
        run(&sandbox, &self.programs.serves).await;
        for _ in 0..2 {
            let mut connection = connect(&sandbox).await.expect("a connection");
            let mut text = String::new();
            timeout(ANSWER_TIMEOUT, connection.read_to_string(&mut text))
                .await
                .expect("an answer in time")
                .expect("an answer");
            assert_eq!(text, "served");
        }
        assert!(matches!(connect(&other).await.err(), Some(Error::PortClosed(_))), "a port is the sandbox's own");
        sandbox.close().await.expect("the sandbox ends");
        assert!(connect(&sandbox).await.is_err(), "a port ends with its sandbox");
        let data = self.create(limits()).await;
        assert!(matches!(connect(&data).await.err(), Some(Error::NotSupported(_))), "a sandbox for data has none");
    }

    async fn processes(&self) {
        let sandbox = self.create(limits()).await;
        run(&sandbox, &self.programs.makes_file).await;
        let command = |arguments: &[&str]| Command {
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: vec![("WORD".into(), "command".into())],
            directory: "/mnt/data".into(),
            pty: None,
        };
        let shell = |script: &str| command(&["sh", "-c", script]);
        let ran =
            sandbox.run(shell("cat; cat made; echo $WORD; pwd; echo oops >&2; exit 3"), b"in ", ANSWER_TIMEOUT, 1000);
        let output = ran.await.expect("a command");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "in contentcommand\n/mnt/data\n", "{output:?}");
        assert_eq!(output.stderr, b"oops\n", "the error output apart");
        assert_eq!((output.status, output.dropped), (Some(ExitStatus::Code(3)), 0));
        for (refused, reason) in [
            (command(&["no-such-program"]), "No such file"),
            (command(&["/etc/passwd"]), "Permission denied"),
            (Command { directory: "/nowhere".into(), ..command(&["true"]) }, "/nowhere"),
        ] {
            let Err(Error::Start(text)) = sandbox.spawn(refused).await else { panic!("it started: {reason}") };
            assert!(text.contains(reason), "{text}");
        }
        // Longer than any buffer, in both directions.
        let long = vec![b'x'; 3 << 20];
        let output = sandbox.run(command(&["cat"]), &long, ANSWER_TIMEOUT, 4 << 20).await.expect("a command");
        assert_eq!(output.stdout.len(), long.len(), "all that was printed comes before the end");
        assert_eq!(output.status, Some(ExitStatus::Code(0)));
        let output = sandbox.run(shell("exec <&-; sleep 0.1"), &long, ANSWER_TIMEOUT, 10).await.expect("a command");
        assert_eq!(output.status, Some(ExitStatus::Code(0)), "what nobody reads holds up nobody");
        // A waiting command receives a signal by number; a command whose output is not read does not block the others.
        let mut flood = sandbox.spawn(command(&["cat", "/dev/zero"])).await.expect("a command");
        let mut waits = sandbox.spawn(shell("trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done")).await;
        let waits = waits.as_mut().expect("a second command");
        let mut ready = [0; 6];
        timeout(ANSWER_TIMEOUT, waits.stdout.read_exact(&mut ready)).await.expect("in time").expect("a word");
        assert_ne!(waits.id(), flood.id());
        waits.signal(15);
        assert_eq!(timeout(ANSWER_TIMEOUT, waits.wait()).await.expect("in time"), Some(ExitStatus::Code(4)));
        assert_eq!(run(&sandbox, &self.programs.prints).await.stdout, "hello\n", "the kernel beside them");
        flood.signal(9);
        assert_eq!(timeout(ANSWER_TIMEOUT, flood.wait()).await.expect("in time"), Some(ExitStatus::Signal(9)));
        // A command ends with its last reference, and all of them with the sandbox.
        let mut dropped = sandbox.spawn(command(&["sleep", "600"])).await.expect("a command");
        let mut stdout = std::mem::replace(&mut dropped.stdout, Box::new(tokio::io::empty()));
        drop(dropped);
        let rest = timeout(ANSWER_TIMEOUT, stdout.read_to_end(&mut Vec::new())).await.expect("in time");
        assert_eq!(rest.expect("the end of its output"), 0);
        let output = sandbox.run(command(&["sleep", "600"]), b"", Duration::from_millis(200), 10).await;
        assert_eq!(output.expect("a command").status, None, "time is bounded");
        let mut last = sandbox.spawn(command(&["sleep", "600"])).await.expect("a command");
        sandbox.close().await.expect("the sandbox ends");
        let status = timeout(ANSWER_TIMEOUT, last.wait()).await.expect("in time");
        assert!(matches!(status, None | Some(ExitStatus::Signal(9))), "{status:?}");
        if let Ok(mut late) = sandbox.spawn(command(&["true"])).await {
            assert_eq!(
                timeout(ANSWER_TIMEOUT, late.wait()).await.expect("in time"),
                None,
                "nothing begins in it any more"
            );
        }
    }

    async fn terminals(&self) {
        let sandbox = self.make(SandboxSpec { profile: Profile::Services, ..SandboxSpec::new(limits()) }).await;
        let arguments = ["sh", "-c", "test -t 0 && test -t 2 && echo $WORD; read line; echo read $line"];
        let command = Command {
            arguments: arguments.map(str::to_owned).into(),
            environment: vec![("WORD".into(), "terminal".into())],
            directory: ".".into(),
            pty: Some(PtySize { columns: 80, rows: 24 }),
        };
        let process = sandbox.spawn(command.clone()).await.expect("a command");
        process.resize(PtySize { columns: 0, rows: u16::MAX }).expect("any size is taken");
        let output = process.output(b"typed\n", ANSWER_TIMEOUT, 1000).await.expect("it ends");
        // The terminal echoes the input, at any time.
        let shown = String::from_utf8_lossy(&output.stdout).replace("typed\r\n", "");
        assert_eq!(shown, "terminal\r\nread ".to_owned(), "{output:?}");
        assert_eq!(output.stderr, b"", "a terminal has one output");
        let data = self.create(limits()).await;
        assert!(matches!(data.spawn(command).await, Err(Error::NotSupported(_))), "a sandbox for data has none");
    }

    async fn ids(&self) {
        let id = SandboxId::unique();
        let spec = || SandboxSpec { owner: Some("somebody".into()), ..SandboxSpec::new(limits()) };
        let sandbox = self.backend.create(id.clone(), spec()).await.expect("a sandbox");
        assert_eq!(sandbox.id(), &id, "the caller chooses the id");
        let again = self.backend.create(id.clone(), spec()).await;
        assert!(matches!(again, Err(Error::Exists(of)) if of == id), "an id is taken once");
        let other = self.create(limits()).await;
        let of_owner = self.backend.list(Some("somebody")).await.expect("the list");
        assert_eq!(of_owner, std::slice::from_ref(&id), "the sandboxes of an owner");
        assert!(self.backend.list(Some("nobody")).await.expect("the list").is_empty());
        let mut execution = begin(&sandbox, &self.programs.never_ends).await;
        self.backend.destroy(&id).await.expect("a sandbox is destroyed");
        let result = listen(&mut execution).await;
        assert!(matches!(result.finished.outcome, Outcome::KernelDied(_)), "{:?}", result.finished.outcome);
        self.backend.destroy(&id).await.expect("and once more");
        self.backend.destroy(&SandboxId::unique()).await.expect("one that never was is fine");
        assert!(sandbox.execute(&self.programs.prints).await.is_err(), "nothing runs in it any more");
        assert!(self.backend.list(Some("somebody")).await.expect("the list").is_empty());
        drop(sandbox);
        let again = timeout(ANSWER_TIMEOUT, self.backend.create(id.clone(), spec())).await.expect("in time");
        assert!(again.expect("the id is free again").is_alive());
        assert_eq!(run(&other, &self.programs.prints).await.stdout, "hello\n", "the others go on");
    }

    /// A sandbox whose request is dropped, or that is destroyed while it is made, never exists.
    async fn cancelled_creates(&self) {
        for patience in [0, 200, 1000, 3000, 6000, 12_000].map(Duration::from_micros) {
            let id = SandboxId::unique();
            let made = self.backend.create(id.clone(), SandboxSpec::new(limits()));
            drop(timeout(patience, made).await);
            let made = self.backend.create(id.clone(), SandboxSpec::new(limits()));
            let (made, destroyed) = tokio::join!(made, async {
                tokio::time::sleep(patience).await;
                self.backend.destroy(&id).await
            });
            destroyed.expect("a sandbox is destroyed while it is made");
            if let Ok(sandbox) = made {
                let run = sandbox.execute(&self.programs.prints).await;
                let ended = match run {
                    Ok(mut execution) => listen(&mut execution).await.finished.outcome != Outcome::Completed,
                    Err(_) => true,
                };
                assert!(ended, "a sandbox that was destroyed runs programs");
            }
        }
    }

    async fn specs(&self) {
        let spec = SandboxSpec { language: Some("no such language".into()), ..SandboxSpec::new(limits()) };
        let made = self.backend.create(SandboxId::unique(), spec).await;
        assert!(matches!(made, Err(Error::NotSupported(_))), "a language that it has not is refused");
        let languages = &self.backend.capabilities().languages;
        let known = languages.first().expect("a backend has a language").language.clone();
        let spec = SandboxSpec { language: Some(known), ..SandboxSpec::new(limits()) };
        assert_eq!(run(&self.make(spec).await, &self.programs.prints).await.stdout, "hello\n");
        let spec = SandboxSpec::new(limits()).with_workspace(Arc::new(ForeignWorkspace));
        let made = self.backend.create(SandboxId::unique(), spec).await;
        assert!(matches!(made, Err(Error::NotSupported(_))), "the workspace of another backend is refused");
    }

    async fn not_supported(&self, processes: bool, pause: bool, fork: bool, connect: bool, attach: bool) {
        let sandbox = self.create(limits()).await;
        let denied = |error: Option<Error>| matches!(error, Some(Error::NotSupported(_)));
        if !processes {
            let command =
                Command { arguments: vec!["true".into()], environment: Vec::new(), directory: ".".into(), pty: None };
            assert!(denied(sandbox.spawn(command).await.err()), "commands");
        }
        if !pause {
            assert!(denied(sandbox.pause().await.err()) && denied(sandbox.resume().await.err()), "pausing");
        }
        if !fork {
            assert!(denied(sandbox.fork(SandboxId::unique()).await.err()), "forking");
        }
        if !connect {
            assert!(denied(sandbox.connect(80).await.err()), "connections");
        }
        if !attach {
            assert!(denied(self.backend.attach(sandbox.id()).await.err()), "attaching");
        }
    }
}

async fn run(sandbox: &Arc<dyn Sandbox>, code: &str) -> ExecutionRecord {
    let mut execution = sandbox.execute(code).await.expect("the execution starts");
    listen(&mut execution).await
}

async fn run_in(kernel: &Arc<dyn Kernel>, cell: Cell<'_>) -> ExecutionRecord {
    listen(&mut kernel.execute(cell).await.expect("the execution starts")).await
}

/// Waits for calls of the tool `tool`, and returns their `n`.
async fn called(execution: &mut Execution) -> Vec<u64> {
    let Some(ExecutionEvent::Calls(calls)) = timeout(ANSWER_TIMEOUT, execution.next()).await.expect("calls in time")
    else {
        panic!("no calls")
    };
    let argument = |call: &ClientCall| {
        assert_eq!(call.name, "tool");
        let arguments: serde_json::Value = serde_json::from_str(&call.arguments).expect("JSON");
        arguments.get("n").and_then(serde_json::Value::as_u64).expect("a number")
    };
    calls.iter().map(argument).collect()
}

async fn ended(mut execution: Execution) {
    while execution.next().await.is_some() {}
}

/// Starts a program that says when it has begun.
async fn begin(sandbox: &Arc<dyn Sandbox>, code: &str) -> Execution {
    begin_in(&sandbox.first_kernel(), Cell::new(code)).await
}

async fn begin_in(kernel: &Arc<dyn Kernel>, cell: Cell<'_>) -> Execution {
    let mut execution = kernel.execute(cell).await.expect("the execution starts");
    let mut printed = String::new();
    while printed != "begun\n" {
        match timeout(ANSWER_TIMEOUT, execution.next()).await.expect("a word in time") {
            Some(ExecutionEvent::Stdout(text)) => printed.push_str(&text),
            other => panic!("{other:?} from a program that does not end"),
        }
    }
    execution
}

async fn listen(execution: &mut Execution) -> ExecutionRecord {
    let (mut stdout, mut stderr, mut events) = (String::new(), String::new(), Vec::new());
    loop {
        match timeout(ANSWER_TIMEOUT * 2, execution.next()).await.expect("an event in time") {
            Some(ExecutionEvent::Stdout(text)) => stdout.push_str(&text),
            Some(ExecutionEvent::Stderr(text)) => stderr.push_str(&text),
            Some(ExecutionEvent::Finished(finished)) => {
                assert!(execution.next().await.is_none(), "the end comes once and last");
                return ExecutionRecord { stdout, stderr, events, finished };
            }
            Some(event) => events.push(event),
            None => panic!("the events ended without an outcome"),
        }
    }
}

/// A workspace that no backend made.
#[derive(Debug)]
struct ForeignWorkspace;

impl Workspace for ForeignWorkspace {
    fn listing(&self) -> Result<WorkspaceListing, Error> {
        Ok(WorkspaceListing::default())
    }

    fn open(&self, _path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
        Err(Error::NotSupported("files"))
    }

    fn write(&self, _name: &str, _source: &mut dyn Read, _limit: u64) -> Result<FileEntry, Error> {
        Err(Error::NotSupported("files"))
    }

    fn remove(&self, _name: &str) -> Result<(), Error> {
        Err(Error::NotSupported("files"))
    }

    fn usage(&self) -> Result<WorkspaceUsage, Error> {
        Err(Error::NotSupported("files"))
    }

    fn walk(&self, _most: u64, _visit: &mut dyn FnMut(WorkspaceEntry)) -> Result<(), Error> {
        Ok(())
    }
}
