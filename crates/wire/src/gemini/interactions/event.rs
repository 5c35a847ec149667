//! Events of a stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CodeArguments, Content, Interaction, InteractionError, Media, Status, Step};

/// An event with its number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamEvent {
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// The mark after which a stream is gone on with.
    pub event_id: String,
}

impl StreamEvent {
    /// As JSON on one line.
    pub fn json(&self) -> String {
        // Plain data with texts for keys can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event_type")]
pub enum Event {
    /// The interaction exists.
    #[serde(rename = "interaction.created")]
    Created {
        /// The interaction.
        interaction: Box<Interaction>,
    },
    /// Its state changed.
    #[serde(rename = "interaction.status_update")]
    StatusUpdate {
        /// Its id.
        interaction_id: String,
        /// The state.
        status: Status,
    },
    /// A step begins.
    #[serde(rename = "step.start")]
    StepStart {
        /// Its number.
        index: usize,
        /// The step as far as it is known.
        step: Step,
    },
    /// A step goes on.
    #[serde(rename = "step.delta")]
    StepDelta {
        /// Its number.
        index: usize,
        /// The addition.
        delta: Delta,
    },
    /// A step is complete.
    #[serde(rename = "step.stop")]
    StepStop {
        /// Its number.
        index: usize,
    },
    /// The interaction has ended, in the state that it tells.
    #[serde(rename = "interaction.completed")]
    Completed {
        /// The interaction.
        interaction: Box<Interaction>,
    },
    /// The interaction failed.
    #[serde(rename = "error")]
    Error {
        /// The error.
        error: InteractionError,
    },
}

impl Event {
    /// The event's kind, as it is written.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Created { .. } => "interaction.created",
            Self::StatusUpdate { .. } => "interaction.status_update",
            Self::StepStart { .. } => "step.start",
            Self::StepDelta { .. } => "step.delta",
            Self::StepStop { .. } => "step.stop",
            Self::Completed { .. } => "interaction.completed",
            Self::Error { .. } => "error",
        }
    }
}

/// An addition to a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Delta {
    /// Characters of a text.
    Text {
        /// The next ones.
        text: String,
    },
    /// An image.
    Image(Media),
    /// A thought in words.
    ThoughtSummary {
        /// The next ones.
        content: Content,
    },
    /// A thought in a form that can be sent back.
    ThoughtSignature {
        /// That form.
        signature: String,
    },
    /// A program.
    CodeExecutionCall {
        /// All of it.
        arguments: CodeArguments,
    },
    /// The output of a program.
    CodeExecutionResult {
        /// All of it.
        result: String,
        /// True if the program did not run to its end.
        is_error: bool,
    },
    /// The arguments of a call of a function.
    ArgumentsDelta {
        /// The next characters of their JSON.
        arguments: String,
    },
}
