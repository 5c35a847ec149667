//! Pages of lists.

use rusqlite::{Connection, Row, ToSql};

use crate::Error;

/// Which part of a list is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    /// The last id of the page before; unknown ids are fine, for ids are ordered.
    pub after: Option<String>,
    /// How many at most.
    pub limit: usize,
    /// Which come first.
    pub order: Order,
}

/// Which come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The oldest.
    Ascending,
    /// The newest.
    Descending,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows.
    pub data: Vec<T>,
    /// Whether there are more after these.
    pub has_more: bool,
}

impl PageQuery {
    /// The first page, oldest first.
    pub fn first(limit: usize) -> Self {
        Self { after: None, limit, order: Order::Ascending }
    }

    /// Reads a page. `select` is a query that ends in its conditions; `key` is the column that orders, `after` the value of it to start after.
    pub(crate) fn read<'a, T>(
        &self,
        connection: &Connection,
        (select, key): (&str, &str),
        mut parameters: Vec<&'a dyn ToSql>,
        after: Option<&'a dyn ToSql>,
        row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Page<T>, Error> {
        let (comparison, direction) = match self.order {
            Order::Ascending => (">", "ASC"),
            Order::Descending => ("<", "DESC"),
        };
        let mut query = select.to_owned();
        if let Some(after) = after {
            parameters.push(after);
            query.push_str(&format!(" AND {key} {comparison} ?{}", parameters.len()));
        }
        query.push_str(&format!(" ORDER BY {key} {direction} LIMIT {}", self.limit.saturating_add(1)));
        let mut statement = connection.prepare_cached(&query)?;
        let mut data = statement.query_map(&*parameters, row)?.collect::<rusqlite::Result<Vec<T>>>()?;
        let has_more = data.len() > self.limit;
        data.truncate(self.limit);
        Ok(Page { data, has_more })
    }

    /// The id to start after, as a parameter.
    pub(crate) fn after(&self) -> Option<&dyn ToSql> {
        self.after.as_ref().map(|after| after as &dyn ToSql)
    }
}
