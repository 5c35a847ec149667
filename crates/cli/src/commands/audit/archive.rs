//! Archives of the audit log: JSON lines, the first of which is the log's position before the archive. Each program stands in the first
//! entry that refers to it.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use aludel_store::{AuditChain, AuditRecord, Store, TamperEvidence};
use anyhow::{Context as _, anyhow};
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::AT_ONCE;
use crate::exit::usage;

/// The entries of an archive.
#[derive(Debug)]
pub(super) struct ArchiveEntries {
    /// The place behind which it begins.
    start: AuditChain,
    /// Its last entry.
    end: AuditChain,
}

impl fmt::Display for ArchiveEntries {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, end } = self;
        write!(formatter, "entries {} to {}, unchanged, up to digest {}", start.number + 1, end.number, end.chain)
    }
}

/// Moves the entries before a day to a new file, which is synced before they are removed. `None` if there are none.
pub(super) async fn write(store: &Store, file: &Path, before: Date) -> anyhow::Result<Option<ArchiveEntries>> {
    let shown = file.display();
    if file.exists() {
        return Err(usage(format!("{shown} is there already; give the name of a new file")));
    }
    let before = before.to_zoned(TimeZone::UTC).map_err(|error| usage(format!("--before: {error}")))?;
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    if part.exists() {
        let part = part.display();
        return Err(usage(format!(
            "{part} is there, of an attempt that failed; the log has all of it still: remove it"
        )));
    }
    let written = write_part(store, part, before.timestamp().as_millisecond()).await;
    let moved = written.and_then(|archived| match archived {
        Some(archived) => {
            std::fs::rename(part, file)?;
            File::open(file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
                .sync_all()?;
            Ok(Some(archived))
        }
        None => Ok(std::fs::remove_file(part).map(|()| None)?),
    });
    let archived =
        moved.with_context(|| format!("cannot write {shown}; the part that was written is in {}", part.display()))?;
    if let Some(archived) = &archived {
        let removed = store.remove_archived(archived.end.clone()).await;
        removed.with_context(|| format!("{shown} is written, but its entries cannot be removed from the log"))?;
    }
    Ok(archived)
}

async fn write_part(store: &Store, part: &Path, before_ms: i64) -> anyhow::Result<Option<ArchiveEntries>> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(part)?;
    let mut out = BufWriter::new(file);
    let start = store.audit_log_start().await?;
    writeln!(out, "{}", serde_json::to_string(&start)?)?;
    let mut end = start.clone();
    let mut programs = HashSet::new();
    loop {
        let records = store.audit_log(end.number, AT_ONCE).await?;
        let old = records.into_iter().take_while(|record| record.at_ms < before_ms);
        let mut count = 0;
        for mut record in old {
            end.follow(&record).map_err(changed)?;
            if !programs.insert(record.sha256.clone()) {
                record.code = None;
            }
            writeln!(out, "{}", serde_json::to_string(&record)?)?;
            count += 1;
        }
        if count < AT_ONCE {
            break;
        }
    }
    out.into_inner()?.sync_all()?;
    Ok((end != start).then_some(ArchiveEntries { start, end }))
}

/// Checks that every entry of an archive follows from the one before it, and that its program is there.
pub(super) fn verify(file: File) -> anyhow::Result<ArchiveEntries> {
    let mut lines = BufReader::new(file).lines();
    let first = lines.next().ok_or_else(|| anyhow!("it is empty"))??;
    let start: AuditChain = serde_json::from_str(&first).context("line 1 does not say where it begins")?;
    let mut end = start.clone();
    let mut programs = HashSet::new();
    for (number, line) in (2..).zip(lines) {
        let record: AuditRecord =
            serde_json::from_str(&line?).with_context(|| format!("line {number} is no entry of an audit log"))?;
        end.follow(&record).map_err(changed)?;
        let has_program = record.code.is_some();
        if programs.insert(record.sha256) && !has_program {
            anyhow::bail!("the program of entry {} is missing", end.number);
        }
    }
    Ok(ArchiveEntries { start, end })
}

fn changed(TamperEvidence { number }: TamperEvidence) -> anyhow::Error {
    anyhow!("entry {number} is not as it was written")
}
