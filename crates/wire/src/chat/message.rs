//! The messages of a request.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// One message of the conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Message {
    /// Instructions.
    System {
        /// The text.
        content: Content,
    },
    /// Instructions, under the name that newer models use.
    Developer {
        /// The text.
        content: Content,
    },
    /// The user's words.
    User {
        /// Text and images.
        content: Content,
    },
    /// The model's words and calls.
    Assistant {
        /// Its text. `None` when it only called.
        #[serde(default)]
        content: Option<Content>,
        /// Its calls.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_calls: Option<Vec<Call>>,
        /// Its words of refusal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refusal: Option<String>,
        /// Its thoughts, with servers that show them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<String>,
    },
    /// A tool's answer.
    Tool {
        /// The answer.
        content: Content,
        /// The call that this answers.
        tool_call_id: String,
    },
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Text and other things.
    Parts(Vec<ContentPart>),
}

impl Content {
    /// The text of all text parts together.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    ContentPart::Known(KnownPart::Text { text }) => Some(text.as_str()),
                    ContentPart::Known(KnownPart::ImageUrl { .. }) | ContentPart::Other(_) => None,
                })
                .collect(),
        }
    }
}

/// One part of a message's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ContentPart {
    /// A kind that we know.
    Known(KnownPart),
    /// A kind that we do not know.
    Other(Value),
}

/// The kinds of parts that we know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum KnownPart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// An image.
    ImageUrl {
        /// Its address.
        image_url: ImageUrl,
    },
}

impl ContentPart {
    /// A text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Known(KnownPart::Text { text: text.into() })
    }

    /// An image part of an `https:` or `data:` URL. `detail` is `low`, `high` or `auto`.
    pub fn image(url: impl Into<String>, detail: Option<&str>) -> Self {
        Self::Known(KnownPart::ImageUrl { image_url: ImageUrl { url: url.into(), detail: detail.map(str::to_owned) } })
    }
}

/// Address of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageUrl {
    /// An `https:` or `data:` URL.
    pub url: String,
    /// `low`, `high` or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A call of a tool, whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// Pairs the call with its answer. Some servers leave it out.
    #[serde(default)]
    pub id: String,
    /// Always `function`, here.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// The function that is called.
    pub function: CalledFunction,
}

/// The function of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalledFunction {
    /// The function's name.
    #[serde(default)]
    pub name: String,
    /// The arguments as JSON text. Some servers send the object itself; it is turned into text.
    #[serde(default, deserialize_with = "arguments")]
    pub arguments: String,
}

fn function() -> String {
    "function".to_owned()
}

/// Arguments as JSON text; `null` becomes empty, and an object its text.
pub(super) fn arguments<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => String::new(),
        Value::String(text) => text,
        other => other.to_string(),
    })
}
