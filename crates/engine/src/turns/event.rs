//! Events of a turn: the only thing that a dialect renders.

use std::ops::Deref;
use std::sync::Arc;

use aludel_agent::upstream::TokenUsage;
use aludel_agent::{CutOff, excerpt};
use aludel_ignore::Ignore;
use aludel_sandbox::{Finished, LimitHit, MimeBundle, MimeData, Outcome};
use aludel_store::{BlobName, FILE_COST};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use super::{Failure, FailureKind};
use crate::sessions::{SessionFile, StoredChanges};

/// Most bytes of a value's representations other than its plain text and its image.
const MAX_OTHERS: usize = 8 << 20;
/// Characters of the longest id that is read.
const MAX_ID: usize = 64;
/// Characters of the paths that an outcome names in words.
const MAX_PATHS: usize = 1000;

/// An event of a turn, published after its effects are stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnEvent {
    /// Its number among the events of its request, from 0; only a crash leaves gaps.
    pub sequence: u64,
    /// Time, milliseconds since 1970.
    pub at_ms: i64,
    /// The choice, by its index among those of the turn.
    #[serde(rename = "turn", default, skip_serializing_if = "is_zero")]
    pub choice: usize,
    /// Its kind and contents.
    #[serde(flatten)]
    pub kind: EventKind,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// An identifier of an item of a turn, made before the item is stored: digits, to which a dialect adds its own prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ItemId(String);

impl ItemId {
    /// A new one.
    #[expect(clippy::new_without_default, reason = "a default would be the same each time")]
    pub fn new() -> Self {
        Self(aludel_store::fresh_id(""))
    }

    /// Reads an id with a dialect's prefix.
    pub fn read(text: &str, prefix: &str) -> Option<Self> {
        let id = text.strip_prefix(prefix)?;
        let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (is_plain && !id.is_empty() && id.len() <= MAX_ID).then(|| Self(id.to_owned()))
    }

    /// The id with a dialect's prefix.
    pub fn with_prefix(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.0)
    }
}

/// A tool of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// A program for the Python kernel.
    Python,
    /// A command for a shell.
    Bash,
    /// A change of a file.
    Editor,
}

/// A call of a tool that the client carries out, or approves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The item.
    pub item: ItemId,
    /// Pairs the call with its output: made by the model's server.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments, always JSON.
    pub arguments: String,
    /// The program that calls it; `None` for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<ItemId>,
}

/// The kinds of events. [`EventKind::Ended`] comes exactly once for each choice, [`EventKind::Closed`] once and last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventKind {
    /// Clients can ask for the request by its id from now on.
    Created {
        /// True if it runs in the background, and clients ask for it by its id.
        background: bool,
    },
    /// The agents begin.
    Started,
    /// The request goes on after a crash or a restart. A dialect numbers its frames from here on.
    Resumed {
        /// The first number of a frame that no client was ever sent.
        next_frame: u64,
    },
    /// The model is asked.
    RoundStarted {
        /// The number of the round, from 1.
        number: u32,
    },
    /// The upstream is busy and is asked again after a wait.
    Retrying {
        /// Length of the wait, milliseconds.
        wait_ms: u64,
        /// The reason in words.
        reason: String,
    },
    /// The model writes. The first piece begins a message.
    Text {
        /// The message.
        item: ItemId,
        /// The next characters.
        delta: String,
    },
    /// The model writes that it will not answer, in a message of its own. The first piece begins it.
    Refusal {
        /// The message.
        item: ItemId,
        /// The next characters.
        delta: String,
    },
    /// The message is complete, and the turn goes on.
    TextEnded {
        /// The message.
        item: ItemId,
        /// Files of the session that its text names.
        linked: Vec<SessionFile>,
    },
    /// The model reasons. The first piece begins an item.
    Reasoning {
        /// The item.
        item: ItemId,
        /// The next characters.
        delta: String,
    },
    /// The model begins to write a call of one of our tools.
    ToolStarted {
        /// The call.
        item: ItemId,
        /// The call's id from the model's server.
        call_id: String,
        /// The tool.
        tool: ToolKind,
    },
    /// The model goes on writing it.
    ToolInput {
        /// The call.
        item: ItemId,
        /// The next characters of the program.
        delta: String,
    },
    /// The call is complete.
    ToolReady {
        /// The call.
        item: ItemId,
        /// The call's id from the model's server. A call of an earlier request begins here.
        call_id: String,
        /// The tool.
        tool: ToolKind,
        /// The program: exactly this is run.
        input: String,
    },
    /// A decision about the call is asked for.
    ApprovalRequested {
        /// The call.
        item: ItemId,
    },
    /// A person or a program of the operator's has been asked, and has yet to decide.
    ApprovalPending {
        /// The call.
        item: ItemId,
    },
    /// The decision.
    ApprovalDecided {
        /// The call.
        item: ItemId,
        /// The reason of a denial.
        #[serde(rename = "refused")]
        denied: Option<String>,
    },
    /// A program of an earlier request continues: its client answered its calls.
    ToolResumed {
        /// The call.
        item: ItemId,
        /// The tool.
        tool: ToolKind,
        /// Its output so far.
        output: Vec<OutputPiece>,
    },
    /// The program runs.
    ToolRunning {
        /// The call.
        item: ItemId,
    },
    /// The program puts something out.
    Output {
        /// The call.
        item: ItemId,
        /// A piece of it.
        output: OutputPiece,
    },
    /// The program ended.
    ToolEnded {
        /// The call.
        item: ItemId,
        /// Its outcome.
        outcome: ToolOutcome,
    },
    /// The call was invalid, and the model is told so.
    ToolRejected {
        /// The call, if it had begun.
        item: Option<ItemId>,
        /// The call's id from the model's server.
        #[serde(default)]
        call_id: String,
        /// The reason.
        reason: String,
    },
    /// The model gets the result of a call: of a program, a refusal or a rejection.
    Observed {
        /// The call's id from the model's server.
        call_id: String,
        /// The result as text. Images are not repeated here.
        text: String,
    },
    /// Tokens of one round.
    Usage {
        /// The number of the round, from 1.
        round: u32,
        /// Its tokens.
        usage: TokenUsage,
    },
    /// The end of one turn.
    Ended {
        /// The id of a message that a dialect adds where the model wrote none.
        item: ItemId,
        /// Its reason.
        ending: EndReason,
        /// Files of the session that the last message names.
        linked: Vec<SessionFile>,
    },
    /// The end of the request.
    Closed,
}

/// A piece of a program's output. It is from untrusted code: data, never an instruction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputPiece {
    /// Text on standard output.
    Stdout(String),
    /// Text on standard error.
    Stderr(String),
    /// Something displayed.
    Display(RichValue),
    /// The value of the last expression.
    Result(RichValue),
    /// The exception that ended the program.
    Error {
        /// Its class.
        name: String,
        /// Its message.
        value: String,
        /// The traceback in text.
        traceback: String,
    },
}

impl OutputPiece {
    /// Returns the bytes that it takes in memory.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Stdout(text) | Self::Stderr(text) => text.len(),
            Self::Display(rich) | Self::Result(rich) => rich.memory(),
            Self::Error { name, value, traceback } => name.len() + value.len() + traceback.len(),
        }
    }
}

/// A value in the forms that its program gave it. A dialect uses those that its clients can show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RichValue {
    /// Its plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// An image of it, kept as a file of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Its other forms, by MIME type: HTML, SVG, JSON and the like, up to 8 MB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<(String, RichData)>,
}

/// One form of a value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RichData {
    /// Text types, JSON and SVG.
    Text(String),
    /// Bytes, such as a PDF.
    Binary(StoredBytes),
}

impl RichValue {
    /// A value from its forms, one of which is stored as this image.
    pub(crate) fn new(bundle: MimeBundle, image: Option<Image>) -> Self {
        let mut rich = Self { text: None, image, others: Vec::new() };
        let (mut room, mut left_out) = (MAX_OTHERS, String::new());
        for (mime, data) in bundle.0 {
            match data {
                MimeData::Text(text) if mime == "text/plain" => rich.text = Some(text),
                MimeData::Binary(_) if rich.image.as_ref().is_some_and(|image| image.file.mime == mime) => {}
                data => {
                    let (bytes, form) = match data {
                        MimeData::Text(text) => (text.len(), RichData::Text(text)),
                        MimeData::Binary(bytes) => (bytes.len(), RichData::Binary(bytes.as_slice().into())),
                    };
                    if let Some(left) = room.checked_sub(bytes) {
                        room = left;
                        rich.others.push((mime, form));
                    } else {
                        let megabytes = bytes >> 20;
                        left_out.push_str(&format!(
                            "\n[{mime} of {megabytes} MB was left out: too large to show; write it to a file instead]"
                        ));
                    }
                }
            }
        }
        if !left_out.is_empty() {
            rich.text = Some(rich.text.unwrap_or_default() + &left_out);
        }
        rich
    }

    fn memory(&self) -> usize {
        let others = self.others.iter().map(|(_, form)| match form {
            RichData::Binary(bytes) => bytes.len(),
            RichData::Text(text) => text.len(),
        });
        let image = self.image.iter().map(|image| image.bytes.len());
        self.text.iter().map(String::len).chain(image).chain(others).sum()
    }

    /// Returns the bytes that its binary forms take as base64 or as files.
    fn bytes(&self) -> u64 {
        let others = self.others.iter().filter_map(|(_, form)| match form {
            RichData::Binary(bytes) => Some(bytes.len()),
            RichData::Text(_) => None,
        });
        let image = self.image.iter().map(|image| image.bytes.len());
        image.chain(others).map(|bytes| bytes as u64 / 3 * 4 + FILE_COST).sum()
    }

    /// The value as the sandbox gave it.
    pub fn bundle(&self) -> MimeBundle {
        let text = self.text.iter().map(|text| ("text/plain".to_owned(), MimeData::Text(text.clone())));
        let image = self.image.iter().map(|image| (image.file.mime.clone(), MimeData::Binary(image.bytes.to_vec())));
        let others = self.others.iter().map(|(mime, form)| {
            let data = match form {
                RichData::Text(text) => MimeData::Text(text.clone()),
                RichData::Binary(bytes) => MimeData::Binary(bytes.to_vec()),
            };
            (mime.clone(), data)
        });
        MimeBundle(text.chain(image).chain(others).collect())
    }
}

/// An image that a program showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Image {
    /// The file that holds it.
    pub file: SessionFile,
    /// Its bytes, for renderings that contain them: the file may be gone when the log is read.
    pub bytes: StoredBytes,
}

/// Bytes of an event. In a stored log they are a blob of the turn, and the event has its name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "WrittenBytes")]
pub struct StoredBytes {
    #[serde(skip)]
    pub(super) bytes: Arc<[u8]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) blob: Option<BlobName>,
}

/// Bytes as they stand in a stored event.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenBytes {
    Blob {
        blob: Option<BlobName>,
    },
    /// The form that an earlier version wrote: base64.
    Inline(String),
}

impl TryFrom<WrittenBytes> for StoredBytes {
    type Error = base64::DecodeError;

    fn try_from(written: WrittenBytes) -> Result<Self, base64::DecodeError> {
        Ok(match written {
            WrittenBytes::Blob { blob } => Self { bytes: Arc::default(), blob },
            WrittenBytes::Inline(text) => BASE64_STANDARD.decode(text)?.as_slice().into(),
        })
    }
}

impl PartialEq for StoredBytes {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl From<&[u8]> for StoredBytes {
    fn from(bytes: &[u8]) -> Self {
        Self { bytes: bytes.into(), blob: None }
    }
}

impl Deref for StoredBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl TurnEvent {
    /// Returns the bytes of its stored form, including blobs as base64, as documents contain them.
    pub(super) fn stored_bytes(&self) -> u64 {
        let mut count = ByteCounter(0);
        serde_json::to_writer(&mut count, self).ignore("plain data can always be written");
        let bytes = match &self.kind {
            EventKind::Output { output: OutputPiece::Display(rich) | OutputPiece::Result(rich), .. } => rich.bytes(),
            _ => 0,
        };
        count.0 + bytes
    }

    /// The bytes in it.
    pub(super) fn bytes_mut(&mut self) -> impl Iterator<Item = &mut StoredBytes> {
        let rich = match &mut self.kind {
            EventKind::Output { output: OutputPiece::Display(rich) | OutputPiece::Result(rich), .. } => Some(rich),
            _ => None,
        };
        rich.into_iter().flat_map(|RichValue { text: _, image, others }| {
            let others = others.iter_mut().filter_map(|(_, form)| match form {
                RichData::Binary(bytes) => Some(bytes),
                RichData::Text(_) => None,
            });
            image.iter_mut().map(|image| &mut image.bytes).chain(others)
        })
    }
}

/// A writer that counts.
struct ByteCounter(u64);

impl std::io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The end of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// The kind of its end.
    pub end: ToolEnd,
    /// The outcome as text, in the model's view.
    pub words: String,
    /// Wall clock from start to end, milliseconds.
    pub elapsed_ms: u64,
    /// Files that it made or changed and images that it displayed, all stored.
    pub files: Vec<SessionFile>,
    /// Paths of files that it made or changed and that exceed the tenant's storage or the size of a workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_room: Vec<String>,
    /// The sandbox's whole report, with the limit, the variables and refused system calls. Missing in events of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Finished>,
}

impl ToolOutcome {
    /// The sandbox's outcome, with these files stored.
    pub(crate) fn new(finished: Finished, StoredChanges { files, without_room }: StoredChanges) -> Self {
        let mut words = aludel_agent::describe_outcome(&finished);
        if !without_room.is_empty() {
            let paths = excerpt::line(&without_room.join(", "), MAX_PATHS);
            words.push_str(&format!(" Not stored, since all that may be stored is used up: {paths}."));
        }
        Self {
            end: ToolEnd::of(&finished),
            words,
            elapsed_ms: u64::try_from(finished.elapsed.as_millis()).unwrap_or(u64::MAX),
            files,
            without_room,
            finished: Some(finished),
        }
    }
}

/// The kinds of ends of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolEnd {
    /// It ran to its end.
    Completed,
    /// It raised an exception.
    Raised,
    /// It was interrupted.
    Interrupted,
    /// It reached its memory limit.
    MemoryLimit,
    /// It reached its time limit.
    Timeout,
    /// It reached its limit of processor time.
    CpuLimit,
    /// It filled the workspace.
    DiskLimit,
    /// It ended its own interpreter.
    Died,
}

impl ToolEnd {
    fn of(finished: &Finished) -> Self {
        match &finished.outcome {
            Outcome::Completed => Self::Completed,
            Outcome::Failed(_) => Self::Raised,
            Outcome::Interrupted => Self::Interrupted,
            Outcome::Limit(LimitHit::Memory { .. }) => Self::MemoryLimit,
            Outcome::Limit(LimitHit::WallClock { .. }) => Self::Timeout,
            Outcome::Limit(LimitHit::CpuTime { .. }) => Self::CpuLimit,
            Outcome::Limit(LimitHit::Disk { .. } | LimitHit::Files { .. }) => Self::DiskLimit,
            Outcome::KernelDied(_) => Self::Died,
        }
    }
}

/// The reason for which a turn ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum EndReason {
    /// The model answered.
    Answered,
    /// The model declined.
    Refused,
    /// The model's server cut the answer off at its limit of tokens.
    TooLong,
    /// The model's server withheld the rest.
    Filtered,
    /// A budget of tokens is used up.
    TokenBudget {
        /// The budget in words.
        words: String,
    },
    /// Another budget is used up.
    Budget {
        /// The budget in words.
        words: String,
    },
    /// The client has to run tools, approve programs, or both.
    WaitsForClient {
        /// Programs that wait for the client's approval.
        programs: Vec<ToolCall>,
        /// Calls of the client's own tools.
        calls: Vec<ToolCall>,
    },
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed {
        /// The failure, as clients may know it.
        failure: Failure,
        /// The cause for the operator's display; it is not stored.
        #[serde(skip)]
        cause: Option<String>,
    },
}

impl EndReason {
    /// The end of a turn that failed.
    pub(super) fn failed(failure: Failure) -> Self {
        Self::Failed { failure, cause: None }
    }

    /// Returns the end as a text for the operator; `None` after an answer.
    pub fn words(&self) -> Option<String> {
        let cut_off = |by: CutOff| format!("The answer was cut off by {by}.");
        Some(match self {
            Self::Answered => return None,
            Self::Refused => "The model declined to answer.".to_owned(),
            Self::TooLong => cut_off(CutOff::Length),
            Self::Filtered => cut_off(CutOff::Filter),
            Self::TokenBudget { words } | Self::Budget { words } => {
                format!("Stopped: the budget of {words} is used up. What was made so far is kept.")
            }
            Self::WaitsForClient { programs, calls } if programs.is_empty() => {
                format!("The model waits for the answers of {} tools.", calls.len())
            }
            Self::WaitsForClient { programs, .. } => format!("{} programs wait for approval.", programs.len()),
            Self::Cancelled => "Cancelled.".to_owned(),
            Self::Failed { failure, cause } => match (failure.kind, cause) {
                (FailureKind::Sandbox, Some(cause)) => format!("The sandbox failed: {cause}"),
                (_, Some(cause)) => cause.clone(),
                (_, None) => failure.message.clone(),
            },
        })
    }
}
