//! `[approval]`: which programs the server holds back, and who is asked.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use aludel_engine::approvals::{self, ApprovalMode, ApprovalPolicy, Webhook};
use aludel_rules::Rules;

use super::given::{ConfigError, Given, Setting};
use super::key::KeySource;
use super::{Entry, Span, Surroundings};

/// What was given.
#[derive(Debug, Default)]
pub(crate) struct RawApproval {
    mode: Option<Setting<Mode>>,
    rules: Option<Setting<PathBuf>>,
    timeout: Option<Setting<Span>>,
    on_timeout: Option<Setting<OnTimeout>>,
    decided_by: Option<Setting<DecidedBy>>,
    webhook: Option<Setting<String>>,
    webhook_secret: Option<Setting<KeySource>>,
}

/// What holds.
#[derive(Debug)]
pub(crate) struct Approval {
    /// Which programs wait.
    mode: Setting<Mode>,
    /// The policy; without one, the usual one holds.
    rules: Option<Setting<PathBuf>>,
    /// How long somebody may take.
    timeout: Setting<Span>,
    /// What happens then.
    on_timeout: Setting<OnTimeout>,
    /// Whose decisions count.
    decided_by: Setting<DecidedBy>,
    /// Who is told; empty for nobody.
    webhook: Setting<String>,
    /// What the message is signed with.
    webhook_secret: Setting<KeySource>,
}

/// Which programs wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Never,
    Always,
    Rules,
}

/// What happens to a program that nobody decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OnTimeout(approvals::OnTimeout);

/// The party whose decisions count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecidedBy {
    /// The operator alone, at the command line or through the webhook.
    Operator,
    /// The key whose program it is, too.
    Key,
}

impl RawApproval {
    pub(crate) const KEYS: &[&str] =
        &["mode", "rules", "timeout", "on_timeout", "decided_by", "webhook", "webhook_secret"];

    pub(crate) fn set(&mut self, key: &str, given: Given) -> Result<(), ConfigError> {
        match key {
            "mode" => self.mode = Some(given.parse("approval.mode")?),
            "rules" => self.rules = Some(given.parse_path("approval.rules")?),
            "timeout" => self.timeout = Some(given.parse("approval.timeout")?),
            "on_timeout" => self.on_timeout = Some(given.parse("approval.on_timeout")?),
            "decided_by" => self.decided_by = Some(given.parse("approval.decided_by")?),
            "webhook" => self.webhook = Some(given.parse("approval.webhook")?),
            "webhook_secret" => self.webhook_secret = Some(KeySource::parse(given, "approval.webhook_secret")?),
            _ => return Err(super::unknown_key("approval", key, Self::KEYS, given.origin)),
        }
        Ok(())
    }

    pub(crate) fn resolve(self) -> Approval {
        Approval {
            mode: self.mode.unwrap_or(Setting::default(Mode::Never)),
            rules: self.rules,
            timeout: self.timeout.unwrap_or(Setting::default(Span::from_secs(300))),
            on_timeout: self.on_timeout.unwrap_or(Setting::default(OnTimeout(approvals::OnTimeout::Refuse))),
            decided_by: self.decided_by.unwrap_or(Setting::default(DecidedBy::Operator)),
            webhook: self.webhook.unwrap_or(Setting::default(String::new())),
            webhook_secret: self.webhook_secret.unwrap_or(Setting::default(KeySource::None)),
        }
    }
}

impl Approval {
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let unset = Setting::default(PathBuf::new());
        let rules = self.rules.as_ref().unwrap_or(&unset);
        vec![
            self.fixed(),
            Entry::shown("approval.rules", rules.display(), rules),
            Entry::new("approval.timeout", &self.timeout),
            Entry::new("approval.on_timeout", &self.on_timeout),
            Entry::new("approval.decided_by", &self.decided_by),
            Entry::new("approval.webhook", &self.webhook),
            Entry::new("approval.webhook_secret", &self.webhook_secret),
        ]
    }

    /// Whether programs are held back for the same reason as in another configuration.
    pub(crate) fn has_mode_of(&self, other: &Self) -> bool {
        *self.mode == *other.mode
    }

    /// The mode alone, which holds as long as a server runs.
    pub(crate) fn fixed(&self) -> Entry {
        Entry::new("approval.mode", &self.mode)
    }

    /// What holds, in words.
    pub(crate) fn told(&self) -> String {
        match (*self.mode, &self.rules) {
            (Mode::Rules, Some(file)) => format!("the rules are those of {}", file.display()),
            (Mode::Rules, None) => "the usual rules hold".to_owned(),
            (mode, _) => format!("the mode is {mode}"),
        }
    }

    fn policy(&self) -> anyhow::Result<Rules> {
        let Some(file) = &self.rules else { return Ok(Rules::usual()) };
        let text = std::fs::read_to_string(&**file).map_err(|error| format!("cannot be read: {error}"));
        let rules = text.and_then(|text| Rules::parse(&text).map_err(|error| error.to_string()));
        rules.map_err(|why| crate::exit::usage(format!("{}: the rules in {}: {why}", file.origin, file.display())))
    }

    /// Which programs somebody is asked about.
    pub(crate) fn mode(&self) -> anyhow::Result<ApprovalMode> {
        Ok(match *self.mode {
            Mode::Never => ApprovalMode::Never,
            Mode::Always => ApprovalMode::Always,
            Mode::Rules => ApprovalMode::Rules(Arc::new(self.policy()?)),
        })
    }

    /// As the server knows it.
    pub(crate) fn settings(&self, surroundings: &Surroundings) -> anyhow::Result<ApprovalPolicy> {
        let webhook = if self.webhook.is_empty() {
            None
        } else {
            let secret = self.webhook_secret.fetch_for("approval.webhook_secret", surroundings)?;
            let webhook = match &secret {
                Some(secret) => Webhook::new(&self.webhook, secret.expose()),
                None => Err("it needs a secret to be signed with; add: webhook_secret = \"env:NAME\"".to_owned()),
            };
            Some(webhook.map_err(|why| crate::exit::usage(format!("{}: the webhook: {why}", self.webhook.origin)))?)
        };
        let (timeout, on_timeout) = (self.timeout.duration(), self.on_timeout.0);
        let by_key = *self.decided_by == DecidedBy::Key;
        Ok(ApprovalPolicy { mode: self.mode()?, timeout, on_timeout, by_key, webhook })
    }
}

impl FromStr for Mode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "never" => Ok(Self::Never),
            "always" => Ok(Self::Always),
            "rules" => Ok(Self::Rules),
            _ => Err("is not never, always or rules"),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Never => "never",
            Self::Always => "always",
            Self::Rules => "rules",
        })
    }
}

impl FromStr for DecidedBy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "operator" => Ok(Self::Operator),
            "key" => Ok(Self::Key),
            _ => Err("is neither operator nor key"),
        }
    }
}

impl fmt::Display for DecidedBy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Operator => "operator",
            Self::Key => "key",
        })
    }
}

impl FromStr for OnTimeout {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "refuse" => Ok(Self(approvals::OnTimeout::Refuse)),
            "allow" => Ok(Self(approvals::OnTimeout::Allow)),
            _ => Err("is neither refuse nor allow"),
        }
    }
}

impl fmt::Display for OnTimeout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.0 {
            approvals::OnTimeout::Refuse => "refuse",
            approvals::OnTimeout::Allow => "allow",
        })
    }
}
