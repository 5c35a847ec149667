//! JSON bodies: bounded in bytes, depth and number of values before anything is built of them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::app::App;
use crate::error::ApiError;
use crate::http::message;

/// Bytes of a JSON body: whole histories with images come in it.
const MAX_BODY: usize = 64 << 20;
/// Levels of objects and lists within each other.
const MAX_DEPTH: usize = 100;
/// Values in one body: each takes far more memory than its text.
const MAX_VALUES: usize = 2_000_000;
/// How long a client may stop sending.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// Reads a body whole. The permit stands for the memory that it takes.
async fn read(body: Body, bodies: &Arc<Semaphore>) -> Result<(Vec<u8>, OwnedSemaphorePermit), ApiError> {
    let too_large = || ApiError::too_large(format!("The body is larger than {} MB.", MAX_BODY >> 20));
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let busy = || {
        let message = "The server is reading many large requests; try again in a moment.";
        ApiError::too_many(message, Duration::from_secs(1))
    };
    let mut place = Arc::clone(bodies).try_acquire_owned().map_err(|_| busy())?;
    let (mut bytes, mut stream) = (Vec::new(), body.into_data_stream());
    loop {
        let chunk = match timeout(SILENCE, stream.next()).await {
            Err(_) => return Err(ApiError::too_slow()),
            Ok(None) => return Ok((bytes, place)),
            Ok(Some(Err(error))) => return Err(ApiError::bad_request(format!("The body broke off: {error}"))),
            Ok(Some(Ok(chunk))) => chunk,
        };
        if bytes.len() + chunk.len() > MAX_BODY {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
        let missing = (bytes.len() >> 10).saturating_sub(place.num_permits());
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        place.merge(Arc::clone(bodies).try_acquire_many_owned(missing).map_err(|_| busy())?);
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    check_shape(bytes)?;
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::bad_request(format!("We could not parse the JSON body of your request: {error}."))
            .code("invalid_json")
    })
}

/// Counts levels and values without building any.
fn check_shape(bytes: &[u8]) -> Result<(), ApiError> {
    let (mut depth, mut values, mut quoted, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'[' => {
                depth += 1;
                values += 1;
                if depth > MAX_DEPTH {
                    let message = format!("The JSON body nests more than {MAX_DEPTH} levels deep.");
                    return Err(ApiError::bad_request(message).code("invalid_json"));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
    }
    if values > MAX_VALUES {
        return Err(ApiError::too_large(format!("The JSON body holds more than {MAX_VALUES} values.")));
    }
    Ok(())
}

/// A body that is a JSON object, of which the fields are read one by one so that an error can name its parameter. What is not read is
/// ignored, and what its `Content-Type` says does not matter.
#[derive(Clone)]
pub(crate) struct Fields(pub(crate) Map<String, Value>);

impl FromRequest<Arc<App>> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (bytes, _place) = read(request.into_body(), &app.bodies).await?;
        Self::parse(&bytes)
    }
}

/// A body that is JSON, as it was sent.
pub(crate) struct Raw {
    pub(crate) bytes: Bytes,
    /// Stands for the memory that it takes.
    _place: OwnedSemaphorePermit,
}

impl FromRequest<Arc<App>> for Raw {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (bytes, place) = read(request.into_body(), &app.bodies).await?;
        check_shape(&bytes)?;
        Ok(Self { bytes: bytes.into(), _place: place })
    }
}

impl Raw {
    /// Its fields.
    pub(crate) fn fields(&self) -> Result<Fields, ApiError> {
        Fields::parse(&self.bytes)
    }
}

impl Fields {
    fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        if bytes.trim_ascii().is_empty() {
            return Ok(Self(Map::new()));
        }
        match parse(bytes)? {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(ApiError::bad_request("The JSON body must be an object.").code("invalid_json")),
        }
    }

    /// All of them, as they were sent but for blanks and order.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// Reads a message, field by field in the order in which its type declares them. Null is the same as absent.
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        message::read(self.0)
    }

    /// Gives a field a value where it has none.
    pub(crate) fn default(&mut self, name: &str, value: &str) {
        self.0.entry(name).or_insert_with(|| value.into());
    }

    /// A field that must be there.
    pub(crate) fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.optional(name)?.ok_or_else(|| ApiError::missing(name))
    }

    /// A field that may be absent or null.
    pub(crate) fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| ApiError::invalid(name, format!("Invalid value for '{name}': {error}."))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_and_crowded_bodies_are_refused_before_they_are_built() {
        let deep = "[".repeat(MAX_DEPTH + 1);
        assert!(check_shape(deep.as_bytes()).unwrap_err().message.contains("levels"));
        let deep = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(parse::<Value>(deep.as_bytes()).is_ok());
        let crowded = format!("[{}1]", "1,".repeat(MAX_VALUES));
        assert!(check_shape(crowded.as_bytes()).unwrap_err().message.contains("values"));
        let quoted = format!(r#"["{}\"[[["]"#, "[,".repeat(MAX_VALUES));
        assert!(check_shape(quoted.as_bytes()).is_ok());
    }
}
