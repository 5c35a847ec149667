//! The template found earlier for an interpreter, so that the interpreter need not run to find it again.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::host_python::HostPython;
use super::{BUILDER, LOCK, PREFIX, hex};

/// The file in the directory of templates: a key and a name.
const FILE: &str = ".remembered";
/// The first bytes of an executable.
const MAGIC: [u8; 4] = *b"\x7fELF";

/// Seconds for which a version manager is taken to choose the same interpreter in the same place: pyenv's script takes half a second to
/// choose.
const CHOICE_SECONDS: u64 = 3600;
/// Parts of the names of variables by which version managers are told which interpreter to choose.
const CHOOSING: [&str; 7] = ["PYTHON", "PYENV", "MISE", "RYE", "ASDF", "PROTO", "UV_"];

/// The facts that a template's name depends on, as far as they can be seen without running the interpreter.
#[derive(Debug)]
pub(super) struct TemplateKey(String);

impl TemplateKey {
    /// The key of the current interpreter.
    pub(super) fn now() -> Option<Self> {
        Self::of(&HostPython::locate()?, SystemTime::now())
    }

    fn of(interpreter: &Path, now: SystemTime) -> Option<Self> {
        let mut file = fs::File::open(interpreter).ok()?;
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic).ok()?;
        let metadata = file.metadata().ok()?;
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        };
        for part in [LOCK, BUILDER, std::env::consts::ARCH, interpreter.to_str()?] {
            add(part.as_bytes());
        }
        // The links of some version managers lead to a program of theirs.
        let is_python = |name: &str| name.starts_with("python") || name.starts_with("pypy");
        if magic != MAGIC || !interpreter.file_name()?.to_str().is_some_and(is_python) {
            let seconds = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
            add(&(seconds / CHOICE_SECONDS).to_le_bytes());
            add(std::env::current_dir().ok()?.as_os_str().as_encoded_bytes());
            for (name, value) in choosing_variables() {
                add(name.as_encoded_bytes());
                add(value.as_encoded_bytes());
            }
        }
        for figure in [metadata.dev(), metadata.ino(), metadata.size()] {
            hash.update(figure.to_le_bytes());
        }
        for time in [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()] {
            hash.update(time.to_le_bytes());
        }
        Some(Self(hex(hash)))
    }

    /// The name that was found with this key the last time.
    pub(super) fn name(&self, directory: &Path) -> Option<String> {
        let text = fs::read_to_string(directory.join(FILE)).ok()?;
        let (key, name) = text.split_once(' ')?;
        let is_name = name.starts_with(PREFIX) && !name.contains('/');
        (key == self.0 && is_name).then(|| name.to_owned())
    }

    /// Notes the name for the next time.
    pub(super) fn remember(&self, directory: &Path, name: &str) {
        // Replaced atomically, for concurrent readers.
        let fresh = directory.join(format!("{FILE}-{}", std::process::id()));
        let written = || {
            if !directory.is_dir() {
                fs::create_dir(directory)?;
            }
            fs::write(&fresh, format!("{} {name}", self.0))?;
            fs::rename(&fresh, directory.join(FILE))
        };
        if written().is_err() {
            // The interpreter runs again the next time.
        }
    }
}

/// The variables that may tell a script which interpreter to choose, by name.
fn choosing_variables() -> Vec<(OsString, OsString)> {
    let chooses = |name: &OsString| name.to_str().is_some_and(|name| CHOOSING.iter().any(|part| name.contains(part)));
    let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| chooses(name)).collect();
    variables.sort();
    variables
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_name_holds_as_long_as_the_interpreter_is_the_same_file() {
        let home = tempfile::tempdir().unwrap();
        let interpreter = home.path().join("python3");
        fs::write(&interpreter, b"\x7fELF one").unwrap();
        let key_at =
            |seconds| TemplateKey::of(&interpreter, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        let key = key_at(0);
        assert_eq!(key.name(home.path()), None);
        key.remember(home.path(), "default-1");
        assert_eq!(key_at(1_000_000).name(home.path()), Some("default-1".to_owned()));
        fs::write(&interpreter, b"\x7fELF other").unwrap();
        assert_eq!(key_at(0).name(home.path()), None);
        fs::write(&interpreter, b"#!/bin/sh\n").unwrap();
        let key = key_at(0);
        key.remember(home.path(), "default-2");
        assert_eq!(key_at(CHOICE_SECONDS - 1).name(home.path()), Some("default-2".to_owned()));
        assert_eq!(key_at(CHOICE_SECONDS).name(home.path()), None, "it may choose another one by then");
        let manager = home.path().join("mise");
        fs::write(&manager, b"\x7fELF one").unwrap();
        let chosen_at =
            |seconds| TemplateKey::of(&manager, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap().0;
        assert_ne!(chosen_at(0), chosen_at(CHOICE_SECONDS), "it is no interpreter itself");
        key.remember(home.path(), "../elsewhere");
        assert_eq!(key.name(home.path()), None);
    }
}
