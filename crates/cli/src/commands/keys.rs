//! `aludel keys`: who may use the server.

use aludel_agent::Secret;
use aludel_store::{KeyId, KeyRecord, Store};
use anyhow::Context as _;
use clap::Subcommand;

use super::Context;
use crate::console::{Console, Stream};
use crate::exit::{Exit, usage};
use crate::{config, console, state, terminal};

/// Characters of a key that was made elsewhere: LiteLLM's have 25.
const LEAST: usize = 24;

/// Make, list or revoke the API keys of the server
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
    },
    /// List the keys
    List,
    /// Refuse a key from now on; what was made with it stays
    Revoke {
        /// Its id, key_…, or its name if no other key has it
        #[arg(value_name = "ID|NAME")]
        key: String,
    },
}

pub(crate) async fn run(command: KeysCommand, context: &Context) -> anyhow::Result<Exit> {
    let mut console = Console::new();
    match command {
        KeysCommand::Create { name, key } => {
            let given = match key {
                Some(key) => given(&key, context)?,
                None => None,
            };
            let directory = state::directory(&context.config.server.data);
            let store = Store::open_beside(&directory).await;
            let store = store.with_context(|| format!("cannot open the server's state in {}", directory.display()))?;
            if let Some(secret) = given {
                let added = store.add_key(&name, secret.expose()).await.context("cannot add the key")?;
                let id =
                    added.ok_or_else(|| usage("--key: this key is here already; `aludel keys list` shows them"))?;
                console.line(Stream::Stdout, &format!("added {id}"))?;
                return Ok(Exit::Success);
            }
            let key = store.create_key(&name).await.context("cannot make a key")?;
            console::tell(&format!("made {}; this is the key, which is shown only now:", key.id));
            console.line(Stream::Stdout, &key.secret)?;
        }
        KeysCommand::List => {
            let keys = state::open_beside(context).await?.keys().await.context("cannot read the keys")?;
            if keys.is_empty() {
                console::tell(
                    "there are no keys: the server serves this machine alone; `aludel keys create` makes one",
                );
            }
            for key in keys {
                console.line(Stream::Stdout, &line(&key))?;
            }
        }
        KeysCommand::Revoke { key } => {
            let store = state::open_beside(context).await?;
            let id = find(&store.keys().await.context("cannot read the keys")?, &key)?;
            if !store.revoke_key(id.clone()).await.context("cannot revoke the key")? {
                return Err(unknown(&key));
            }
            console.line(Stream::Stdout, &format!("revoked {id}"))?;
        }
    }
    Ok(Exit::Success)
}

/// Finds a key by its id, or by a name that no other key has that can still be used.
fn find(keys: &[KeyRecord], given: &str) -> anyhow::Result<KeyId> {
    if let Some(id) = KeyId::parse(given) {
        return Ok(id);
    }
    let named: Vec<_> = keys.iter().filter(|key| key.name == given && key.revoked_at.is_none()).collect();
    match named.as_slice() {
        [key] => Ok(key.id.clone()),
        [] => Err(unknown(given)),
        several => {
            let ids: Vec<_> = several.iter().map(|key| format!("{} {}", key.id, key.hint)).collect();
            Err(usage(format!("several keys are called {}: {}; give the id", terminal::name(given), ids.join(", "))))
        }
    }
}

fn unknown(key: &str) -> anyhow::Error {
    usage(format!("there is no key {}; `aludel keys list` shows them", terminal::name(key)))
}

/// A key that was made elsewhere. Whoever could guess it would be let in.
fn given(text: &str, context: &Context) -> anyhow::Result<Option<Secret>> {
    let secret = config::secret("--key", text, &context.surroundings)?;
    if secret.as_ref().is_some_and(|secret| secret.expose().len() < LEAST) {
        return Err(usage(format!("--key: a key needs {LEAST} characters, all of them random; this one is too short")));
    }
    Ok(secret)
}

fn line(key: &KeyRecord) -> String {
    let state = if key.revoked_at.is_some() { "revoked" } else { "active" };
    format!("{}  {:8}{state:9}{}", key.id, key.hint, terminal::name(&key.name))
}
