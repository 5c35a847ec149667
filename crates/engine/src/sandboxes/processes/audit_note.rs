//! Entries of commands in the audit log.

use aludel_store::{AuditEntry, AuditEvent, Store, Tenant, program_digest};

use super::MAX_SHOWN;
use crate::Error;

/// A command in the audit log.
pub(super) struct AuditNote {
    store: Store,
    tenant: Tenant,
    sandbox_id: String,
    number: u32,
    line: String,
    /// Digest of the whole line, once it has been shortened.
    whole: Option<String>,
}

impl AuditNote {
    pub(super) fn new(store: Store, tenant: Tenant, sandbox_id: String, number: u32, line: String) -> Self {
        Self { store, tenant, sandbox_id, number, line, whole: None }
    }

    /// The sandbox's id.
    pub(super) fn sandbox(&self) -> &str {
        &self.sandbox_id
    }

    /// Shortens the line. The audit log has all of it by now.
    pub(super) fn shorten(&mut self) {
        if self.line.len() > MAX_SHOWN {
            self.whole = Some(program_digest(&self.line));
            self.line.truncate(self.line.floor_char_boundary(MAX_SHOWN));
        }
        self.line.shrink_to_fit();
    }

    pub(super) async fn write(&self, event: AuditEvent, actor: &str, outcome: &str) -> Result<(), Error> {
        let entry = AuditEntry {
            event,
            request: format!("{}-{}", self.sandbox_id, self.number),
            session: self.sandbox_id.clone(),
            code: self.line.clone(),
            actor: actor.to_owned(),
            outcome: outcome.to_owned(),
        };
        match &self.whole {
            None => self.store.audit(&self.tenant, vec![entry]).await?,
            Some(whole) => self.store.audit_shortened(&self.tenant, entry, whole.clone()).await?,
        }
        Ok(())
    }
}

/// The command as a line that a shell would read back.
pub(super) fn command_line(arguments: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./=:,+@%".contains(&byte))
    };
    let quoted = |word: &String| {
        if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    arguments.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
