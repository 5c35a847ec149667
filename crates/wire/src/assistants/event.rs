//! Events of a stream: a name, and an object or a delta. The set is closed: some clients fail on an unknown name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Annotation, CodeOutput, ImageFile};

super::literal! {
    /// The type of a piece of a message.
    MessageDeltaObject = "thread.message.delta";
    /// The type of a piece of a step.
    StepDeltaObject = "thread.run.step.delta";
    /// The type of a call of a program.
    CodeInterpreterType = "code_interpreter";
    /// The type of a call of a function.
    FunctionType = "function";
    /// The type of the details of a step that calls tools.
    ToolCallsType = "tool_calls";
}

/// Writes the enum of the names of events.
macro_rules! names {
    ($($(#[$about:meta])* $variant:ident = $name:literal;)*) => {
        /// The name of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum EventName {
            $($(#[$about])* $variant,)*
        }

        impl EventName {
            /// The name as it stands in a stream.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

names! {
    /// The thread is there.
    ThreadCreated = "thread.created";
    /// The run is there.
    RunCreated = "thread.run.created";
    /// The run waits for its turn.
    RunQueued = "thread.run.queued";
    /// The run goes on.
    RunInProgress = "thread.run.in_progress";
    /// The run waits for its client.
    RunRequiresAction = "thread.run.requires_action";
    /// The run is complete.
    RunCompleted = "thread.run.completed";
    /// The run was cut off.
    RunIncomplete = "thread.run.incomplete";
    /// The run failed.
    RunFailed = "thread.run.failed";
    /// The run was cancelled.
    RunCancelled = "thread.run.cancelled";
    /// The run took too long.
    RunExpired = "thread.run.expired";
    /// A step is there.
    StepCreated = "thread.run.step.created";
    /// A step goes on.
    StepInProgress = "thread.run.step.in_progress";
    /// A piece of a step.
    StepDelta = "thread.run.step.delta";
    /// A step is complete.
    StepCompleted = "thread.run.step.completed";
    /// A step failed.
    StepFailed = "thread.run.step.failed";
    /// A step was cancelled.
    StepCancelled = "thread.run.step.cancelled";
    /// A step took too long.
    StepExpired = "thread.run.step.expired";
    /// A message is there.
    MessageCreated = "thread.message.created";
    /// A message is being written.
    MessageInProgress = "thread.message.in_progress";
    /// A piece of a message.
    MessageDelta = "thread.message.delta";
    /// A message is complete.
    MessageCompleted = "thread.message.completed";
    /// A message was cut off.
    MessageIncomplete = "thread.message.incomplete";
    /// The end of the stream.
    Done = "done";
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MessageDelta {
    /// The message.
    pub id: String,
    /// Its type.
    #[serde(default)]
    pub object: MessageDeltaObject,
    /// The piece.
    pub delta: ContentDeltas,
}

/// Pieces of a message's parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContentDeltas {
    /// The pieces.
    pub content: Vec<ContentDelta>,
}

/// A piece of a part of a message. Texts are added up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentDelta {
    /// Text.
    Text {
        /// Index of the part.
        index: usize,
        /// The piece.
        text: TextDelta,
    },
    /// A whole image.
    ImageFile {
        /// Index of the part.
        index: usize,
        /// The image.
        image_file: ImageFile,
    },
}

/// A piece of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TextDelta {
    /// The next characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The next annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Vec<Annotation>>,
}

/// A piece of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepDelta {
    /// The step.
    pub id: String,
    /// Its type.
    #[serde(default)]
    pub object: StepDeltaObject,
    /// The piece.
    pub delta: StepDeltas,
}

/// A piece of a step's details.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepDeltas {
    /// The piece.
    pub step_details: StepDeltaDetails,
}

/// Pieces of calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepDeltaDetails {
    /// The kind of details.
    #[serde(default)]
    pub r#type: ToolCallsType,
    /// The pieces.
    pub tool_calls: Vec<ToolCallDelta>,
}

/// A piece of a call. Texts are added up, ids too: they are sent once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ToolCallDelta {
    /// Of a program.
    Code {
        /// Index of the call.
        index: usize,
        /// Its id, in the first piece.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Its type.
        r#type: CodeInterpreterType,
        /// The piece.
        code_interpreter: CodeDelta,
    },
    /// A whole call of a function.
    Function {
        /// Index of the call.
        index: usize,
        /// Its id.
        id: String,
        /// Its type.
        r#type: FunctionType,
        /// The function.
        function: FunctionDelta,
    },
}

/// A piece of a program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CodeDelta {
    /// The next characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// Its next output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<CodeOutputDelta>>,
}

/// A piece of what a program put out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CodeOutputDelta {
    /// Index of the output.
    pub index: usize,
    /// The piece.
    #[serde(flatten)]
    pub output: CodeOutput,
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionDelta {
    /// Its name.
    pub name: String,
    /// Its arguments, as JSON.
    pub arguments: String,
    /// Its output: none yet.
    pub output: Option<String>,
}

impl MessageDelta {
    /// A piece of a message.
    pub fn new(id: &str, content: ContentDelta) -> Self {
        let delta = ContentDeltas { content: vec![content] };
        Self { id: id.to_owned(), object: MessageDeltaObject::It, delta }
    }
}

impl StepDelta {
    /// Pieces of a step's calls.
    pub fn new(id: &str, tool_calls: Vec<ToolCallDelta>) -> Self {
        let step_details = StepDeltaDetails { r#type: ToolCallsType::It, tool_calls };
        Self { id: id.to_owned(), object: StepDeltaObject::It, delta: StepDeltas { step_details } }
    }
}
