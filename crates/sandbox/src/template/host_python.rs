//! The host's Python, from which templates are made.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::Error;

/// The oldest version that the list of packages supports.
const OLDEST: (u32, u32) = (3, 10);
/// Names another interpreter than the first `python3` on the path.
const VARIABLE: &str = "ALUDEL_PYTHON";
/// Variables that change what pip installs, and to where. Those that say from where stay: that is the user's decision.
const PIP_VARIABLES: &[&str] = &[
    "PIP_CONSTRAINT",
    "PIP_DRY_RUN",
    "PIP_PREFIX",
    "PIP_PYTHON",
    "PIP_REQUIREMENT",
    "PIP_ROOT",
    "PIP_TARGET",
    "PIP_USER",
];

/// Characters of the output of a program that is not Python, in an error.
const SHOWN_CHARACTERS: usize = 200;

/// The program that makes an interpreter describe itself. In a virtual environment it describes the original.
const QUESTION: &str = "
import importlib.util, json, os, sys, sysconfig
print(json.dumps({
    'program': os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable),
    'version': '.'.join(map(str, sys.version_info[:3])),
    'major': sys.version_info[0], 'minor': sys.version_info[1],
    'platlibdir': sys.platlibdir,
    'stdlib': sysconfig.get_path('stdlib', vars={'installed_base': sys.base_prefix}),
    'has_venv': all(importlib.util.find_spec(name) for name in ('venv', 'ensurepip')),
    'soabi': sysconfig.get_config_var('SOABI') or '',
}))
";

/// An interpreter of the host, as it describes itself.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct HostPython {
    /// The real executable.
    pub(super) program: PathBuf,
    pub(super) version: String,
    major: u32,
    minor: u32,
    /// The directory of the standard library.
    pub(super) stdlib: PathBuf,
    /// The directory below the prefix that it expects its library in: `lib`, or `lib64` on some distributions.
    pub(super) platlibdir: String,
    has_venv: bool,
    /// The interface that compiled packages are for, such as `cpython-311-x86_64-linux-gnu`.
    soabi: String,
}

/// Reason for which an interpreter is of no use.
#[derive(Debug, thiserror::Error)]
enum UnusablePython {
    #[error("there is no such program")]
    Missing,
    #[error("it cannot be run: {0}")]
    NotRun(io::Error),
    #[error("it does not work as a Python: {0}")]
    Broken(String),
    #[error("it is Python {0}; {major}.{minor} or newer is needed", major = OLDEST.0, minor = OLDEST.1)]
    TooOld(String),
}

impl HostPython {
    /// Finds the interpreter that templates are made from.
    pub(super) fn find() -> Result<Self, Error> {
        Self::find_as(std::env::var_os(VARIABLE).filter(|chosen| !chosen.is_empty()).as_deref())
    }

    /// Finds the interpreter with this path or version, such as `3.13`.
    pub(super) fn named(name: &OsStr) -> Result<Self, Error> {
        let is_version = |name: &str| name.starts_with("3.") && name[2..].bytes().all(|byte| byte.is_ascii_digit());
        let program = match name.to_str() {
            Some(version) if is_version(version) => format!("python{version}").into(),
            _ => name.to_owned(),
        };
        Self::ask(Path::new(&program)).map_err(|reason| {
            Error::Template(format!("{}: {reason} (--python names it)", Path::new(&program).display()))
        })
    }

    /// Finds the interpreter's file, without its links.
    pub(super) fn locate() -> Option<PathBuf> {
        let program = std::env::var_os(VARIABLE).filter(|chosen| !chosen.is_empty());
        let program = PathBuf::from(program.unwrap_or("python3".into()));
        if program.components().count() > 1 {
            return program.canonicalize().ok();
        }
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).find_map(|directory| directory.join(&program).canonicalize().ok())
    }

    fn find_as(chosen: Option<&OsStr>) -> Result<Self, Error> {
        let program = chosen.unwrap_or("python3".as_ref());
        Self::ask(Path::new(program)).map_err(|reason| {
            let what_to_do = match (&reason, chosen) {
                (_, Some(_)) => format!("{VARIABLE} names it"),
                (UnusablePython::Missing, None) => "install it: apt-get install python3 python3-venv".to_owned(),
                (_, None) => format!("put another one first on PATH, or name it in {VARIABLE}"),
            };
            Error::Template(format!("{}: {reason} ({what_to_do})", program.display()))
        })
    }

    fn ask(program: &Path) -> Result<Self, UnusablePython> {
        let output = clean(&mut Command::new(program)).args(["-I", "-c", QUESTION]).output().map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                UnusablePython::Missing
            } else {
                UnusablePython::NotRun(error)
            }
        })?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            let last = words.trim().lines().last().map(|line| line.chars().take(SHOWN_CHARACTERS).collect());
            return Err(UnusablePython::Broken(last.unwrap_or_else(|| output.status.to_string())));
        }
        let python: Self =
            serde_json::from_slice(&output.stdout).map_err(|error| UnusablePython::Broken(error.to_string()))?;
        if (python.major, python.minor) < OLDEST {
            return Err(UnusablePython::TooOld(python.version));
        }
        Ok(python)
    }

    /// Fails if it cannot make virtual environments; on Debian that is a separate package.
    pub(super) fn require_venv(&self) -> Result<(), Error> {
        if self.has_venv {
            return Ok(());
        }
        Err(Error::Template(format!(
            "Python {} ({}) cannot make virtual environments; install the module: apt-get install python3-venv",
            self.version,
            self.program.display()
        )))
    }

    /// `python3.11`, the name of the interpreter and of its library directory.
    pub(super) fn name(&self) -> String {
        format!("python{}.{}", self.major, self.minor)
    }

    /// A key that changes when packages have to be downloaded again: with the version and the interface, not with the path of the
    /// interpreter.
    pub(super) fn identity(&self) -> String {
        format!("{} {}", self.version, self.soabi)
    }

    /// A command that runs it without the user's environment.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        clean(&mut command);
        command
    }
}

/// Removes variables that change how Python starts and what pip installs.
pub(super) fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let for_python = name.as_encoded_bytes().starts_with(b"PYTHON") || name == "VIRTUAL_ENV";
        if for_python || PIP_VARIABLES.iter().any(|variable| name == *variable) {
            command.env_remove(&name);
        }
    }
    // Overrides the same setting in a configuration file.
    command.env("PIP_USER", "0").stdin(Stdio::null())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A stand-in that does what `script` says.
    fn fake(script: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("python3");
        // Written by another process: a child of a parallel test could hold a copy of this descriptor until its exec, and Linux does not
        // run a file that is open for writing.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\"";
        assert!(Command::new("sh").args(["-c", write]).arg(&path).arg(script).status().unwrap().success());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        (directory, path)
    }

    /// The answer of an interpreter with these facts.
    fn answer(major: u32, minor: u32, has_venv: bool) -> String {
        format!(
            r#"echo '{{"program":"/x","version":"{major}.{minor}.0","major":{major},"minor":{minor},"platlibdir":"lib","stdlib":"/l","has_venv":{has_venv},"soabi":"m"}}'"#
        )
    }

    /// The error about an interpreter that `ALUDEL_PYTHON` names, without its path.
    fn words(script: &str) -> String {
        let (_directory, path) = fake(script);
        let error = HostPython::find_as(Some(path.as_os_str())).and_then(|python| python.require_venv()).unwrap_err();
        error.to_string().replace(&path.display().to_string(), "PATH")
    }

    #[test]
    fn what_is_wrong_with_an_interpreter_is_said_in_words() {
        let old = "PATH: it is Python 3.9.0; 3.10 or newer is needed (ALUDEL_PYTHON names it)";
        assert_eq!(words(&answer(3, 9, true)), old);
        assert_eq!(
            words(&answer(3, 11, false)),
            "Python 3.11.0 (/x) cannot make virtual environments; install the module: apt-get install python3-venv"
        );
        let broken = "PATH: it does not work as a Python: no encodings (ALUDEL_PYTHON names it)";
        assert_eq!(words("echo 'init failed\nno encodings' >&2; exit 1"), broken);
        assert!(words("kill -SEGV $$").contains("it does not work as a Python: signal: 11"));
        assert!(words("printf '%999s' x >&2; exit 1").len() < 300);
        assert!(words("echo hello").contains("it does not work as a Python: expected value"));
    }

    #[test]
    fn no_interpreter_says_what_to_install() {
        let error = HostPython::find_as(Some("/no/such/python".as_ref())).unwrap_err().to_string();
        assert_eq!(error, "/no/such/python: there is no such program (ALUDEL_PYTHON names it)");
        let (_directory, path) = fake("true");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = HostPython::find_as(Some(path.as_os_str())).unwrap_err().to_string();
        assert!(error.contains("it cannot be run: Permission denied"), "{error}");
    }
}
