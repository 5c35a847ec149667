//! Ids: typed, prefixed, sortable by time, at most 64 characters.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use serde::{Deserialize as _, Deserializer, Serialize};

/// Length of the longest id, characters.
const MAX_ID: usize = 64;

/// A tenant, the owner of rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Tenant(String);

impl Tenant {
    /// Returns the tenant of all clients of a server without keys.
    pub fn local() -> Self {
        Self("local".to_owned())
    }

    /// Returns the tenant of users at a terminal of this machine, which no client of a server has.
    pub fn terminal() -> Self {
        Self("terminal".to_owned())
    }

    /// Returns the tenant of a key.
    pub(crate) fn of_key(key: &KeyId) -> Self {
        Self(key.0.clone())
    }

    /// Deserializes a tenant from our own archive. Never used on data of clients.
    pub(crate) fn deserialize_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }

    /// Wraps a text that this server signed. Never used on other data of clients.
    pub fn of_signed(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns the text that stands in the database.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ToSql for Tenant {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

impl FromSql for Tenant {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        String::column_result(value).map(Self)
    }
}

macro_rules! ids {
    ($($(#[$about:meta])* $name:ident = $prefix:literal + $digits:literal;)*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Beginning of every id of this kind.
            pub const PREFIX: &str = $prefix;

            /// Returns a new id, greater than all ids that this process made before.
            #[expect(clippy::new_without_default, reason = "no two are equal, so there is no default one")]
            pub fn new() -> Self {
                Self(fresh($prefix, $digits))
            }

            /// Parses a client's text; `None` if it is not an id of this kind.
            pub fn parse(text: &str) -> Option<Self> {
                let rest = text.strip_prefix($prefix)?;
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
                (text.len() <= MAX_ID && !rest.is_empty() && rest.bytes().all(plain)).then(|| Self(text.to_owned()))
            }

            /// Returns the text that clients see.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                self.0.to_sql()
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                Self::parse(value.as_str()?).ok_or(FromSqlError::InvalidType)
            }
        }
    )*};
}

ids! {
    /// Public id of an API key.
    KeyId = "key_" + 32;
    /// A file of the Files API.
    FileId = "file-" + 32;
    /// An upload in parts.
    UploadId = "upload_" + 32;
    /// One part of an upload.
    PartId = "part_" + 32;
    /// A session.
    SessionId = "cntr_" + 48;
    /// A file in a session.
    SessionFileId = "cfile_" + 32;
    /// A conversation.
    ConversationId = "conv_" + 48;
    /// A response.
    ResponseId = "resp_" + 48;
    /// An interaction.
    InteractionId = "int_" + 48;
    /// An assistant.
    AssistantId = "asst_" + 48;
    /// A thread: a conversation with a session of its own.
    ThreadId = "thread_" + 48;
    /// A message of a thread.
    MessageId = "msg_" + 48;
    /// A run of an assistant on a thread.
    RunId = "run_" + 48;
    /// A step of a run.
    StepId = "step_" + 48;
    /// A program that waits for approval.
    ApprovalId = "appr_" + 32;
    /// A turn. Its form is free: the turn's dialect chooses an id that its clients know, such as OpenAI's id of a response, `resp_…`. So
    /// ids of turns are unique over all dialects and tenants, but not ordered by time.
    TurnId = "" + 48;
}

impl TurnId {
    /// Mark of an id that names the process which drives the turn.
    pub(crate) const OWNED: &str = "_of_";

    pub(crate) fn owned(prefix: &str, name: &str) -> Self {
        Self(format!("{prefix}{}{name}", Self::OWNED))
    }
}

impl From<RunId> for TurnId {
    fn from(id: RunId) -> Self {
        Self(id.0)
    }
}

impl From<ResponseId> for TurnId {
    fn from(id: ResponseId) -> Self {
        Self(id.0)
    }
}

impl From<InteractionId> for TurnId {
    fn from(id: InteractionId) -> Self {
        Self(id.0)
    }
}

/// Returns a new id of a kind without a table, such as `msg_`. It sorts by time like all others.
pub fn fresh_id(prefix: &str) -> String {
    fresh(prefix, 48)
}

/// Returns the prefix, sixteen digits of time and counter, and random ones up to `digits`.
pub(crate) fn fresh(prefix: &str, digits: usize) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = u64::try_from(crate::now_ms()).unwrap_or(0) << 16;
    let next = |last: u64| now.max(last + 1);
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    let mut id = format!("{prefix}{:016x}{}", next(last.unwrap_or_default()), random_hex());
    id.truncate(prefix.len() + digits);
    id
}

/// Returns sixty-four random hexadecimal digits.
pub fn random_hex() -> String {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    hex(&bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_ordered_unique_and_short() {
        let ids: Vec<SessionId> = (0..10_000).map(|_| SessionId::new()).collect();
        assert!(ids.is_sorted_by(|first, second| first < second));
        assert_eq!(ids[0].as_str().len(), "cntr_".len() + 48);
        assert_eq!(FileId::new().as_str().len(), "file-".len() + 32);
        assert!(ids[0].as_str().len() <= MAX_ID && fresh_id("code_interpreter_").len() <= MAX_ID + 1);
    }

    #[test]
    fn what_is_no_id_is_not_taken_for_one() {
        assert!(FileId::parse("file-abc123").is_some());
        for text in ["", "file-", "cntr_1", "file-a/b", "file-a%00", "file-é"] {
            assert_eq!(FileId::parse(text), None, "{text}");
        }
        assert_eq!(FileId::parse(&format!("file-{}", "a".repeat(60))), None);
    }
}
