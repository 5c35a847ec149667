//! Fuzz targets of `fuzz/`, and the replay of their corpora. Not part of any other build.

use std::cell::RefCell;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use crate::backends::directory::Directory;
use crate::frame::{self, FromKernel};
use crate::output::BoundedOutput;
use crate::workspace::MAX_PATH;
use crate::{MimeBundle, MimeData, Workspace};

/// Bytes of output that the target keeps.
const KEPT_OUTPUT: u64 = 64;
/// Content of a file outside of the workspace, which must never be read.
const SECRET: &str = "a secret of the host";
/// Runs after which the workspace is made anew, because its content slows it down.
const RUNS: u32 = 2000;

/// Parses input of a hostile program on the kernel channel and its output: the result is an error or a frame, never a panic, and not larger
/// than the input.
pub fn channel(bytes: &[u8]) {
    if let Ok(frame) = frame::parse(bytes) {
        // Invalid parts are escaped or replaced, which is bounded too.
        let size = size(&frame);
        assert!(size <= bytes.len() * 4 + 64, "{size} of {}", bytes.len());
    }
    let whole = printed([bytes]);
    assert!(whole.len() <= 3 * KEPT_OUTPUT as usize + 64, "{whole:?}");
    assert_eq!(printed(bytes.chunks(3)), whole);
    assert_eq!(printed(bytes.chunks(1)), whole);
}

fn size(frame: &FromKernel) -> usize {
    let of = |(mime, data): &(String, MimeData)| {
        mime.len()
            + match data {
                MimeData::Text(text) => text.len(),
                MimeData::Binary(bytes) => bytes.len(),
            }
    };
    match frame {
        FromKernel::Display(MimeBundle(data), _) | FromKernel::Result(MimeBundle(data)) => data.iter().map(of).sum(),
        FromKernel::Error(error) | FromKernel::MemoryError(error) => {
            error.name.len() + error.value.len() + error.traceback.len()
        }
        FromKernel::Failed(reason) => reason.len(),
        FromKernel::Calls(calls, _) => calls.iter().map(|call| call.name.len() + call.arguments.len()).sum(),
        FromKernel::Ready
        | FromKernel::WarmedUp
        | FromKernel::Configured
        | FromKernel::Started(_)
        | FromKernel::Restored
        | FromKernel::Flushed(_)
        | FromKernel::Done => 0,
    }
}

/// The part that is kept of output that comes in these pieces.
fn printed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut output = BoundedOutput::new(KEPT_OUTPUT);
    let text: String = pieces.into_iter().map(|piece| output.push(piece)).collect();
    text + &output.finish().0
}

/// Uses a file name of a client or a program in a workspace full of traps: nothing outside is read, made or changed, and a file of this
/// name is listed with its real type.
pub fn paths(bytes: &[u8]) {
    PLACE.with_borrow_mut(|(runs, place)| {
        *runs += 1;
        if *runs > RUNS {
            *place = TestWorkspace::new();
            *runs = 0;
        }
        place.made_inside(bytes);
        if let Ok(name) = str::from_utf8(bytes) {
            place.named_outside(name);
        }
    });
}

thread_local! {
    static PLACE: RefCell<(u32, TestWorkspace)> = RefCell::new((0, TestWorkspace::new()));
}

struct TestWorkspace {
    _directory: tempfile::TempDir,
    inside: PathBuf,
    outside: PathBuf,
    workspace: Box<dyn Workspace>,
}

impl TestWorkspace {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (inside, outside) = (directory.path().join("inside"), directory.path().join("outside"));
        for path in [inside.join("sub/deep"), outside.join("sub")] {
            fs::create_dir_all(path).expect("a directory");
        }
        fs::write(outside.join("secret"), SECRET).expect("a file");
        for (link, target) in [
            ("up", ".."),
            ("out", "../outside"),
            ("secret", "../outside/secret"),
            ("abs", "/etc/passwd"),
            ("sub/a", "../../outside"),
            ("self", "self"),
        ] {
            symlink(target, inside.join(link)).expect("a link");
        }
        let root = fs::File::open(&inside).expect("the directory").into();
        let workspace = Box::new(Directory::new(Arc::new(root), None));
        Self { _directory: directory, inside, outside, workspace }
    }

    fn named_outside(&self, name: &str) {
        if let Ok(contents) = self.workspace.read(name, 1 << 16) {
            assert!(contents != SECRET.as_bytes() && !contents.starts_with(b"root:"), "{name:?}");
        }
        if let Ok(entry) = self.workspace.write(name, &mut &b"new"[..], 1 << 16) {
            assert_eq!(self.workspace.read(&entry.path, 3).expect("it was written"), b"new", "{name:?}");
        }
        let _refused = self.workspace.remove(name);
        assert_eq!(fs::read_to_string(self.outside.join("secret")).expect("the secret"), SECRET, "{name:?}");
        assert_eq!(fs::read_dir(&self.outside).expect("the outside").count(), 2, "{name:?}");
        assert_eq!(fs::read_dir(self.outside.join("sub")).expect("the outside").count(), 0, "{name:?}");
    }

    /// A program makes a file of this name in a directory of its own.
    fn made_inside(&self, name: &[u8]) {
        let own = self.inside.join("own");
        fs::create_dir_all(&own).expect("a directory");
        if !name.contains(&b'/') && fs::write(own.join(std::ffi::OsStr::from_bytes(name)), "made").is_ok() {
            let files = self.workspace.files().expect("the files");
            let path = str::from_utf8(name).ok().map(|name| format!("own/{name}"));
            let listed = files.iter().find(|file| file.path.starts_with("own/")).map(|file| &file.path);
            assert_eq!(listed, path.as_ref().filter(|path| path.len() <= MAX_PATH), "{name:?}");
            if let Some(path) = listed {
                assert_eq!(self.workspace.read(path, 4).expect("it is there"), b"made", "{name:?}");
            }
        }
        fs::remove_dir_all(own).expect("it was made");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn kept_inputs_of_channel_pass() {
        replay("channel", super::channel);
    }

    #[test]
    fn kept_inputs_of_paths_pass() {
        replay("paths", super::paths);
    }
}
