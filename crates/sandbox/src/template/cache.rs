//! The template found earlier for an interpreter, so that the interpreter need not run to find it again.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::host_python::HostPython;
use super::{BUILDER, LOCK, PREFIX, hex};

/// The file in the directory of templates: a key and a name.
const FILE: &str = ".remembered";
/// The first bytes of an executable.
const MAGIC: [u8; 4] = *b"\x7fELF";

/// The facts that a template's name depends on, as far as they can be seen without running the interpreter.
#[derive(Debug)]
pub(super) struct TemplateKey(String);

impl TemplateKey {
    /// The key of the current interpreter. A script has none, since it may choose another interpreter each time.
    pub(super) fn now() -> Option<Self> {
        Self::of(&HostPython::locate()?)
    }

    fn of(interpreter: &Path) -> Option<Self> {
        let mut file = fs::File::open(interpreter).ok()?;
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic).ok()?;
        if magic != MAGIC {
            return None;
        }
        let metadata = file.metadata().ok()?;
        let mut hash = Sha256::new();
        for part in [LOCK, BUILDER, std::env::consts::ARCH, interpreter.to_str()?] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
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
            fs::write(&fresh, format!("{} {name}", self.0))?;
            fs::rename(&fresh, directory.join(FILE))
        };
        if written().is_err() {
            // The interpreter runs again the next time.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_holds_as_long_as_the_interpreter_is_the_same_file() {
        let home = tempfile::tempdir().unwrap();
        let interpreter = home.path().join("python3");
        fs::write(&interpreter, b"#!/bin/sh\n").unwrap();
        assert!(TemplateKey::of(&interpreter).is_none(), "a script may choose another one each time");
        fs::write(&interpreter, b"\x7fELF one").unwrap();
        let key = TemplateKey::of(&interpreter).unwrap();
        assert_eq!(key.name(home.path()), None);
        key.remember(home.path(), "default-1");
        assert_eq!(TemplateKey::of(&interpreter).unwrap().name(home.path()), Some("default-1".to_owned()));
        fs::write(&interpreter, b"\x7fELF other").unwrap();
        assert_eq!(TemplateKey::of(&interpreter).unwrap().name(home.path()), None);
        key.remember(home.path(), "../elsewhere");
        assert_eq!(key.name(home.path()), None);
    }
}
