//! Secrets of the server's own, made when they are first needed.

use rusqlite::params;

use crate::id::random_hex;
use crate::{Error, Store};

impl Store {
    /// Returns the secret of this name, which never leaves this machine: 64 random characters, the same for all processes and for ever.
    pub async fn secret(&self, name: &'static str) -> Result<String, Error> {
        self.write(move |database| {
            let query = "INSERT INTO secrets VALUES (?1, ?2) ON CONFLICT DO NOTHING";
            database.execute(query, params![name, random_hex()])?;
            Ok(database.query_row("SELECT value FROM secrets WHERE name = ?1", [name], |row| row.get(0))?)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_secret_stays_and_is_unlike_others() {
        let data = tempfile::tempdir().unwrap();
        let (one, other) = {
            let store = Store::open(data.path()).await.unwrap();
            (store.secret("one").await.unwrap(), store.secret("other").await.unwrap())
        };
        assert!(one.len() >= 64 && one != other);
        assert_eq!(Store::open(data.path()).await.unwrap().secret("one").await.unwrap(), one);
    }
}
