//! `[approval]`: the programs that wait, and the party that decides.

use std::sync::Arc;

use aludel_engine::approvals::{self, ApprovalMode, ApprovalPolicy, Webhook};
use aludel_rules::Rules;

use super::declare::{choice, settings};
use super::key::KeySource;
use super::value::FilePath;
use super::{ConfigEntry, ConfigError, DurationValue, HostEnvironment};

settings! {
    /// Approval: programs that the server holds back, and the party that decides.
    pub(crate) struct ApprovalSection of "approval" {
        /// Programs that are held back: none (`never`), all (`always`), or those that the rules name (`rules`).
        mode: Mode = Mode::Never;
        /// File of the rules; without one the usual rules hold: networks, processes, made-up code, native code, Python's inside and files
        /// of the host are asked about.
        rules: FilePath = FilePath::default();
        /// Time that somebody has to decide.
        timeout: DurationValue = DurationValue::from_secs(300);
        /// Fate of a program that nobody decided about in time: `refuse` or `allow`.
        on_timeout: OnTimeoutSetting = OnTimeoutSetting::Deny;
        /// The party whose decisions count: the `operator` alone, or the `key` whose program it is, too.
        decided_by: DecidedBy = DecidedBy::Operator;
        /// Address that is told of each program that waits, signed as Standard Webhooks has it. Its answer may decide.
        webhook: String = String::new();
        /// Secret of the signature, as `env:NAME` or `file:PATH`.
        webhook_secret: KeySource = KeySource::None;
    }
}

choice! {
    /// Programs that wait for a decision.
    pub(crate) enum Mode {
        Never = "never",
        Always = "always",
        Rules = "rules",
    }
}

choice! {
    /// Fate of a program that nobody decided about.
    pub(crate) enum OnTimeoutSetting {
        Deny = "refuse",
        Allow = "allow",
    }
}

choice! {
    /// The party whose decisions count.
    pub(crate) enum DecidedBy {
        /// The operator alone, at the command line or through the webhook.
        Operator = "operator",
        /// The key whose program it is, too.
        Key = "key",
    }
}

impl ApprovalSection {
    pub(crate) fn entries(&self) -> Vec<ConfigEntry> {
        self.entries_of("approval")
    }

    /// Returns true if another configuration has the same mode of approval.
    pub(crate) fn has_mode_of(&self, other: &Self) -> bool {
        *self.mode == *other.mode
    }

    /// The mode alone, which holds as long as a server runs.
    pub(crate) fn fixed(&self) -> ConfigEntry {
        ConfigEntry::new("approval.mode", &self.mode)
    }

    /// Describes the mode in words.
    pub(crate) fn description(&self) -> String {
        match *self.mode {
            Mode::Rules if self.rules.is_given() => format!("the rules are those of {}", *self.rules),
            Mode::Rules => "the usual rules hold".to_owned(),
            mode => format!("the mode is {mode}"),
        }
    }

    fn policy(&self) -> anyhow::Result<Rules> {
        let file = &self.rules;
        if !file.is_given() {
            return Ok(Rules::usual());
        }
        let text = std::fs::read_to_string(&***file).map_err(|error| format!("cannot be read: {error}"));
        let rules = text.and_then(|text| Rules::parse(&text).map_err(|error| error.to_string()));
        let part = format!("the rules in {}", **file);
        Ok(rules.map_err(|why| ConfigError::Part { origin: file.origin.clone(), part, why })?)
    }

    /// Returns the mode, with its rules.
    pub(crate) fn mode(&self) -> anyhow::Result<ApprovalMode> {
        Ok(match *self.mode {
            Mode::Never => ApprovalMode::Never,
            Mode::Always => ApprovalMode::Always,
            Mode::Rules => ApprovalMode::Rules(Arc::new(self.policy()?)),
        })
    }

    /// As the server knows it.
    pub(crate) fn settings(&self, host: &HostEnvironment) -> anyhow::Result<ApprovalPolicy> {
        let webhook = if self.webhook.is_empty() {
            None
        } else {
            let secret = self.webhook_secret.fetch_for("approval.webhook_secret", host)?;
            let webhook = match &secret {
                Some(secret) => Webhook::new(&self.webhook, secret.expose()),
                None => Err("it needs a secret to be signed with; add: webhook_secret = \"env:NAME\"".to_owned()),
            };
            let origin = self.webhook.origin.clone();
            Some(webhook.map_err(|why| ConfigError::Part { origin, part: "the webhook".to_owned(), why })?)
        };
        let timeout = self.timeout.duration();
        let on_timeout = match *self.on_timeout {
            OnTimeoutSetting::Deny => approvals::OnTimeout::Deny,
            OnTimeoutSetting::Allow => approvals::OnTimeout::Allow,
        };
        let by_key = *self.decided_by == DecidedBy::Key;
        Ok(ApprovalPolicy { mode: self.mode()?, timeout, on_timeout, by_key, webhook })
    }
}
