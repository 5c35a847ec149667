//! Parts of a message's content.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lenient;

/// One part of a message's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart {
    /// Text of the user's.
    InputText {
        /// The text.
        #[serde(default, deserialize_with = "lenient::field")]
        text: String,
    },
    /// Text of the model's.
    OutputText(OutputText),
    /// Text, as some clients have it.
    Text {
        /// The text.
        #[serde(default, deserialize_with = "lenient::field")]
        text: String,
    },
    /// The model's reason not to answer.
    Refusal {
        /// The reason.
        #[serde(default, deserialize_with = "lenient::field")]
        refusal: String,
    },
    /// An image of the user's.
    InputImage(InputImage),
    /// A file of the user's.
    InputFile(InputFile),
    /// A part of a kind that is not known.
    #[serde(untagged)]
    Other(Value),
}

/// Text of the model's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OutputText {
    /// The text.
    #[serde(default, deserialize_with = "lenient::field")]
    pub text: String,
    /// Notes to places of the text.
    #[serde(default, deserialize_with = "lenient::list")]
    pub annotations: Vec<Annotation>,
    /// Probabilities of tokens. Empty, but the official clients want the field.
    #[serde(default, deserialize_with = "lenient::list")]
    pub logprobs: Vec<Value>,
}

impl OutputText {
    /// A text without annotations.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// An image of the user's: stored, at a URL, or in a `data:` URL.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct InputImage {
    /// The id of a stored file.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub file_id: Option<String>,
    /// An `https:` or `data:` URL.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub image_url: Option<String>,
    /// `low`, `high` or `auto`.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The image's name. Not of the protocol; some clients send it.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
}

/// A file of the user's: stored, or inline.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct InputFile {
    /// The id of a stored file.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub file_id: Option<String>,
    /// The file's name.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// The contents in base64, as they are or in a `data:` URL.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub file_data: Option<String>,
}

impl ContentPart {
    /// A text of the user's.
    pub fn input_text(text: impl Into<String>) -> Self {
        Self::InputText { text: text.into() }
    }

    /// A text of the model's.
    pub fn output_text(text: impl Into<String>) -> Self {
        Self::OutputText(OutputText::new(text))
    }
}

impl From<Value> for ContentPart {
    fn from(part: Value) -> Self {
        // An unknown part is read as one of another kind, so this cannot fail.
        if part.is_object() { Self::deserialize(part).unwrap_or(Self::Other(Value::Null)) } else { Self::Other(part) }
    }
}

/// A note to a place of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Annotation {
    /// A file of a container that the text links or that a program left.
    ContainerFileCitation(ContainerFileCitation),
    /// An annotation of a kind that is not known.
    #[serde(untagged)]
    Other(Value),
}

/// A reference to a file of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContainerFileCitation {
    /// The container's id.
    pub container_id: String,
    /// The file's id.
    pub file_id: String,
    /// The file's name.
    pub filename: String,
    /// Place of the link's first character; zero where there is no link.
    pub start_index: usize,
    /// Place after the link's last character; zero where there is no link.
    pub end_index: usize,
}
