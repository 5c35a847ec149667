//! `aludel usage`: requests, tokens and time of each key.

use std::collections::BTreeMap;
use std::time::Duration;

use aludel_agent::size;
use aludel_store::{KeyRecord, MeteredDay, MeteredWork, Tenant, today};
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use jiff::ToSpan as _;
use jiff::civil::{Date, date};
use serde_json::json;

use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::{color, console, json, state, terminal};

/// Days that are shown by default.
const DAYS: i64 = 30;
const EPOCH: Date = date(1970, 1, 1);
const TITLES: [&str; 6] = ["requests", "tokens in", "tokens out", "programs", "running", "sandboxes"];

/// Show requests, tokens, programs and their time for each key
///
/// Days are those of UTC, and are kept for 400 days. Tokens are those that models' servers tell; of requests that were handed on as they
/// were, only the number is known. A running server stores its counts some seconds later. Sandboxes of `aludel run` without a server are
/// nobody's.
#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// Begin with this day, such as 2026-11-01 [default: 30 days ago]
    #[arg(long, value_name = "DATE")]
    since: Option<Date>,
    /// A line for each
    #[arg(long, value_enum, default_value_t = UsageGrouping::Key)]
    by: UsageGrouping,
    /// Print one JSON object for each key, day and model
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UsageGrouping {
    /// Key, with the bytes that it stores
    Key,
    /// Day
    Day,
    /// Model; programs that clients sent themselves have none
    Model,
}

pub(super) async fn run(args: &UsageArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let store = state::open_beside(context).await?;
    let since = match args.since {
        Some(day) => {
            number_of(day).ok_or_else(|| usage(format!("--since: {day} is no day that can be counted from")))?
        }
        None => today() - DAYS,
    };
    let metered = store.metered(since).await.context("cannot read the counts")?;
    let keys = store.keys().await.context("cannot read the keys")?;
    if args.json {
        for row in &metered {
            json::print(&line(row, &keys))?;
        }
        return Ok(Exit::Success);
    }
    if metered.is_empty() {
        console::status(&format!("nothing was done since {}", date_of(since)));
        return Ok(Exit::Success);
    }
    let mut sums: BTreeMap<String, (MeteredWork, Option<Tenant>)> = BTreeMap::new();
    for row in metered {
        let (name, tenant) = match args.by {
            UsageGrouping::Key => (name_of(&row.tenant, &keys), Some(row.tenant)),
            UsageGrouping::Day => (date_of(row.day), None),
            UsageGrouping::Model if row.model.is_empty() => ("(none)".to_owned(), None),
            UsageGrouping::Model => (row.model, None),
        };
        let (sum, of) = sums.entry(name).or_default();
        *sum += row.work;
        *of = tenant;
    }
    let mut lines = Vec::new();
    let mut all = MeteredWork::default();
    for (name, (work, tenant)) in sums {
        let stored = match tenant {
            Some(tenant) => size(store.bytes_of(&tenant).await.context("cannot read the bytes that are stored")?),
            None => String::new(),
        };
        all += work;
        lines.push((name, cells(&work), stored));
    }
    if lines.len() > 1 {
        lines.push(("all".to_owned(), cells(&all), String::new()));
    }
    print(args.by, &lines)
}

/// Prints lines below each other.
fn print(by: UsageGrouping, lines: &[(String, [String; 6], String)]) -> anyhow::Result<Exit> {
    let mut console = Console::new();
    let first = match by {
        UsageGrouping::Key => "key",
        UsageGrouping::Day => "day",
        UsageGrouping::Model => "model",
    };
    let chars = |text: &str| text.chars().count();
    let name_width = lines.iter().map(|(name, ..)| chars(name)).chain([first.len()]).max().unwrap_or_default();
    let widths: Vec<usize> = (0..TITLES.len())
        .map(|column| {
            lines
                .iter()
                .map(|(_, cells, _)| chars(&cells[column]))
                .chain([TITLES[column].len()])
                .max()
                .unwrap_or_default()
        })
        .collect();
    let columns = name_width + widths.iter().map(|width| width + 2).sum::<usize>();
    if terminal::room().is_some_and(|room| columns > room) {
        return print_narrow(&mut console, lines);
    }
    let stored = if by == UsageGrouping::Key { "  stored" } else { "" };
    let titles: String = TITLES.iter().zip(&widths).map(|(title, width)| format!("  {title:>width$}")).collect();
    console.line(StandardStream::Stdout, &color::strong(&format!("{first:name_width$}{titles}{stored}")))?;
    for (name, cells, stored) in lines {
        let cells: String = cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect();
        let name = terminal::name(name);
        console.line(StandardStream::Stdout, format!("{name:name_width$}{cells}  {stored}").trim_end())?;
    }
    Ok(Exit::Success)
}

/// Prints a figure a line.
fn print_narrow(console: &mut Console, lines: &[(String, [String; 6], String)]) -> anyhow::Result<Exit> {
    for (name, cells, stored) in lines {
        console.line(StandardStream::Stdout, &color::strong(&terminal::name(name)))?;
        let titles = TITLES.iter().chain([&"stored"]);
        for (title, cell) in titles.zip(cells.iter().chain([stored])).filter(|(_, cell)| !cell.is_empty()) {
            console.line(StandardStream::Stdout, &format!("  {title:12}{cell}"))?;
        }
    }
    Ok(Exit::Success)
}

fn cells(work: &MeteredWork) -> [String; 6] {
    [
        work.requests.to_string(),
        work.input_tokens.to_string(),
        work.output_tokens.to_string(),
        work.programs.to_string(),
        time(work.program_ms),
        time(work.sandbox_ms),
    ]
}

/// A time as text: in seconds below a minute, and in hours and minutes above an hour.
fn time(milliseconds: u64) -> String {
    let seconds = Duration::from_millis(milliseconds).as_secs();
    match seconds {
        0..60 => format!("{:.1} s", milliseconds as f64 / 1000.0),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

fn line(row: &MeteredDay, keys: &[KeyRecord]) -> serde_json::Value {
    let MeteredWork { requests, input_tokens, output_tokens, programs, program_ms, sandbox_ms } = row.work;
    json!({
        "key": row.tenant.as_str(), "name": name_of(&row.tenant, keys), "day": date_of(row.day), "model": row.model,
        "requests": requests, "input_tokens": input_tokens, "output_tokens": output_tokens, "programs": programs,
        "program_ms": program_ms, "sandbox_ms": sandbox_ms,
    })
}

/// The name of a key with the end of its secret, or the tenant's own.
fn name_of(tenant: &Tenant, keys: &[KeyRecord]) -> String {
    match keys.iter().find(|key| key.id.as_str() == tenant.as_str()) {
        Some(key) => label(key),
        None => tenant.as_str().to_owned(),
    }
}

fn label(key: &KeyRecord) -> String {
    if key.name.is_empty() { key.hint.clone() } else { format!("{} {}", key.name, key.hint) }
}

/// The number of a day, from 1970-01-01.
fn number_of(day: Date) -> Option<i64> {
    Some(i64::from(day.since(EPOCH).ok()?.get_days()))
}

fn date_of(day: i64) -> String {
    EPOCH.checked_add(day.days()).map_or_else(|_| format!("day {day}"), |date| date.to_string())
}

#[cfg(test)]
mod tests {
    use aludel_store::KeyId;

    use super::*;

    #[test]
    fn a_key_is_called_by_its_name_and_the_end_of_its_secret() {
        let (created_at, revoked_at, expires_at, former_until, budget) = Default::default();
        let key = |name: &str| KeyRecord {
            id: KeyId::new(),
            name: name.to_owned(),
            hint: "…12ab".to_owned(),
            created_at,
            revoked_at,
            expires_at,
            former_until,
            budget,
        };
        assert_eq!(["", "laptop"].map(|name| label(&key(name))), ["…12ab", "laptop …12ab"]);
    }

    #[test]
    fn days_and_times_are_told_in_words() {
        assert_eq!(number_of(date(2026, 11, 23)).map(date_of).as_deref(), Some("2026-11-23"));
        assert_eq!([900, 61_000, 7_262_000].map(time), ["0.9 s", "1 min 01 s", "2 h 01 min"]);
    }
}
