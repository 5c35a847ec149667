//! `aludel keys`: the keys of the server.

use std::str::FromStr;
use std::time::Duration;

use aludel_agent::{Secret, size};
use aludel_store::{DailyBudget, EraseOutcome, KeyId, KeyRecord, NewKey, Store};
use anyhow::Context as _;
use clap::Subcommand;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::json;

use crate::config::DurationValue;
use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::{config, console, state, terminal, wrap};

/// Least length of a key from elsewhere, characters: LiteLLM's have 25.
const LEAST: usize = 24;
/// Columns of names in the list of keys; longer ones shift the rest of their line.
const MAX_PADDED: usize = 32;

/// Make, list, limit, rotate, expire, revoke or erase the API keys of the server
///
/// Each key is a user of its own: files, containers, conversations and responses made with one cannot be seen with another.
/// Changes hold within a second, also for a server that is running.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a key and print it; it cannot be shown again
    Create {
        /// Name of the key
        #[arg(value_name = "NAME", default_value = "")]
        name: String,
        /// Place of a key that clients have already, env:NAME or file:PATH, to be taken instead of a new one
        #[arg(long, value_name = "WHERE")]
        key: Option<String>,
        /// Refuse it after this time, such as 30d, or from this day on, such as 2027-01-01 (UTC)
        #[arg(long, value_name = "WHEN")]
        expires: Option<ExpiryTime>,
    },
    /// List the keys
    List {
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Change the time from which on a key is refused; one that has expired is served again
    Expire {
        /// Its id, key_…, or its name if no other key has it
        #[arg(value_name = "ID|NAME")]
        key: String,
        /// From now, such as 30d, or the beginning of a day, such as 2027-01-01 (UTC), or `never`
        #[arg(value_name = "WHEN")]
        when: ExpiryTime,
    },
    /// Bound what is done for a key on a day of UTC; what is not given stays as it is
    ///
    /// A key that has used up a budget may still read, delete and cancel. Counts are some seconds late, and what began goes on to its end.
    /// Tokens are those that models' servers tell: those of requests that are handed on as they were are not known.
    Limit {
        /// Its id, key_…, or its name if no other key has it
        #[arg(value_name = "ID|NAME")]
        key: String,
        /// Requests for which a model is asked, or `none`
        #[arg(long, value_name = "NUMBER")]
        requests: Option<BudgetLimit>,
        /// Tokens that models read and write, or `none`
        #[arg(long, value_name = "NUMBER")]
        tokens: Option<BudgetLimit>,
        /// Seconds for which programs run, or `none`
        #[arg(long, value_name = "NUMBER")]
        program_seconds: Option<BudgetLimit>,
    },
    /// Give a key a new secret and print it; what was made with the key stays its own
    Rotate {
        /// Its id, key_…, or its name if no other key has it
        #[arg(value_name = "ID|NAME")]
        key: String,
        /// Serve the former secret for this time, such as 1d, or up to this day, such as 2027-01-01 (UTC); else no longer
        #[arg(long, value_name = "WHEN")]
        former_until: Option<ExpiryTime>,
    },
    /// Refuse a key from now on; what was made with it stays
    Revoke {
        /// Its id, key_…, or its name if no other key has it
        #[arg(value_name = "ID|NAME")]
        key: String,
    },
    /// Delete all that a revoked key stored: files, containers, answers, conversations
    ///
    /// This cannot be undone. The audit log keeps the programs that ran; `aludel audit archive` takes old ones out. Counts of work, which
    /// `aludel usage` shows, stay too.
    Erase {
        /// Its id, key_…, or its name if no other revoked key has it
        #[arg(value_name = "ID|NAME")]
        key: String,
    },
}

/// Shows a secret that is stored nowhere: where standard output takes nothing, such as a full disk, on standard error.
fn show(console: &mut Console, secret: &str) -> anyhow::Result<()> {
    let shown = console.line(StandardStream::Stdout, secret);
    shown
        .or_else(|error| console.line(StandardStream::Stderr, secret).map_err(|_| error))
        .context("cannot show the key")
}

pub(crate) async fn run(command: KeysCommand, context: &CommandContext) -> anyhow::Result<Exit> {
    match command {
        KeysCommand::Create { name, key, expires } => {
            let expires_at = expires.and_then(|ExpiryTime(at)| at);
            match key {
                Some(key) => add(context, &name, &key, expires_at).await,
                None => create(context, &name, expires_at).await,
            }
        }
        KeysCommand::List { json } => list(context, json).await,
        KeysCommand::Expire { key, when: ExpiryTime(at) } => expire(context, &key, at).await,
        KeysCommand::Limit { key, requests, tokens, program_seconds } => {
            limit(context, &key, requests, tokens, program_seconds).await
        }
        KeysCommand::Rotate { key, former_until } => rotate(context, &key, former_until).await,
        KeysCommand::Revoke { key } => revoke(context, &key).await,
        KeysCommand::Erase { key } => erase(context, &key).await,
    }?;
    Ok(Exit::Success)
}

async fn open(context: &CommandContext) -> anyhow::Result<Store> {
    let directory = state::directory(&context.config.server.data);
    let store = Store::open_beside(&directory).await;
    store.with_context(|| format!("cannot open the server's state in {}", directory.display()))
}

/// Adds a key that the operator chose.
async fn add(context: &CommandContext, name: &str, key: &str, expires_at: Option<i64>) -> anyhow::Result<()> {
    let given = read_secret(key, context)?;
    let Some(secret) = given else { return create(context, name, expires_at).await };
    let added = open(context).await?.add_key(name, secret.expose(), expires_at).await.context("cannot add the key")?;
    let id = added.ok_or_else(|| usage("--key: this key is here already; `aludel keys list` shows them"))?;
    Console::new().line(StandardStream::Stdout, &format!("added {id}"))?;
    Ok(())
}

async fn create(context: &CommandContext, name: &str, expires_at: Option<i64>) -> anyhow::Result<()> {
    let key = open(context).await?.create_key(name, expires_at).await.context("cannot make a key")?;
    console::status(&format!("made {}; this is the key, which is shown only now:", key.id));
    show(&mut Console::new(), &key.secret)
}

async fn list(context: &CommandContext, json: bool) -> anyhow::Result<()> {
    let mut console = Console::new();
    let keys = state::open_beside(context).await?.keys().await.context("cannot read the keys")?;
    if json {
        for key in &keys {
            console.line(StandardStream::Stdout, &object(key).to_string())?;
        }
        return Ok(());
    }
    if keys.is_empty() {
        console::status("there are no keys: the server serves this machine alone; `aludel keys create` makes one");
    }
    let width = keys.iter().map(|key| terminal::name(&key.name).chars().count()).max().unwrap_or(0).min(MAX_PADDED);
    for key in keys {
        console.line(StandardStream::Stdout, &wrap::hanging(&line(&key, width), 2))?;
    }
    Ok(())
}

async fn expire(context: &CommandContext, key: &str, at: Option<i64>) -> anyhow::Result<()> {
    let mut console = Console::new();
    let store = state::open_beside(context).await?;
    let id = find(&store.keys().await.context("cannot read the keys")?, key, IS_SERVED)?;
    if !store.set_expiry(id.clone(), at).await.context("cannot change the key")? {
        return Err(unknown(key));
    }
    let until = at.map_or_else(|| "never expires".to_owned(), |at| format!("expires at {}", time(at)));
    console.line(StandardStream::Stdout, &format!("{id} {until}"))?;
    Ok(())
}

async fn limit(
    context: &CommandContext,
    key: &str,
    requests: Option<BudgetLimit>,
    tokens: Option<BudgetLimit>,
    program_seconds: Option<BudgetLimit>,
) -> anyhow::Result<()> {
    let mut console = Console::new();
    let store = state::open_beside(context).await?;
    let keys = store.keys().await.context("cannot read the keys")?;
    let id = find(&keys, key, IS_SERVED)?;
    let record = keys.iter().find(|key| key.id == id).ok_or_else(|| unknown(key))?;
    let changed = |given: Option<BudgetLimit>, before| given.map_or(before, |BudgetLimit(most)| most);
    let budget = DailyBudget {
        requests: changed(requests, record.budget.requests),
        tokens: changed(tokens, record.budget.tokens),
        program_seconds: changed(program_seconds, record.budget.program_seconds),
    };
    if !store.set_budget(id.clone(), budget).await.context("cannot change the key")? {
        return Err(unknown(key));
    }
    let bounds = bounds(&budget);
    let bounds = if bounds.is_empty() { "has no budget".to_owned() } else { bounds };
    console.line(StandardStream::Stdout, &format!("{id} {bounds}"))?;
    Ok(())
}

async fn rotate(context: &CommandContext, key: &str, former_until: Option<ExpiryTime>) -> anyhow::Result<()> {
    let former_until = match former_until {
        None => 0,
        Some(ExpiryTime(Some(at))) => at,
        Some(ExpiryTime(None)) => return Err(usage("--former-until: give a time or a day")),
    };
    let store = state::open_beside(context).await?;
    let id = find(&store.keys().await.context("cannot read the keys")?, key, IS_SERVED)?;
    let rotated = store.rotate_key(id, former_until).await.context("cannot change the key")?;
    let NewKey { id, secret } = rotated.ok_or_else(|| unknown(key))?;
    console::status(&format!("{id} has a new secret, which is shown only now:"));
    show(&mut Console::new(), &secret)?;
    Ok(())
}

async fn revoke(context: &CommandContext, key: &str) -> anyhow::Result<()> {
    let mut console = Console::new();
    let store = state::open_beside(context).await?;
    let id = find(&store.keys().await.context("cannot read the keys")?, key, IS_SERVED)?;
    if !store.revoke_key(id.clone()).await.context("cannot revoke the key")? {
        return Err(unknown(key));
    }
    console.line(StandardStream::Stdout, &format!("revoked {id}"))?;
    Ok(())
}

async fn erase(context: &CommandContext, key: &str) -> anyhow::Result<()> {
    let mut console = Console::new();
    let store = state::open_beside(context).await?;
    let id = find(&store.keys().await.context("cannot read the keys")?, key, IS_REVOKED)?;
    let (bytes, left) = loop {
        match store.erase_key(id.clone()).await.context("cannot erase it")? {
            EraseOutcome::Erased { bytes, left } => break (bytes, left),
            EraseOutcome::TooEarly { seconds } => {
                console::status(&format!("waiting {seconds} s, until no server serves the key any more"));
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
            EraseOutcome::NotRevoked => {
                return Err(usage(format!("{id} is still served; `aludel keys revoke {id}` first")));
            }
            EraseOutcome::Unknown => return Err(unknown(key)),
        }
    };
    console.line(StandardStream::Stdout, &format!("erased {id}: {}", size(bytes)))?;
    if left > 0 {
        let left = size(left);
        console::status(&format!("the audit log has {left} of it; `aludel audit archive` takes old entries out"));
    }
    Ok(())
}

/// The keys that are looked for by their names, except for an erasure.
const IS_SERVED: fn(&KeyRecord) -> bool = |key| key.revoked_at.is_none();

/// The keys that can be erased.
const IS_REVOKED: fn(&KeyRecord) -> bool = |key| key.revoked_at.is_some();

/// Finds a key by its id, or by its name if only one such key has it.
fn find(keys: &[KeyRecord], given: &str, is_meant: fn(&KeyRecord) -> bool) -> anyhow::Result<KeyId> {
    if let Some(id) = KeyId::parse(given) {
        return Ok(id);
    }
    let named: Vec<_> = keys.iter().filter(|key| key.name == given && is_meant(key)).collect();
    match named.as_slice() {
        [key] => Ok(key.id.clone()),
        [] => match keys.iter().rfind(|key| key.name == given) {
            Some(KeyRecord { id, revoked_at: Some(_), .. }) => {
                Err(usage(format!("{} ({id}) is revoked", terminal::name(given))))
            }
            Some(KeyRecord { id, .. }) => {
                let name = terminal::name(given);
                Err(usage(format!("{name} ({id}) is still served; `aludel keys revoke {id}` first")))
            }
            None => Err(unknown(given)),
        },
        several => {
            let ids: Vec<_> = several.iter().map(|key| format!("{} {}", key.id, key.hint)).collect();
            Err(usage(format!("several keys are called {}: {}; give the id", terminal::name(given), ids.join(", "))))
        }
    }
}

fn unknown(key: &str) -> anyhow::Error {
    usage(format!("there is no key {}; `aludel keys list` shows them", terminal::name(key)))
}

/// A key from elsewhere. It must be long, because a guessed key would give access.
fn read_secret(text: &str, context: &CommandContext) -> anyhow::Result<Option<Secret>> {
    let secret = config::secret("--key", text, &context.host)?;
    if secret.as_ref().is_some_and(|secret| secret.expose().len() < LEAST) {
        return Err(usage(format!("--key: a key needs {LEAST} characters, all of them random; this one is too short")));
    }
    Ok(secret)
}

/// The expiry of a key, seconds since 1970; `None` for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpiryTime(Option<i64>);

impl FromStr for ExpiryTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self(None));
        }
        let now = Timestamp::now().as_second();
        let at = match text.parse::<Date>() {
            Ok(day) => day.to_zoned(TimeZone::UTC).map_err(|error| error.to_string())?.timestamp().as_second(),
            Err(no_day) if text.split('-').count() == 3 => return Err(format!("is no day: {no_day}")),
            Err(_) => {
                let span: DurationValue =
                    text.parse().map_err(|error| format!("{error}; a day like 2027-01-01, or never"))?;
                now + i64::try_from(span.duration().as_secs()).unwrap_or(i64::MAX - now)
            }
        };
        if at <= now {
            Err("is over already; `aludel keys revoke` refuses a key now".to_owned())
        } else {
            Ok(Self(Some(at)))
        }
    }
}

/// A part of a budget; `None` is without an end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BudgetLimit(Option<u64>);

impl FromStr for BudgetLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        // The state stores it as a signed number.
        let most = text.parse().ok().filter(|most| *most <= i64::MAX.unsigned_abs());
        most.map(|most| Self(Some(most))).ok_or_else(|| "is a whole number, or none".to_owned())
    }
}

/// A budget as text, empty if there is none.
fn bounds(budget: &DailyBudget) -> String {
    let DailyBudget { requests, tokens, program_seconds } = budget;
    let parts = [(requests, "requests"), (tokens, "tokens"), (program_seconds, "seconds of programs")];
    let parts: Vec<_> = parts.iter().filter_map(|(most, of)| most.map(|most| format!("{most} {of}"))).collect();
    if parts.is_empty() { String::new() } else { format!("{} a day", parts.join(", ")) }
}

/// A time as people and programs read it.
fn time(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// The word for the state of a key.
fn state_of(key: &KeyRecord) -> &'static str {
    match key {
        KeyRecord { revoked_at: Some(_), .. } => "revoked",
        key if key.has_expired() => "expired",
        _ => "active",
    }
}

/// A key as a JSON object: times are seconds since 1970, and bounds of a day without an end are null.
fn object(key: &KeyRecord) -> serde_json::Value {
    let KeyRecord { id, name, hint, created_at, revoked_at, expires_at, former_until, budget } = key;
    json!({
        "id": id.as_str(), "name": name, "hint": hint, "state": state_of(key), "created_at": created_at,
        "expires_at": expires_at, "revoked_at": revoked_at, "former_until": former_until,
        "per_day": {
            "requests": budget.requests, "tokens": budget.tokens, "program_seconds": budget.program_seconds,
        },
    })
}

/// A key, with its name in so many columns.
fn line(key: &KeyRecord, width: usize) -> String {
    let state = state_of(key);
    let until = key.expires_at.map(|at| format!("  until {}", time(at))).unwrap_or_default();
    let former = key.former_until.map(|at| format!("  former secret until {}", time(at))).unwrap_or_default();
    let bounds = bounds(&key.budget);
    let bounds = if bounds.is_empty() { bounds } else { format!("  {bounds}") };
    let name = terminal::name(&key.name);
    format!("{}  {:8}{state:9}{name:width$}{until}{former}{bounds}", key.id, key.hint).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_expires_after_a_span_or_on_a_day() {
        let now = Timestamp::now().as_second();
        let when = |text: &str| text.parse::<ExpiryTime>().map(|ExpiryTime(at)| at);
        assert_eq!(when("never"), Ok(None));
        assert!(when("30d").unwrap().is_some_and(|at| (at - now - 30 * 86_400).abs() <= 1));
        assert_eq!(when("2200-01-01"), Ok(Some(7_258_118_400)));
        for (text, words) in [
            ("2020-01-01", "over already"),
            ("soon", "2027-01-01"),
            ("0s", "no time"),
            ("", "number"),
            ("2200-02-30", "no day"),
        ] {
            assert!(when(text).unwrap_err().contains(words), "{text}");
        }
    }
}
