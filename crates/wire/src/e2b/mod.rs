//! E2B's protocols: the control plane (REST), and for each sandbox its processes and files (`envd`, Connect's JSON) and its code
//! interpreter.
//!
//! Field names are accepted in both spellings of protobuf's JSON. Undeclared fields are ignored.

pub mod code;
pub mod filesystem;
pub mod process;
mod sandboxes;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use sandboxes::{
    AutoResume, Connect, Lifecycle, ListedSandbox, Logs, Metric, Network, NewSandbox, OnTimeout, Pause, Refresh,
    Resume, Sandbox, SandboxDetail, State, TemplateAlias, Timeout, WrittenFile,
};

/// The body of every error of the control plane and of plain HTTP. Clients look at the number in it, not at the status alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Error {
    /// The HTTP status.
    pub code: u16,
    /// In words.
    pub message: String,
}

/// The body of an answer for a sandbox that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NoSandbox {
    /// Its id.
    #[serde(rename = "sandboxId")]
    pub sandbox_id: String,
    /// In words; clients look for `was not found`.
    pub message: String,
    /// The HTTP status.
    pub code: u16,
    /// The port that was asked for, where the sandbox is there and the port is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// An error of Connect: the body of a call that failed, or part of the last frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectError {
    /// The code.
    pub code: ConnectCode,
    /// In words.
    pub message: String,
}

/// The last frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct EndStream {
    /// The error, if the stream failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ConnectError>,
}

/// Codes of Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConnectCode {
    /// The request makes no sense.
    InvalidArgument,
    /// Time is over.
    DeadlineExceeded,
    /// There is no such thing.
    NotFound,
    /// It is there already.
    AlreadyExists,
    /// It may not be done.
    PermissionDenied,
    /// There is no room.
    ResourceExhausted,
    /// It is not as the request needs it to be.
    FailedPrecondition,
    /// There is no such method.
    Unimplemented,
    /// A failure of the server.
    Internal,
    /// Not now.
    Unavailable,
    /// Nobody knows who is asking.
    Unauthenticated,
}

impl ConnectCode {
    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => 400,
            Self::Unauthenticated => 401,
            Self::PermissionDenied => 403,
            Self::NotFound => 404,
            Self::AlreadyExists => 409,
            Self::ResourceExhausted => 429,
            Self::Internal => 500,
            Self::Unimplemented => 501,
            Self::Unavailable => 503,
            Self::DeadlineExceeded => 504,
        }
    }
}

/// Bytes as protobuf's JSON has them: base64.
#[derive(Debug, Clone, PartialEq, Eq, Default, JsonSchema)]
pub struct Bytes(#[schemars(with = "String", extend("contentEncoding" = "base64"))] pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use base64::Engine;
        serializer.serialize_str(&base64::prelude::BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use base64::Engine;
        use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
        const LENIENT: GeneralPurposeConfig =
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let text = String::deserialize(deserializer)?;
        let alphabet =
            if text.contains(['-', '_']) { &base64::alphabet::URL_SAFE } else { &base64::alphabet::STANDARD };
        GeneralPurpose::new(alphabet, LENIENT).decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// A 64-bit integer, which protobuf's JSON writes as text and accepts in both forms.
pub(crate) mod int64 {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Text(String),
    }

    pub(crate) fn serialize<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        match Either::deserialize(deserializer)? {
            Either::Number(number) => Ok(number),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}
