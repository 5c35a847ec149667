//! The shared names of one kernel's programs.

use std::sync::{Arc, Mutex, PoisonError};

use aludel_rules::{Judgement, Known, Rules};
use aludel_sandbox::Language;

/// The names that programs of one kernel share, as far as the rules have read them.
#[derive(Debug)]
pub struct KernelNames {
    id: String,
    language: Option<Language>,
    known: Mutex<Known>,
}

impl KernelNames {
    /// The names of a kernel before its first program. `id` is the session's or sandbox's id, for the audit log.
    pub fn new(id: impl Into<String>) -> Arc<Self> {
        Self::of_language(id, None)
    }

    /// The names of a kernel of another language than the engine's.
    pub fn of_language(id: impl Into<String>, language: Option<Language>) -> Arc<Self> {
        Arc::new(Self { id: id.into(), language, known: Mutex::default() })
    }

    /// The kernel's language, where it is not the engine's.
    pub(super) fn language(&self) -> Option<&Language> {
        self.language.as_ref()
    }

    /// The id of the session or sandbox.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Judges a program that follows the ones judged before. Blocks while another one is judged.
    pub(super) fn judge(&self, rules: &Rules, code: &str) -> Judgement {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        rules.judge_after(&mut known, code)
    }
}
