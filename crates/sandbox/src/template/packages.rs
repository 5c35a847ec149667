//! The packages of a template: installed by pip, from a list with hashes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::host_python::{self, HostPython};
use super::{Package, Progress, at};
use crate::Error;

/// Where the packages' environment is, inside.
const ENVIRONMENT: &str = "usr/local";
/// How much of pip's output an error shows, lines.
const SHOWN_LINES: usize = 15;

/// Large packages whose own test suites nobody imports; together a fifth of the template.
const WITHOUT_TESTS: &[&str] = &[
    "matplotlib",
    "networkx",
    "numexpr",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "shapely",
    "skimage",
    "sklearn",
    "statsmodels",
    "sympy",
];

/// Makes the environment and installs everything of `lock`.
pub(super) fn install(
    python: &HostPython,
    staging: &Path,
    lock: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), Error> {
    let environment = staging.join(ENVIRONMENT);
    progress(Progress::Phase { name: "preparing", total: 0 });
    run(
        python.command().args(["-I", "-m", "venv", "--clear"]).arg(&environment),
        "make a virtual environment",
        &mut |_| (),
    )?;
    let list = staging.join("requirements.lock");
    fs::write(&list, lock).map_err(at(&list))?;
    let total = lock.lines().filter(|line| line.contains("==")).count() as u64;
    progress(Progress::Phase { name: "downloading packages", total });
    let mut tracker = Tracker { total, done: 0, installing: false, kilobytes: 0.0 };
    let mut command = pip(&environment);
    command.args(["install", "--require-hashes", "--only-binary", ":all:", "--no-compile", "--no-deps", "--no-color"]);
    command.args(["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--requirement"]).arg(&list);
    run(&mut command, "install the packages", &mut |line| tracker.line(line, progress))?;
    fs::remove_file(&list).map_err(at(&list))?;
    let packages = site_packages(python, staging);
    for name in WITHOUT_TESTS {
        remove_tests(&packages.join(name))?;
    }
    Ok(())
}

fn pip(environment: &Path) -> Command {
    let mut command = Command::new(environment.join("bin/python"));
    host_python::clean(&mut command).args(["-I", "-m", "pip"]);
    command
}

fn site_packages(python: &HostPython, staging: &Path) -> PathBuf {
    staging.join(ENVIRONMENT).join("lib").join(python.name()).join("site-packages")
}

/// Makes a count of pip's lines.
struct Tracker {
    total: u64,
    done: u64,
    installing: bool,
    /// Of the packages so far.
    kilobytes: f64,
}

impl Tracker {
    fn line(&mut self, line: &str, progress: &mut dyn FnMut(Progress)) {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("Collecting ") {
            self.done += 1;
            let what = rest.split([' ', ';']).next().unwrap_or(rest).replace("==", " ");
            progress(Progress::Step { done: self.done, what });
        } else if line.starts_with("Ignoring ") {
            // For another version of Python.
            self.done += 1;
        } else if let Some(rest) = line.strip_prefix("Downloading ").or_else(|| line.strip_prefix("Using cached ")) {
            // "Downloading pandas-3.0-cp311-….whl (11.2 MB)"
            let name = rest.split('-').next().unwrap_or(rest);
            self.kilobytes +=
                rest.rsplit_once('(').and_then(|(_, size)| kilobytes(size.trim_end_matches(')'))).unwrap_or(0.0);
            progress(Progress::Step {
                done: self.done,
                what: format!("{name} ({:.0} MB so far)", self.kilobytes / 1000.0),
            });
        } else if line.starts_with("Installing collected packages") && !self.installing {
            self.installing = true;
            progress(Progress::Phase { name: "unpacking packages", total: 0 });
        }
        debug_assert!(self.total > 0);
    }
}

/// pip's sizes: `443 kB`, `11.2 MB`.
fn kilobytes(size: &str) -> Option<f64> {
    let (number, unit) = size.split_once(' ')?;
    let factor = match unit {
        "bytes" => 0.001,
        "kB" => 1.0,
        "MB" => 1000.0,
        "GB" => 1_000_000.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// Runs a command, hands over its output line by line, and shows the end of it when it fails.
fn run(command: &mut Command, what: &str, line: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let failed = |words: String| Error::Template(format!("could not {what}: {words}"));
    // One pipe for both streams keeps their order.
    let (reader, writer) = std::io::pipe().map_err(|error| failed(error.to_string()))?;
    let second = writer.try_clone().map_err(|error| failed(error.to_string()))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(second)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    // The command keeps its ends of the pipe until it is given others.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut last = std::collections::VecDeque::new();
    for text in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let text = String::from_utf8_lossy(&text).into_owned();
        line(&text);
        if last.len() == SHOWN_LINES {
            last.pop_front();
        }
        last.push_back(text);
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(());
    }
    let words = Vec::from(last).join("\n");
    let hint = if words.contains("No space left") {
        "\nThe disk is full; a template needs about 1.5 GB."
    } else if words.contains("connection") || words.contains("Could not find a version") || words.contains("Network") {
        "\nIs the package index reachable? pip's own configuration is used (pip config list)."
    } else {
        ""
    };
    Err(failed(format!("{status}\n{words}{hint}")))
}

/// What is installed, by name.
pub(super) fn list(python: &HostPython, staging: &Path) -> Result<Vec<Package>, Error> {
    let packages = site_packages(python, staging);
    let mut found = Vec::new();
    for entry in fs::read_dir(&packages).map_err(at(&packages))?.flatten() {
        let name = entry.file_name();
        // "pandas-3.0.0.dist-info"
        let parts = name.to_str().and_then(|name| name.strip_suffix(".dist-info")?.rsplit_once('-'));
        if let Some((name, version)) = parts {
            found.push(Package { name: name.replace('_', "-"), version: version.to_owned() });
        }
    }
    found.sort_by_key(|package| package.name.to_lowercase());
    Ok(found)
}

/// Compiles everything under the paths that it will have inside, so that tracebacks do not show the host's.
pub(super) fn compile(python: &HostPython, staging: &Path) -> Result<(), Error> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut command = python.command();
    command.args([
        "-I",
        "-m",
        "compileall",
        "-q",
        "-j",
        &jobs,
        "--invalidation-mode",
        "unchecked-hash",
        "-p",
        "/",
        "-s",
    ]);
    command.arg(staging).arg(staging.join("usr/lib").join(python.name())).arg(site_packages(python, staging));
    // Some packages carry files that are no valid Python on purpose; what matters is compiled, or is compiled when it is imported.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(drop).map_err(|error| Error::Template(format!("could not compile the packages: {error}")))
}

/// Turns the environment, which knows the staging path, into one that knows only its place inside.
pub(super) fn settle(python: &HostPython, staging: &Path) -> Result<(), Error> {
    let environment = staging.join(ENVIRONMENT);
    let configuration = environment.join("pyvenv.cfg");
    let text = format!("home = /usr/bin\ninclude-system-site-packages = false\nversion = {}\n", python.version);
    fs::write(&configuration, text).map_err(at(&configuration))?;
    let programs = environment.join("bin");
    let staged = environment.to_string_lossy().into_owned();
    for entry in fs::read_dir(&programs).map_err(at(&programs))?.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("python") || name.starts_with("activate") || name.starts_with("Activate") {
            fs::remove_file(&path).map_err(at(&path))?;
        } else if let Ok(text) = fs::read_to_string(&path) {
            fs::write(&path, text.replace(&staged, "/usr/local")).map_err(at(&path))?;
        }
    }
    for (link, target) in [
        (python.name(), format!("/usr/bin/{}", python.name())),
        ("python3".into(), python.name()),
        ("python".into(), "python3".into()),
    ] {
        let path = programs.join(link);
        std::os::unix::fs::symlink(target, &path).map_err(at(&path))?;
    }
    Ok(())
}

fn remove_tests(directory: &Path) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if entry.file_name() == "tests" {
            fs::remove_dir_all(&path).map_err(at(&path))?;
        } else {
            remove_tests(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pips_lines_become_progress() {
        let mut told = Vec::new();
        let mut tracker = Tracker { total: 3, done: 0, installing: false, kilobytes: 0.0 };
        for line in [
            "Ignoring numpy: markers 'python_full_version < \"3.11\"' don't match your environment",
            "Collecting pandas==3.0.1 (from -r requirements.lock (line 9))",
            "  Downloading pandas-3.0.1-cp311-cp311-manylinux_2_24_x86_64.whl (11.2 MB)",
            "  Using cached tabulate-0.9.0-py3-none-any.whl (35 kB)",
            "Installing collected packages: pandas, tabulate",
        ] {
            tracker.line(line, &mut |progress| told.push(progress));
        }
        assert_eq!(
            told,
            [
                Progress::Step { done: 2, what: "pandas 3.0.1".into() },
                Progress::Step { done: 2, what: "pandas (11 MB so far)".into() },
                Progress::Step { done: 2, what: "tabulate (11 MB so far)".into() },
                Progress::Phase { name: "unpacking packages", total: 0 },
            ]
        );
    }

    #[test]
    fn a_failing_command_shows_its_last_words() {
        let mut command = Command::new("sh");
        let error =
            run(command.args(["-c", "echo one; echo 'No space left on device' >&2; exit 3"]), "do it", &mut |_| ())
                .unwrap_err();
        let words = error.to_string();
        assert!(
            words.contains("could not do it") && words.contains("one\nNo space") && words.contains("The disk is full"),
            "{words}"
        );
    }
}
