//! Counts of work for tenants, by day and model. They are sums, without data about single requests.

use std::ops::AddAssign;

use rusqlite::{Row, params};

use crate::database::all;
use crate::{Error, Store, Tenant, now};

/// Days for which counts are kept.
const KEPT_DAYS: i64 = 400;
/// The most that a row counts of anything, so that sums of many rows fit the database's integers: a model's server may report any number.
const MAX_COUNT: u64 = 1 << 53;
/// Seconds of a day.
const DAY_SECONDS: i64 = 24 * 3600;

/// Work that was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeteredWork {
    /// Requests to the model, including forwarded ones.
    pub requests: u64,
    /// Tokens that models read, as their servers report. Unknown for forwarded requests.
    pub input_tokens: u64,
    /// Tokens that models wrote.
    pub output_tokens: u64,
    /// Programs that ran.
    pub programs: u64,
    /// Wall clock of programs, milliseconds.
    pub program_ms: u64,
    /// Time for which sandboxes were held, milliseconds.
    pub sandbox_ms: u64,
}

impl AddAssign for MeteredWork {
    fn add_assign(&mut self, other: Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.requests, other.requests);
        add(&mut self.input_tokens, other.input_tokens);
        add(&mut self.output_tokens, other.output_tokens);
        add(&mut self.programs, other.programs);
        add(&mut self.program_ms, other.program_ms);
        add(&mut self.sandbox_ms, other.sandbox_ms);
    }
}

/// The work of one tenant on one day with one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeteredDay {
    /// The tenant.
    pub tenant: Tenant,
    /// The day, from 1970-01-01, in UTC.
    pub day: i64,
    /// The model; empty for the time of sandboxes, and for programs that clients sent themselves.
    pub model: String,
    /// The sums.
    pub work: MeteredWork,
}

impl MeteredDay {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            tenant: row.get(0)?,
            day: row.get(1)?,
            model: row.get(2)?,
            work: MeteredWork {
                requests: row.get(3)?,
                input_tokens: row.get(4)?,
                output_tokens: row.get(5)?,
                programs: row.get(6)?,
                program_ms: row.get(7)?,
                sandbox_ms: row.get(8)?,
            },
        })
    }
}

/// Returns the number of today, from 1970-01-01, in UTC.
pub fn today() -> i64 {
    now().div_euclid(DAY_SECONDS)
}

impl Store {
    /// Adds counts, and removes those older than 400 days.
    pub async fn meter(&self, metered: Vec<MeteredDay>) -> Result<(), Error> {
        self.write(move |database| {
            let mut add = database.prepare_cached(
                "INSERT INTO metered VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO UPDATE SET
                    requests = min(requests + excluded.requests, ?10),
                    input_tokens = min(input_tokens + excluded.input_tokens, ?10),
                    output_tokens = min(output_tokens + excluded.output_tokens, ?10),
                    programs = min(programs + excluded.programs, ?10),
                    program_ms = min(program_ms + excluded.program_ms, ?10),
                    sandbox_ms = min(sandbox_ms + excluded.sandbox_ms, ?10)",
            )?;
            for MeteredDay { tenant, day, model, work } in &metered {
                let MeteredWork { requests, input_tokens, output_tokens, programs, program_ms, sandbox_ms } = work;
                let [requests, input_tokens, output_tokens, programs, program_ms, sandbox_ms] =
                    [requests, input_tokens, output_tokens, programs, program_ms, sandbox_ms]
                        .map(|sum| (*sum).min(MAX_COUNT));
                add.execute(params![
                    tenant,
                    day,
                    model,
                    requests,
                    input_tokens,
                    output_tokens,
                    programs,
                    program_ms,
                    sandbox_ms,
                    MAX_COUNT
                ])?;
            }
            database.prepare_cached("DELETE FROM metered WHERE day < ?1")?.execute([today() - KEPT_DAYS])?;
            Ok(())
        })
        .await
    }

    /// Returns the counts of all tenants from a day on, by tenant, day and model.
    pub async fn metered(&self, since: i64) -> Result<Vec<MeteredDay>, Error> {
        self.read_any(move |database| {
            let query = "SELECT * FROM metered WHERE day >= ?1 ORDER BY tenant, day, model";
            all(database, query, [since], MeteredDay::read)
        })
        .await
    }
}
