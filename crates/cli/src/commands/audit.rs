//! `aludel audit`: what was run, and who allowed it.

use std::time::Duration;

use aludel_store::{AuditRecord, Tampered};
use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::Context;
use crate::console::{Console, Stream};
use crate::exit::Exit;
use crate::{state, terminal};

/// Entries that are read at once.
const AT_ONCE: usize = 500;
/// How often is looked for new ones.
const PAUSE: Duration = Duration::from_millis(500);
/// Characters of a program that a line shows.
const SHOWN: usize = 60;

/// Show the audit log: every program that was decided about or run
///
/// The server, `aludel ask` and `aludel demo` write it, and it can only be added to. Each entry holds a digest of all before it: `--verify`
/// finds entries that were changed or taken out, but not those taken off the end; compare the number of entries with what you noted before.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Print one JSON object a line, with the whole programs
    #[arg(long)]
    json: bool,
    /// Begin after this entry
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: i64,
    /// Go on and print new entries as they come
    #[arg(long)]
    follow: bool,
    /// Check that nothing was changed, and print how many entries there are
    #[arg(long, conflicts_with_all = ["json", "after", "follow"])]
    verify: bool,
}

pub(crate) async fn run(args: AuditArgs, context: &Context) -> anyhow::Result<Exit> {
    let store = state::open_beside(context).await?;
    let mut console = Console::new();
    if args.verify {
        return match store.verify_audit_log().await.context("cannot read the audit log")? {
            Ok(entries) => {
                console.line(Stream::Stdout, &format!("{entries} entries, unchanged"))?;
                Ok(Exit::Success)
            }
            Err(Tampered { number }) => {
                Err(anyhow::anyhow!("the audit log was changed: entry {number} is not as it was written"))
            }
        };
    }
    let mut after = args.after;
    loop {
        let records = store.audit_log(after, AT_ONCE).await.context("cannot read the audit log")?;
        for record in &records {
            after = record.number;
            console.line(Stream::Stdout, &if args.json { whole(record) } else { line(record) })?;
        }
        if records.len() == AT_ONCE {
            continue;
        }
        if !args.follow {
            return Ok(Exit::Success);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn whole(record: &AuditRecord) -> String {
    json!({
        "number": record.number, "at_ms": record.at_ms, "tenant": record.tenant.as_str(), "event": record.event,
        "request": record.request, "container": record.container, "sha256": record.sha256, "code": record.code,
        "actor": record.actor, "outcome": record.outcome,
    })
    .to_string()
}

/// One entry for a person. Everything in it may come from a model.
fn line(record: &AuditRecord) -> String {
    let at = jiff::Timestamp::from_millisecond(record.at_ms).map_or_else(|_| "?".to_owned(), |at| format!("{at:.3}"));
    let program = terminal::excerpt(&record.code, SHOWN);
    let (tenant, request) = (record.tenant.as_str(), &record.request);
    let who = if record.actor.is_empty() { String::new() } else { format!(" by {}", record.actor) };
    let outcome = if record.outcome.is_empty() { String::new() } else { format!(": {}", record.outcome) };
    let told = terminal::excerpt(&format!("{}{who}{outcome}", record.event), 120);
    format!("{:>6}  {at}  {tenant}  {request}  {:.12}  {told}  | {program}", record.number, record.sha256)
}
