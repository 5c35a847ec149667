//! The compared ways to run a program.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use aludel_ignore::Ignore;
use aludel_sandbox::{Backend, Limits, Sandbox};
use anyhow::{Context as _, bail, ensure};

use super::{FORK, PROGRAM, create, execute, wait_for_pool};

/// The program with the imports of a ready sandbox of ours.
const WITH_IMPORTS: &str = "import pandas, matplotlib.pyplot; print(1+1)";
/// The interpreter in a template.
const PYTHON: &str = "/usr/local/bin/python3";
/// The directory for Matplotlib's list of fonts in other sandboxes.
const CACHE: &str = "/tmp/matplotlib";
/// The name of objects that are made elsewhere for a comparison.
const NAME: &str = "aludel-bench";
/// Runs the floor once. Prints milliseconds.
const RUN_FORK: &str = "
start = time.perf_counter()
for _ in fork(): print((time.perf_counter() - start) * 1000)
";
/// Runs on the host: for each line, starts a kernel and runs the program in it. Prints milliseconds.
const IPYKERNEL: &str = "
import sys, time
from jupyter_client.manager import start_new_kernel
import ipykernel
print('ready', flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    manager, client = start_new_kernel(kernel_name='python3')
    said = []
    client.execute_interactive('print(1+1)', timeout=60, output_hook=lambda message: said.append(message['content'].get('text')))
    took = (time.perf_counter() - start) * 1000
    assert '2\\n' in said, said
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    print(took, flush=True)
";

/// A way to run the program.
pub(super) struct Contender {
    pub(super) name: &'static str,
    /// True if pandas and Matplotlib are imported before it.
    pub(super) imports: bool,
    way: ContenderKind,
}

/// The way to ask for it.
enum ContenderKind {
    /// A sandbox of ours, from a pool of so many.
    Sandbox { backend: Arc<dyn Backend>, pool: usize, limits: Limits },
    /// A program in a sandbox of ours that measures itself.
    Inside(Arc<dyn Sandbox>),
    /// A command with the output of the program.
    Command(Vec<String>),
    /// A command to a function that is served until this is dropped.
    Served { words: Vec<String>, _function: ZygoFunction },
    /// A process that measures when it is sent a line.
    Driver(LineProcess),
}

/// A function that zygo serves.
struct ZygoFunction {
    program: String,
}

impl Drop for ZygoFunction {
    fn drop(&mut self) {
        Command::new(&self.program).args(["stop", NAME]).output().ignore("it may have ended by itself");
    }
}

/// A process on the host that is sent lines.
struct LineProcess {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for LineProcess {
    fn drop(&mut self) {
        self.process.kill().ignore("it may have ended");
        self.process.wait().ignore("its status does not matter");
    }
}

/// A contender, or the reason why there is none.
pub(super) type ContenderOrReason = Result<Contender, (&'static str, String)>;

impl Contender {
    pub(super) fn sandbox(name: &'static str, backend: &Arc<dyn Backend>, pool: usize, limits: &Limits) -> Self {
        let way = ContenderKind::Sandbox { backend: Arc::clone(backend), pool, limits: limits.clone() };
        Self { name, imports: true, way }
    }

    pub(super) async fn fork(backend: &Arc<dyn Backend>, limits: &Limits) -> anyhow::Result<Self> {
        let sandbox = create(&**backend, limits).await?;
        execute(&*sandbox, FORK).await?;
        Ok(Self { name: "bare fork that runs it", imports: true, way: ContenderKind::Inside(sandbox) })
    }

    fn command(name: &'static str, imports: bool, words: Vec<String>) -> Self {
        Self { name, imports, way: ContenderKind::Command(words) }
    }

    /// Runs the program once and returns the milliseconds up to its result.
    pub(super) async fn measure(&mut self) -> anyhow::Result<f64> {
        match &mut self.way {
            ContenderKind::Sandbox { backend, pool, limits } => {
                wait_for_pool(&**backend, *pool).await?;
                let start = Instant::now();
                let sandbox = create(&**backend, limits).await?;
                let printed = execute(&*sandbox, PROGRAM).await?;
                let took = milliseconds(start);
                ensure!(printed.trim() == "2", "{PROGRAM} printed {printed:?}");
                sandbox.close().await?;
                // The refill of the pool must not slow down the others.
                wait_for_pool(&**backend, *pool).await?;
                Ok(took)
            }
            ContenderKind::Inside(sandbox) => Ok(execute(&**sandbox, RUN_FORK).await?.trim().parse()?),
            ContenderKind::Command(words) | ContenderKind::Served { words, .. } => {
                let words = words.clone();
                tokio::task::spawn_blocking(move || time(&words)).await?
            }
            ContenderKind::Driver(driver) => tokio::task::block_in_place(|| {
                driver.stdin.write_all(b"\n")?;
                driver.line()?.trim().parse().context("its process ended")
            }),
        }
    }
}

impl LineProcess {
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line)
    }
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1000.0
}

/// Runs a command that has to print 2.
fn time(words: &[String]) -> anyhow::Result<f64> {
    let (program, arguments) = words.split_first().context("no command")?;
    let start = Instant::now();
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    let took = milliseconds(start);
    if output.status.success() && String::from_utf8_lossy(&output.stdout).trim() == "2" {
        return Ok(took);
    }
    bail!("{} ended with {}: {}", words.join(" "), output.status, last_words(&output.stderr));
}

/// The last line of what a command complained.
fn last_words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.trim().lines().last().unwrap_or("it said nothing").chars().take(200).collect()
}

/// The other ways that are available. `root` is the template's, and `cache` a directory for files that programs would otherwise make each
/// time.
pub(super) fn others(root: &Path, cache: &Path) -> Vec<ContenderOrReason> {
    vec![python(), ipykernel(), bubblewrap(root, cache), docker(root, cache), kern(root, cache), zygo(cache)]
}

/// The first file of this name on the path.
fn on_path(program: &str) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file());
    found?.to_str().map(str::to_owned)
}

/// A command as words; each `{}` stands for the next value.
fn words(template: &[&str], values: &[&str]) -> Vec<String> {
    let mut values = values.iter();
    template
        .iter()
        .map(|word| {
            if word.contains("{}") { word.replacen("{}", values.next().unwrap_or(&""), 1) } else { (*word).to_owned() }
        })
        .collect()
}

fn python() -> ContenderOrReason {
    let name = "python3 -c";
    let python = on_path("python3").ok_or((name, "python3 is not installed".to_owned()))?;
    Ok(Contender::command(name, false, vec![python, "-c".to_owned(), PROGRAM.to_owned()]))
}

fn ipykernel() -> ContenderOrReason {
    let name = "ipykernel by jupyter_client";
    let missing = || (name, "the first python3 has no ipykernel and jupyter_client".to_owned());
    let mut command = Command::new("python3");
    command.args(["-c", IPYKERNEL]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().map_err(|_| missing())?;
    let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else { return Err(missing()) };
    let mut driver = LineProcess { process, stdin, stdout: BufReader::new(stdout) };
    match driver.line() {
        Ok(line) if line.trim() == "ready" => {
            Ok(Contender { name, imports: false, way: ContenderKind::Driver(driver) })
        }
        _ => Err(missing()),
    }
}

fn bubblewrap(root: &Path, cache: &Path) -> ContenderOrReason {
    let name = "bwrap python3";
    let program = on_path("bwrap").ok_or((name, "bwrap is not installed (apt-get install bubblewrap)".to_owned()))?;
    let (root, cache) = (root.display().to_string(), cache.display().to_string());
    let template = [
        "{}",
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "{}",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--bind",
        "{}",
        CACHE,
        "--setenv",
        "MPLCONFIGDIR",
        CACHE,
        PYTHON,
        "-s",
        "-c",
        WITH_IMPORTS,
    ];
    Ok(Contender::command(name, true, words(&template, &[&program, &root, &cache])))
}

fn docker(root: &Path, cache: &Path) -> ContenderOrReason {
    let name = "docker run python3";
    let program = on_path("docker").ok_or((name, "docker is not installed".to_owned()))?;
    let answers = Command::new(&program).args(["version", "--format", "{{.Server.Version}}"]).output();
    if !answers.is_ok_and(|output| output.status.success()) {
        return Err((name, "no engine answers `docker version`".to_owned()));
    }
    import_nothing(&program).map_err(|error| (name, format!("an image cannot be made: {error}")))?;
    let mut command = words(&["{}", "run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp"], &[&program]);
    // The template's own files, at the paths that it has for them.
    for directory in ["bin", "lib", "lib64", "usr", "etc"] {
        if let Ok(source) = root.join(directory).canonicalize() {
            command.extend(["-v".to_owned(), format!("{}:/{directory}:ro", source.display())]);
        }
    }
    command.extend(["-v".to_owned(), format!("{}:{CACHE}", cache.display())]);
    command.extend(["-e", &format!("MPLCONFIGDIR={CACHE}"), NAME, PYTHON, "-s", "-c", WITH_IMPORTS].map(str::to_owned));
    Ok(Contender::command(name, true, command))
}

/// Makes an image of no files.
fn import_nothing(docker: &str) -> anyhow::Result<()> {
    let mut import = Command::new(docker);
    import.args(["import", "-", NAME]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut import = import.spawn()?;
    if let Some(mut stdin) = import.stdin.take() {
        // The end of a tar archive.
        stdin.write_all(&[0; 1024])?;
    }
    let output = import.wait_with_output()?;
    ensure!(output.status.success(), "{}", last_words(&output.stderr));
    Ok(())
}

fn kern(root: &Path, cache: &Path) -> ContenderOrReason {
    let name = "kern box python3";
    let program = on_path("kern").ok_or((name, "kern is not installed (pip install kern-sandbox)".to_owned()))?;
    let (root, cache) = (root.display().to_string(), cache.display().to_string());
    let template = [
        "{}",
        "box",
        NAME,
        "--rootfs",
        "{}",
        "--rm",
        "-v",
        "{}:/mnt/data",
        "-e",
        "MPLCONFIGDIR=/mnt/data",
        "--",
        PYTHON,
        "-s",
        "-c",
        WITH_IMPORTS,
    ];
    Ok(Contender::command(name, true, words(&template, &[&program, &root, &cache])))
}

fn zygo(directory: &Path) -> ContenderOrReason {
    let name = "zygo exec";
    let program = on_path("zygo").ok_or((name, "zygo is not installed (cargo install zygo-cli)".to_owned()))?;
    let handler = directory.join("handler.py");
    let served = || {
        std::fs::write(&handler, "def handler(event):\n    return 1 + 1\n")?;
        let output = Command::new(&program).arg("serve").arg(&handler).args(["--name", NAME]).output()?;
        ensure!(output.status.success(), "{}", last_words(&output.stderr));
        anyhow::Ok(())
    };
    let function = ZygoFunction { program: program.clone() };
    served().map_err(|error| (name, format!("`zygo serve` does not work here: {error}")))?;
    let words = words(&["{}", "exec", NAME, "{}"], &[&program, "{}"]);
    Ok(Contender { name, imports: false, way: ContenderKind::Served { words, _function: function } })
}
