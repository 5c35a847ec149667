//! Changes of a tenant's rows that are made together, or with an update of a turn.

use std::fmt;

use rusqlite::Connection;

use crate::{Error, QuotaCheck, Store, Tenant};

type Write = Box<dyn FnOnce(&Connection) -> Result<(), Error> + Send>;

/// A change of rows that was not made yet. Dropping it changes nothing.
pub struct RowChange(Box<dyn FnOnce() -> Result<Write, Error> + Send>);

impl fmt::Debug for RowChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RowChange")
    }
}

impl RowChange {
    /// A change with work to do before its transaction.
    pub(crate) fn new<W: FnOnce(&Connection) -> Result<(), Error> + Send + 'static>(
        prepare: impl FnOnce() -> Result<W, Error> + Send + 'static,
    ) -> Self {
        Self(Box::new(|| Ok(Box::new(prepare()?))))
    }

    /// Does the work that needs no transaction.
    pub(crate) fn prepare(self) -> Result<Write, Error> {
        (self.0)()
    }
}

impl Store {
    /// Makes changes of a tenant's rows, all or none.
    pub async fn apply_changes(&self, tenant: &Tenant, changes: Vec<RowChange>, room: QuotaCheck) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let tenant = tenant.clone();
        self.run(move |store| {
            let writes = changes.into_iter().map(RowChange::prepare).collect::<Result<Vec<_>, _>>()?;
            store.write_counted(&tenant, room.reserved(), |database| {
                writes.into_iter().try_for_each(|write| write(database))
            })
        })
        .await
    }
}
