//! The query of a request.

use aludel_store::{Order, PageQuery};
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;

use crate::error::ApiError;

/// The parameters after the question mark, in their order.
pub(crate) struct Params(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(pairs)| Self(pairs)).map_err(|error| ApiError::bad_request(error.body_text()))
    }
}

impl Params {
    /// The values of a parameter that may be repeated, with or without brackets.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let same = move |key: &str| key.strip_suffix("[]").unwrap_or(key) == name;
        self.0.iter().filter(move |(key, _)| same(key)).map(|(_, value)| value.as_str())
    }

    /// A parameter that is given once.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Parses `limit`, `after` and `order` of a list; at most `max` entries, `default` without a limit.
    pub(crate) fn page(&self, default: usize, max: usize) -> Result<PageQuery, ApiError> {
        let limit = match self.get("limit").map(str::parse) {
            None => default,
            Some(Ok(limit)) if (1..=max).contains(&limit) => limit,
            Some(_) => {
                return Err(ApiError::invalid("limit", format!("Invalid 'limit': it must be from 1 to {max}.")));
            }
        };
        let order = match self.get("order") {
            None | Some("desc") => Order::Descending,
            Some("asc") => Order::Ascending,
            Some(_) => return Err(ApiError::invalid("order", "Invalid 'order': it must be 'asc' or 'desc'.")),
        };
        Ok(PageQuery { after: self.get("after").map(str::to_owned), limit, order })
    }
}
