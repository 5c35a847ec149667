//! What the fuzzers in `fuzz/` reach of the inside. Not there in any other build.

use std::path::Path;

use crate::Workspace;
use crate::backends::directory::Directory;
use crate::frame::{self, FromKernel};

/// Reads a frame; how large what is kept of it is, bytes.
pub fn frame(bytes: &[u8]) -> Option<usize> {
    let size = |bundle: &crate::MimeBundle| {
        let of = |(mime, data): &(String, crate::MimeData)| {
            mime.len()
                + match data {
                    crate::MimeData::Text(text) => text.len(),
                    crate::MimeData::Binary(bytes) => bytes.len(),
                }
        };
        bundle.0.iter().map(of).sum()
    };
    match frame::parse(bytes).ok()? {
        FromKernel::Display(bundle, _) | FromKernel::Result(bundle) => Some(size(&bundle)),
        FromKernel::Error(error) => Some(error.name.len() + error.value.len() + error.traceback.len()),
        FromKernel::Failed(reason) => Some(reason.len()),
        FromKernel::Ready | FromKernel::Touched | FromKernel::Resumed | FromKernel::Flushed(_) | FromKernel::Done => {
            Some(0)
        }
    }
}

/// A workspace on a directory of the host.
pub fn workspace(path: &Path) -> impl Workspace {
    let root = std::fs::File::open(path).expect("the directory can be opened").into();
    Directory::new(std::sync::Arc::new(root), None)
}
