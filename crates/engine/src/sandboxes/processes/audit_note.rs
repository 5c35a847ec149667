//! Entries of commands in the audit log.

use aludel_store::{AuditEntry, AuditEvent, Store, Tenant};

use crate::Error;

/// A command in the audit log.
pub(super) struct AuditNote {
    pub(super) store: Store,
    pub(super) tenant: Tenant,
    pub(super) sandbox_id: String,
    pub(super) number: u32,
    pub(super) line: String,
}

impl AuditNote {
    pub(super) async fn write(&self, event: AuditEvent, actor: &str, outcome: &str) -> Result<(), Error> {
        let entry = AuditEntry {
            event,
            request: format!("{}-{}", self.sandbox_id, self.number),
            session: self.sandbox_id.clone(),
            code: self.line.clone(),
            actor: actor.to_owned(),
            outcome: outcome.to_owned(),
        };
        Ok(self.store.audit(&self.tenant, vec![entry]).await?)
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
