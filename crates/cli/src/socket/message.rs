//! The messages between the two ends.

use std::os::unix::fs::MetadataExt;

use aludel_sandbox::{ExecutionEvent, FileEntry, Finished, KernelOptions, Limits, MimeBundle, MimeData, ProgramError};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use crate::context::CommandContext;

/// Files of one request, limited by the descriptors of one message in Linux.
pub(super) const MAX_FILES: usize = 200;

/// A request to run a program. The files are attached as descriptors, in the order of their names.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProgramRequest {
    /// The client.
    pub(super) peer: PeerIdentity,
    /// The limits of its sandbox.
    pub(super) limits: Limits,
    /// The program, in pieces that run one after another until one fails.
    pub(super) cells: Vec<String>,
    /// Command line and environment for its kernel.
    pub(super) options: KernelOptions,
    /// Names of files in the workspace.
    pub(super) files: Vec<String>,
}

/// All that both ends must have in common.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PeerIdentity {
    /// The executable: its device, its inode and its modification time.
    executable: [i64; 4],
    /// Settings by key, and the interpreter of the template.
    settings: Vec<(String, String)>,
}

impl PeerIdentity {
    /// This process.
    pub(super) fn of_this_process(context: &CommandContext) -> std::io::Result<Self> {
        // The link leads to the running file, even if another one has its name by now.
        let executable = std::fs::metadata("/proc/self/exe")?;
        let id = [executable.dev(), executable.ino()].map(u64::cast_signed);
        let interpreter = aludel_sandbox::template::interpreter().unwrap_or_default();
        let mut settings = context.config.sandbox.common();
        settings.push(("the interpreter".to_owned(), interpreter.display().to_string()));
        Ok(Self { executable: [id[0], id[1], executable.mtime(), executable.mtime_nsec()], settings })
    }

    /// Returns a description of this one's first difference from the other.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        if self.executable != other.executable {
            return Some("it is another build of aludel".to_owned());
        }
        let differs = self.settings.iter().find(|setting| !other.settings.contains(setting));
        let (key, value) = differs?;
        Some(format!("it has another value for {key} ({value})"))
    }
}

/// A further message of the client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ClientMessage {
    /// Interrupt the program.
    Interrupt,
    /// Send the contents of a file of the workspace, if it has at most this many bytes.
    Open { path: String, limit: u64 },
}

/// A message of the server. [`ServerMessage::Ended`], [`ServerMessage::Refused`] and [`ServerMessage::Failed`] are the last, except for
/// contents of files.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ServerMessage {
    /// The program will run here if there is room.
    Welcome,
    /// Nothing of the program ran, and nothing will, for this reason.
    Declined(String),
    /// The program waits for the decision about this request for approval.
    Held { id: String },
    /// The program put something out.
    Output(OutputMessage),
    /// A piece of the program ended, and another one follows.
    CellEnded(Finished),
    /// The program ended, and these of its files are there.
    Ended { finished: Finished, files: Vec<FileEntry> },
    /// The program was not allowed to run.
    Refused(String),
    /// The program was interrupted before it ran.
    Cancelled,
    /// The server or the host failed.
    Failed(String),
    /// Contents follow: pieces of this many bytes together, or fewer, then an empty one.
    Opened { bytes: u64 },
    /// The file cannot be read.
    Unreadable(String),
}

/// An event of a program, as it is sent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum OutputMessage {
    Stdout(String),
    Stderr(String),
    Display(Vec<(String, MimeMessage)>),
    Result(Vec<(String, MimeMessage)>),
    Error(ProgramError),
}

/// One form of a value.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum MimeMessage {
    Text(String),
    /// As base64.
    Binary(String),
}

impl OutputMessage {
    /// The event that it stands for.
    pub(super) fn into_event(self) -> Result<ExecutionEvent, base64::DecodeError> {
        Ok(match self {
            Self::Stdout(text) => ExecutionEvent::Stdout(text),
            Self::Stderr(text) => ExecutionEvent::Stderr(text),
            Self::Display(forms) => ExecutionEvent::Display(bundle(forms)?),
            Self::Result(forms) => ExecutionEvent::Result(bundle(forms)?),
            Self::Error(error) => ExecutionEvent::Error(error),
        })
    }

    /// The form in which an event of the engine is sent.
    pub(super) fn of(output: aludel_engine::turns::OutputPiece) -> Self {
        use aludel_engine::turns::OutputPiece;
        match output {
            OutputPiece::Stdout(text) => Self::Stdout(text),
            OutputPiece::Stderr(text) => Self::Stderr(text),
            OutputPiece::Display(value) => Self::Display(forms(value.bundle())),
            OutputPiece::Result(value) => Self::Result(forms(value.bundle())),
            OutputPiece::Error { name, value, traceback } => Self::Error(ProgramError { name, value, traceback }),
        }
    }
}

fn forms(bundle: MimeBundle) -> Vec<(String, MimeMessage)> {
    let form = |data| match data {
        MimeData::Text(text) => MimeMessage::Text(text),
        MimeData::Binary(bytes) => MimeMessage::Binary(BASE64_STANDARD.encode(bytes)),
    };
    bundle.0.into_iter().map(|(mime, data)| (mime, form(data))).collect()
}

fn bundle(forms: Vec<(String, MimeMessage)>) -> Result<MimeBundle, base64::DecodeError> {
    let data = |form| {
        Ok(match form {
            MimeMessage::Text(text) => MimeData::Text(text),
            MimeMessage::Binary(text) => MimeData::Binary(BASE64_STANDARD.decode(text)?),
        })
    };
    let forms = forms.into_iter().map(|(mime, form)| Ok((mime, data(form)?)));
    Ok(MimeBundle(forms.collect::<Result<_, _>>()?))
}
