//! JSON bodies: bounded in bytes, depth, number of values and speed, with their memory counted before anything is built of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_ENCODING;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use super::background::in_background;
use super::memory::{MemoryCharge, RequestMemory, Shape};
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, message};

/// Bytes of a JSON body: whole histories with images come in it.
const MAX_BODY: usize = 64 << 20;
/// The longest pause of a client that sends a body.
pub(crate) const BODY_READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that a client must send each second, on average and after [`BODY_READ_TIMEOUT`].
const MIN_BYTES_PER_SECOND: usize = 64 << 10;

/// Reads a body whole, and counts the memory that it takes.
async fn read(request: Request, app: &App) -> Result<(Vec<u8>, MemoryCharge), ApiError> {
    let Some(Caller(tenant)) = request.extensions().get().cloned() else {
        return Err(ApiError::internal("a route that asks nobody for a key"));
    };
    let of_request = request.extensions().get::<RequestMemory>().cloned();
    if let Some(encoding) = request.headers().get(CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        let encoding = encoding.to_str().unwrap_or_default();
        return Err(ApiError::bad_request(format!(
            "The body is encoded ('{encoding}'): send it without Content-Encoding."
        )));
    }
    let body = request.into_body();
    let too_large = || ApiError::too_large(format!("The body is larger than {} MB.", MAX_BODY >> 20));
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let memory = MemoryCharge::of(app, &tenant)?;
    if let Some(of_request) = of_request {
        of_request.hold(memory.clone());
    }
    let (mut bytes, mut stream) = (Vec::new(), body.into_data_stream());
    let began = Instant::now();
    loop {
        let end = began + BODY_READ_TIMEOUT + Duration::from_secs((bytes.len() / MIN_BYTES_PER_SECOND) as u64);
        let chunk = match timeout_at(end.min(Instant::now() + BODY_READ_TIMEOUT), stream.next()).await {
            Err(_) => return Err(ApiError::too_slow()),
            Ok(None) => return Ok((bytes, memory)),
            Ok(Some(Err(error))) => return Err(ApiError::bad_request(format!("The body broke off: {error}"))),
            Ok(Some(Ok(chunk))) => chunk,
        };
        if bytes.len() + chunk.len() > MAX_BODY {
            return Err(too_large());
        }
        memory.count(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
}

/// Bytes of memory that are counted for a body.
#[cfg(any(fuzzing, test))]
pub(crate) fn body_memory(bytes: &[u8]) -> Result<usize, ApiError> {
    Ok(bytes.len() + Shape::of_body(bytes)?.memory(bytes.len()))
}

/// A body that is a JSON object. Its fields are read one by one, so that an error can name its parameter. Unread fields and the
/// `Content-Type` are ignored.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    pub(crate) map: Map<String, Value>,
    /// The memory that it takes, and everything that is made of it.
    memory: Option<MemoryCharge>,
}

impl FromRequest<Arc<App>> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (bytes, memory) = read(request, app).await?;
        in_background(app, &memory.share(), bytes.len(), move || {
            memory.count(Shape::of_body(&bytes)?.memory(bytes.len()))?;
            Self::parse(&bytes, memory)
        })
        .await
    }
}

/// A body that is JSON, as it was sent.
pub(crate) struct RawJson {
    pub(crate) bytes: Bytes,
    shape: Shape,
    memory: MemoryCharge,
}

impl FromRequest<Arc<App>> for RawJson {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (bytes, memory) = read(request, app).await?;
        let size = bytes.len();
        in_background(app, &memory.share(), size, move || {
            Ok(Self { shape: Shape::of_body(&bytes)?, bytes: bytes.into(), memory })
        })
        .await
    }
}

impl RawJson {
    /// Counts the memory of everything made of it until the [`MemoryCharge`] is dropped.
    pub(crate) fn counted(self) -> Result<(Bytes, MemoryCharge), ApiError> {
        let Self { bytes, shape, memory } = self;
        memory.count(shape.memory(bytes.len()))?;
        Ok((bytes, memory))
    }

    /// Reads its fields.
    pub(crate) async fn fields(self, app: &App) -> Result<Fields, ApiError> {
        let Self { bytes, shape, memory } = self;
        memory.count(shape.memory(bytes.len()))?;
        in_background(app, &memory.share(), bytes.len(), move || Fields::parse(&bytes, memory)).await
    }
}

/// A body of any kind, as it was sent.
pub(crate) struct RawBody {
    pub(crate) bytes: Bytes,
    memory: MemoryCharge,
}

impl FromRequest<Arc<App>> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (bytes, memory) = read(request, app).await?;
        Ok(Self { bytes: bytes.into(), memory })
    }
}

impl RawBody {
    /// Reads a part of it that is JSON.
    pub(crate) async fn json<T: DeserializeOwned + Send + 'static>(
        self,
        app: &App,
        part: Bytes,
    ) -> Result<T, ApiError> {
        let memory = self.memory;
        in_background(app, &memory.share(), part.len(), move || {
            memory.count(Shape::of_body(&part)?.memory(part.len()))?;
            serde_json::from_slice(&part)
                .map_err(|error| ApiError::bad_request(format!("The message cannot be read: {error}.")))
        })
        .await
    }
}

impl From<Map<String, Value>> for Fields {
    /// Fields of ours, which are not counted.
    fn from(map: Map<String, Value>) -> Self {
        Self { map, memory: None }
    }
}

impl Fields {
    fn parse(bytes: &[u8], memory: MemoryCharge) -> Result<Self, ApiError> {
        let memory = Some(memory);
        if bytes.trim_ascii().is_empty() {
            return Ok(Self { map: Map::new(), memory });
        }
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(map)) => Ok(Self { map, memory }),
            Ok(_) => Err(ApiError::bad_request("The JSON body must be an object.").code("invalid_json")),
            Err(error) => {
                let message = format!("We could not parse the JSON body of your request: {error}.");
                Err(ApiError::bad_request(message).code("invalid_json"))
            }
        }
    }

    /// Returns the memory counted for it; hold it as long as anything made of it.
    pub(crate) fn memory(&self) -> impl Send + Sync + 'static + use<> {
        self.memory.clone()
    }

    /// The JSON text of all fields but these.
    pub(crate) fn to_json_without(&self, names: &[&str]) -> String {
        let fields = self.map.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        serde_json::to_string(&fields.collect::<BTreeMap<_, _>>()).unwrap_or_default()
    }

    /// Parses a message, field by field in the order of its type's declaration. Null is the same as absent.
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        message::read(self.map)
    }

    /// Sets a field that is absent.
    pub(crate) fn default(&mut self, name: &str, value: &str) {
        self.map.entry(name).or_insert_with(|| value.into());
    }

    /// A field that must be there.
    pub(crate) fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.optional(name)?.ok_or_else(|| ApiError::missing(name))
    }

    /// A field that may be absent or null.
    pub(crate) fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| ApiError::invalid(name, format!("Invalid value for '{name}': {error}."))),
        }
    }
}

#[cfg(test)]
mod tests {
    use aludel_store::Tenant;

    use super::*;

    /// Enough to be parsed on another thread.
    const VALUES: usize = 250_000;

    #[tokio::test]
    async fn others_go_on_while_a_large_body_is_read() {
        let data = tempfile::tempdir().unwrap();
        let app = App::on_memory(data.path(), Default::default()).await;
        let body = format!(r#"{{"input":[{}1]}}"#, "1,".repeat(VALUES));
        let mut request = Request::new(axum::body::Body::from(body));
        request.extensions_mut().insert(Caller(Tenant::local()));
        let reading = Fields::from_request(request, &app);
        tokio::pin!(reading);
        // The single thread is free for others until it is done.
        let mut turns = 0_u32;
        loop {
            tokio::select! {
                biased;
                read = &mut reading => break assert_eq!(read.unwrap().map["input"].as_array().unwrap().len(), VALUES + 1),
                () = tokio::task::yield_now() => turns += 1,
            }
        }
        assert!(turns > 10, "{turns} turns of others");
    }

    #[tokio::test]
    async fn a_message_counts_until_its_request_is_answered() {
        let data = tempfile::tempdir().unwrap();
        let app = App::on_memory(data.path(), Default::default()).await;
        let of_request = RequestMemory::default();
        let mut request = Request::new(axum::body::Body::from(format!(r#"{{"code":"{}"}}"#, "x".repeat(1 << 20))));
        request.extensions_mut().insert(Caller(Tenant::local()));
        request.extensions_mut().insert(of_request.clone());
        let mut fields = Fields::from_request(request, &app).await.unwrap();
        let code: String = fields.required("code").unwrap();
        drop(fields);
        assert!(app.bodies.in_use() > code.len() >> 11, "{} KB count", app.bodies.in_use());
        drop(of_request);
        assert_eq!(app.bodies.in_use(), 0);
    }
}
