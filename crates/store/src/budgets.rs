//! Budgets of keys: the most work for one on a day of UTC. They are compared with the stored counts of the meter, some seconds late.

use rusqlite::{Connection, Row, params};

use crate::database::one;
use crate::{Error, KeyId, Store, Tenant, today};

/// The most work for a key on one day; `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DailyBudget {
    /// Requests for which a model is asked.
    pub requests: Option<u64>,
    /// Tokens that models read and wrote, as their servers count them.
    pub tokens: Option<u64>,
    /// Seconds for which programs run.
    pub program_seconds: Option<u64>,
}

/// A budget that is used up, with its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsedUp {
    /// Requests.
    Requests(u64),
    /// Tokens.
    Tokens(u64),
    /// Seconds of programs.
    ProgramSeconds(u64),
}

impl DailyBudget {
    /// Reads three columns of the table `keys`, from this index on.
    pub(crate) fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Self> {
        Ok(Self { requests: row.get(first)?, tokens: row.get(first + 1)?, program_seconds: row.get(first + 2)? })
    }

    fn used_up(&self, requests: u64, tokens: u64, program_ms: u64) -> Option<UsedUp> {
        let over = |budget: Option<u64>, used: u64| budget.filter(|budget| used >= *budget);
        let tokens = || over(self.tokens, tokens).map(UsedUp::Tokens);
        let programs = || over(self.program_seconds, program_ms / 1000).map(UsedUp::ProgramSeconds);
        over(self.requests, requests).map(UsedUp::Requests).or_else(tokens).or_else(programs)
    }
}

impl Store {
    /// Sets the budget of a key. Returns false if there is no such key.
    pub async fn set_budget(&self, id: KeyId, budget: DailyBudget) -> Result<bool, Error> {
        let DailyBudget { requests, tokens, program_seconds } = budget;
        let query =
            "UPDATE keys SET requests_per_day = ?2, tokens_per_day = ?3, program_seconds_per_day = ?4 WHERE id = ?1";
        self.write(move |database| Ok(database.execute(query, params![id, requests, tokens, program_seconds])? > 0))
            .await
    }

    /// Returns the budget that a tenant has used up today; of several the first.
    pub async fn used_up(&self, tenant: &Tenant) -> Result<Option<UsedUp>, Error> {
        let tenant = tenant.clone();
        self.read_any(move |database| used_up(database, &tenant)).await
    }
}

fn used_up(database: &Connection, tenant: &Tenant) -> Result<Option<UsedUp>, Error> {
    let query = "SELECT requests_per_day, tokens_per_day, program_seconds_per_day FROM keys WHERE id = ?1 AND \
                 coalesce(requests_per_day, tokens_per_day, program_seconds_per_day) IS NOT NULL";
    let Some(budget) = one(database, query, [tenant], |row| DailyBudget::read(row, 0))? else { return Ok(None) };
    let query = "SELECT coalesce(sum(requests), 0), coalesce(sum(input_tokens + output_tokens), 0), \
                 coalesce(sum(program_ms), 0) FROM metered WHERE tenant = ?1 AND day = ?2";
    let used = database
        .query_row(query, params![tenant, today()], |row| Ok(budget.used_up(row.get(0)?, row.get(1)?, row.get(2)?)));
    Ok(used?)
}
