//! The host's Python, from which templates are made.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::Error;

/// The oldest version whose packages the list holds.
const OLDEST: (u32, u32) = (3, 10);
/// Names another interpreter than the first `python3` on the path.
const VARIABLE: &str = "ALUDEL_PYTHON";

/// Asks an interpreter about itself. A virtual environment answers for the one it was made from.
const QUESTION: &str = "
import importlib.util, json, os, sys, sysconfig
print(json.dumps({
    'program': os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable),
    'version': '.'.join(map(str, sys.version_info[:3])),
    'major': sys.version_info[0], 'minor': sys.version_info[1],
    'stdlib': sysconfig.get_path('stdlib', vars={'installed_base': sys.base_prefix}),
    'has_venv': all(importlib.util.find_spec(name) for name in ('venv', 'ensurepip')),
    'machine': os.uname().machine,
}))
";

/// What there is to know about it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct HostPython {
    /// The real executable.
    pub(super) program: PathBuf,
    pub(super) version: String,
    major: u32,
    minor: u32,
    /// The directory of the standard library.
    pub(super) stdlib: PathBuf,
    has_venv: bool,
    machine: String,
}

impl HostPython {
    /// Finds the interpreter that templates are made from.
    pub(super) fn find() -> Result<Self, Error> {
        let chosen = std::env::var_os(VARIABLE);
        let program = chosen.as_deref().unwrap_or("python3".as_ref());
        Self::ask(Path::new(program)).map_err(|error| {
            let hint = match chosen {
                Some(_) => format!("{VARIABLE} names it"),
                None => "install it: apt-get install python3 python3-venv".to_owned(),
            };
            Error::Template(format!("{}: {error} ({hint})", program.display()))
        })
    }

    fn ask(program: &Path) -> Result<Self, String> {
        let output = clean(&mut Command::new(program))
            .args(["-I", "-c", QUESTION])
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            return Err(format!("does not run: {}", words.trim().lines().last().unwrap_or("no message")));
        }
        let python: Self =
            serde_json::from_slice(&output.stdout).map_err(|error| format!("is no usable Python: {error}"))?;
        if (python.major, python.minor) < OLDEST {
            return Err(format!("is version {}; {}.{} or newer is needed", python.version, OLDEST.0, OLDEST.1));
        }
        Ok(python)
    }

    /// Whether it can make virtual environments; Debian keeps that in a package of its own.
    pub(super) fn require_venv(&self) -> Result<(), Error> {
        if self.has_venv {
            return Ok(());
        }
        let version = format!("{}.{}", self.major, self.minor);
        Err(Error::Template(format!(
            "Python {version} ({}) cannot make virtual environments; install what is missing: apt-get install python3-venv",
            self.program.display()
        )))
    }

    /// `python3.11`, the name of the interpreter and of its library directory.
    pub(super) fn name(&self) -> String {
        format!("python{}.{}", self.major, self.minor)
    }

    /// Changes when the interpreter does.
    pub(super) fn identity(&self) -> String {
        let (size, time) =
            std::fs::metadata(&self.program).map(|metadata| (metadata.size(), metadata.mtime())).unwrap_or_default();
        format!("{} {} {} {size} {time}", self.program.display(), self.version, self.machine)
    }

    /// A command that runs it without what a user's environment would add.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        clean(&mut command);
        command
    }
}

/// Removes what would change how Python starts; pip's own variables stay: they say where the user's index is.
pub(super) fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PYTHON")
            || name == "VIRTUAL_ENV"
            || name == "PIP_USER"
            || name == "PIP_TARGET"
        {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A stand-in that answers the question as an interpreter of the given facts would.
    fn fake(version: (u32, u32), has_venv: bool) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("python3");
        let (major, minor) = version;
        let answer = format!(
            r#"{{"program":"/x","version":"{major}.{minor}.0","major":{major},"minor":{minor},"stdlib":"/l","has_venv":{has_venv},"machine":"m"}}"#
        );
        std::fs::write(&path, format!("#!/bin/sh\necho '{answer}'\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        (directory, path)
    }

    #[test]
    fn an_old_interpreter_is_refused_by_version() {
        let (_directory, path) = fake((3, 9), true);
        assert_eq!(HostPython::ask(&path).unwrap_err(), "is version 3.9.0; 3.10 or newer is needed");
    }

    #[test]
    fn the_missing_package_is_named() {
        let (_directory, path) = fake((3, 11), false);
        let error = HostPython::ask(&path).unwrap().require_venv().unwrap_err().to_string();
        assert!(error.contains("apt-get install python3-venv"), "{error}");
    }

    #[test]
    fn no_interpreter_is_an_error_with_words() {
        assert!(HostPython::ask(Path::new("/no/such/python")).unwrap_err().contains("No such file"));
    }
}
