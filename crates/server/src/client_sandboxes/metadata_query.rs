//! Metadata that is asked for: a query within a query.

use std::collections::BTreeMap;

use crate::error::ApiError;

/// The pairs of a query string that is a value within a query, and so is escaped twice.
pub(crate) fn pairs(text: &str) -> Result<BTreeMap<String, String>, ApiError> {
    let parse = |text: &str| {
        let uri = format!("/?{text}").parse().ok()?;
        Some(axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&uri).ok()?.0)
    };
    let pairs = parse(text).ok_or_else(|| ApiError::bad_request("invalid metadata: it must be an escaped query"))?;
    // A text that is not escaped is used unchanged.
    let again = |text: String| match parse(&format!("text={text}")).map(|pairs| pairs.into_iter().next()) {
        Some(Some((_, text))) => text,
        Some(None) | None => text,
    };
    Ok(pairs.into_iter().map(|(key, value)| (again(key), again(value))).collect())
}
