//! Pages of lists.

use rusqlite::{Connection, Row, ToSql};

use crate::Error;

/// Bytes of memory for the parsed JSON of one page. The row that exceeds the bound is the last one of its page.
const MAX_BYTES: usize = 16 << 20;
/// Bytes of memory of an object or a list besides its text and its values.
const NESTED: usize = 700;
/// The same of any other value.
const VALUE: usize = 40;

/// A part of a list to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    /// Last id of the previous page. It need not exist, because ids are ordered.
    pub after: Option<String>,
    /// Most rows of the page.
    pub limit: usize,
    /// Order of a list.
    pub order: Order,
}

/// Order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Oldest first.
    Ascending,
    /// Newest first.
    Descending,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// Rows.
    pub data: Vec<T>,
    /// True if there are more behind these.
    pub has_more: bool,
}

impl PageQuery {
    /// Returns the query for the first page, oldest first.
    pub fn first(limit: usize) -> Self {
        Self { after: None, limit, order: Order::Ascending }
    }

    /// Reads a page, with fewer rows than requested if they are large. `select` is a query that ends in its conditions; `key` is the
    /// ordering column, `after` the value to start after.
    pub(crate) fn read<'a, T>(
        &self,
        connection: &Connection,
        (select, key): (&str, &str),
        mut parameters: Vec<&'a dyn ToSql>,
        after: Option<&'a dyn ToSql>,
        mut row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
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
        let mut rows = statement.query(&*parameters)?;
        let (mut data, mut bytes) = (Vec::new(), 0);
        while let Some(found) = rows.next()? {
            if data.len() == self.limit || bytes > MAX_BYTES {
                return Ok(Page { data, has_more: true });
            }
            bytes += size(found)?;
            data.push(row(found)?);
        }
        Ok(Page { data, has_more: false })
    }

    /// Returns the id to start after, as a parameter.
    pub(crate) fn after(&self) -> Option<&dyn ToSql> {
        self.after.as_ref().map(|after| after as &dyn ToSql)
    }
}

/// Returns an upper bound of the memory of a row's parsed JSON, bytes.
fn size(row: &Row<'_>) -> rusqlite::Result<usize> {
    let of_text = |text: &[u8]| {
        let of_byte = |byte: &u8| match byte {
            b'{' | b'[' => 1 + NESTED,
            b',' => 1 + VALUE,
            _ => 1,
        };
        text.iter().map(of_byte).sum()
    };
    (0..row.as_ref().column_count()).try_fold(0, |bytes, column| {
        Ok(bytes + row.get_ref(column)?.as_bytes_or_null().ok().flatten().map_or(0, of_text))
    })
}
