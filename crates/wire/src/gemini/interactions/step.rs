//! Steps: the parts of an interaction, as input and as output.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::Document;

/// A step as it was sent or told, kept word for word.
pub type StepDocument = Document<Step>;

/// A step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Step {
    /// Words and files of the user.
    UserInput {
        /// Its contents, in order.
        #[serde(default, deserialize_with = "contents", skip_serializing_if = "Vec::is_empty")]
        content: Vec<Content>,
    },
    /// Words of the model, or a picture that one of its programs showed.
    ModelOutput {
        /// Its contents, in order.
        #[serde(default, deserialize_with = "contents", skip_serializing_if = "Vec::is_empty")]
        content: Vec<Content>,
    },
    /// A thought of the model.
    Thought {
        /// The thought in a form that can be sent back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
        /// The thought in words, for a client that asks for them.
        #[serde(default, deserialize_with = "contents", skip_serializing_if = "Vec::is_empty")]
        summary: Vec<Content>,
    },
    /// A program that the model wrote.
    CodeExecutionCall {
        /// Its id, which its result names.
        id: String,
        /// The program.
        #[serde(default)]
        arguments: CodeArguments,
    },
    /// The output of a program.
    CodeExecutionResult {
        /// The program's id.
        call_id: String,
        /// The output: a text, or a list of contents.
        #[serde(default)]
        result: Value,
        /// True if the program did not run to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
    },
    /// A call of a function of the client's.
    FunctionCall {
        /// Its id, which its result names.
        id: String,
        /// The function.
        name: String,
        /// Its arguments.
        #[serde(default)]
        arguments: Map<String, Value>,
    },
    /// The result of such a call.
    FunctionResult {
        /// The call's id.
        call_id: String,
        /// The function.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The result: a text, an object, or a list of contents.
        #[serde(default)]
        result: Value,
        /// True if the function failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
    },
}

impl Document<Step> {
    /// A step of the user's with these contents.
    pub fn user_input(content: Vec<Value>) -> Self {
        let mut step = Map::new();
        step.insert("type".to_owned(), "user_input".into());
        step.insert("content".to_owned(), content.into());
        Value::Object(step).into()
    }
}

/// A program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeArguments {
    /// Its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Its language, such as `python`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

/// One content of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    /// A text.
    Text {
        /// Its characters.
        text: String,
    },
    /// An image.
    Image(Media),
    /// A document.
    Document(Media),
    /// Sound.
    Audio(Media),
    /// A film.
    Video(Media),
}

impl Content {
    /// Names of the kinds.
    pub const KINDS: [&str; 5] = ["text", "image", "document", "audio", "video"];

    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// A file in a content: its bytes, or the address where they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Media {
    /// Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// Reads contents, or the text that stands in their place.
fn contents<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Content>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![Content::Text { text }]),
        list => Vec::deserialize(list).map_err(serde::de::Error::custom),
    }
}
