//! Items of a conversation, independent of any protocol.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// One entry of a conversation, in order. Instructions (the system prompt) are not an item: they belong to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// A message of the user.
    User(Vec<Part>),
    /// A message of the model.
    Assistant(String),
    /// Reasoning of the model before it spoke or called.
    Reasoning(String),
    /// A tool that the model called.
    Call(Call),
    /// The answer of a tool. Every call has exactly one, before the next message of the user.
    Output(CallOutput),
}

/// A piece of a message or of a tool's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Text.
    Text(String),
    /// An image, as bytes.
    Image {
        /// `image/png` or another image type.
        mime: String,
        /// The encoded image.
        #[serde(with = "base64_bytes")]
        data: Arc<[u8]>,
        /// The detail the client asks for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<ImageDetail>,
    },
    /// An image that the upstream fetches itself.
    ImageUrl(RemoteImage),
}

/// An image at an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredRemoteImage")]
pub struct RemoteImage {
    /// An `https:` or `data:` URL.
    pub url: String,
    /// The detail the client asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<ImageDetail>,
}

/// Detail in which a model sees an image, and thereby its price. For upstreams of OpenAI's protocols; others have no such choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageDetail {
    /// A small copy.
    Low,
    /// Tiles of the image, scaled to the model's limits.
    High,
    /// The image unscaled.
    Original,
}

impl ImageDetail {
    /// Returns the detail of OpenAI's word for it; `None` for `auto`, and for words that are not known.
    pub fn of_word(word: Option<&str>) -> Option<Self> {
        match word? {
            "low" => Some(Self::Low),
            "high" => Some(Self::High),
            "original" => Some(Self::Original),
            _ => None,
        }
    }

    /// Returns OpenAI's word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::High => "high",
            Self::Original => "original",
        }
    }
}

/// A [`RemoteImage`] as stored; once it was the URL alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredRemoteImage {
    Plain(String),
    Whole { url: String, detail: Option<ImageDetail> },
}

impl From<StoredRemoteImage> for RemoteImage {
    fn from(stored: StoredRemoteImage) -> Self {
        match stored {
            StoredRemoteImage::Plain(url) => Self { url, detail: None },
            StoredRemoteImage::Whole { url, detail } => Self { url, detail },
        }
    }
}

impl Part {
    /// An image whose detail is the upstream's choice.
    pub fn image(mime: impl Into<String>, data: impl Into<Arc<[u8]>>) -> Self {
        Self::Image { mime: mime.into(), data: data.into(), detail: None }
    }
}

/// A tool that the model called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Id that pairs the call with its output; generated here if the upstream sent none.
    pub id: String,
    /// The tool's name as the model wrote it.
    pub name: String,
    /// The arguments, always valid JSON. Malformed arguments of a model are wrapped, so that the upstream can read its own history.
    pub arguments: String,
}

/// The answer of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallOutput {
    /// The [`Call::id`] that this answers.
    pub call_id: String,
    /// The answer.
    pub parts: Vec<Part>,
}

impl Item {
    /// A user's message of plain text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User(vec![Part::Text(text.into())])
    }

    /// A tool's answer of plain text.
    pub fn output(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self::Output(CallOutput { call_id: call_id.into(), parts: vec![Part::Text(text.into())] })
    }
}

/// All text parts, joined by newlines.
pub fn text_of(parts: &[Part]) -> String {
    let texts: Vec<&str> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Image { .. } | Part::ImageUrl(_) => None,
        })
        .collect();
    texts.join("\n")
}

/// Bytes as base64.
mod base64_bytes {
    use std::sync::Arc;

    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Arc<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(BASE64_STANDARD.decode(text).map_err(D::Error::custom)?.into())
    }
}
