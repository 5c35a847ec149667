//! `aludel audit`: the programs that were run, and the decisions about them.

mod archive;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use aludel_store::{AuditRecord, TamperEvidence};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use jiff::civil::Date;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::{console, state, terminal};

/// Entries that are read at once, each with its program, which may have a megabyte.
const AT_ONCE: usize = 64;
/// Interval at which new entries are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Characters of a program that a line shows.
const SHOWN_CHARACTERS: usize = 60;

/// The actor of an entry about a program that the rules allowed.
const UNASKED: &str = "nobody is asked";

/// Show the audit log: all programs that ran, and all decisions
///
/// The server, `aludel ask` and `aludel demo` write it, and it can only be added to. Each entry holds a digest of all before it: `--verify`
/// finds entries that were changed or taken out, but not those taken off the end; compare the number of entries with what you noted before.
/// Entries count as stored by their keys (server.storage): `archive` moves old ones to a file.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    command: Option<AuditCommand>,
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

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Move old entries, with their programs, to a new file of JSON lines; the log goes on from their digest
    Archive {
        /// Target, a file that is not there yet
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Move what is older than this day, such as 2026-11-01, which begins in UTC
        #[arg(long, value_name = "DATE")]
        before: Date,
    },
    /// Check that nothing was changed in an archive, and print the digest that the log goes on from
    Verify {
        /// The archive
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub(crate) async fn run(args: AuditArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let mut console = Console::new();
    if let Some(AuditCommand::Verify { file }) = &args.command {
        let opened = File::open(file).map_err(|error| usage(format!("the archive {}: {error}", file.display())))?;
        let verified = archive::verify(opened).with_context(|| format!("the archive {}", file.display()))?;
        console.line(StandardStream::Stdout, &verified.to_string())?;
        return Ok(Exit::Success);
    }
    let store = state::open_beside(context).await?;
    if let Some(AuditCommand::Archive { file, before }) = &args.command {
        match archive::write(&store, file, *before).await? {
            Some(archived) => console.line(StandardStream::Stdout, &archived.to_string())?,
            None => console::status(&format!("there is nothing before {before} to be archived")),
        }
        return Ok(Exit::Success);
    }
    if args.verify {
        let start = store.audit_log_start().await.context("cannot read the audit log")?;
        let archived = match start.number {
            0 => String::new(),
            number => format!("; {number} of them are archived, up to digest {}", start.chain),
        };
        return match store.verify_audit_log().await.context("cannot read the audit log")? {
            Ok(entries) => {
                console.line(StandardStream::Stdout, &format!("{entries} entries, unchanged{archived}"))?;
                Ok(Exit::Success)
            }
            Err(TamperEvidence { number }) => {
                Err(anyhow::anyhow!("the audit log was changed: entry {number} is not as it was written"))
            }
        };
    }
    let mut after = args.after;
    loop {
        let records = store.audit_log(after, AT_ONCE).await.context("cannot read the audit log")?;
        for record in &records {
            after = record.number;
            console
                .line(StandardStream::Stdout, &if args.json { serde_json::to_string(record)? } else { line(record) })?;
        }
        if records.len() == AT_ONCE {
            continue;
        }
        if !args.follow {
            return Ok(Exit::Success);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        if has_lost_reader() {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
    }
}

/// Returns true if standard output is a pipe that nobody reads any more.
fn has_lost_reader() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled.iter().any(|stdout| stdout.revents().contains(PollFlags::ERR))
}

/// One entry as text for people. All its fields may come from a model.
fn line(record: &AuditRecord) -> String {
    let at = jiff::Timestamp::from_millisecond(record.at_ms).map_or_else(|_| "?".to_owned(), |at| format!("{at:.3}"));
    let program = terminal::excerpt(record.code.as_deref().unwrap_or_default(), SHOWN_CHARACTERS);
    let (tenant, request) = (record.tenant.as_str(), &record.request);
    let who = match record.actor.as_str() {
        "" => String::new(),
        UNASKED => format!(", {UNASKED}"),
        actor => format!(" by {actor}"),
    };
    let outcome = if record.outcome.is_empty() { String::new() } else { format!(": {}", record.outcome) };
    let event = terminal::excerpt(&format!("{}{who}{outcome}", record.event), 120);
    format!("{:>6}  {at}  {tenant}  {request}  {:.12}  {event}  | {program}", record.number, record.sha256)
}
