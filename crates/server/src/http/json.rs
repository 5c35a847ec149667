//! JSON bodies: bounded in bytes, depth, number of values and speed, and counted by the memory that they take, before anything is built of
//! them.

use std::sync::Arc;
use std::time::Duration;

use aludel_engine::places::{NoRoom, Place};
use aludel_store::Tenant;
use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, message};

/// Bytes of a JSON body: whole histories with images come in it.
const MAX_BODY: usize = 64 << 20;
/// Levels of objects and lists within each other.
const MAX_DEPTH: usize = 100;
/// Values in one body: each takes far more memory than its text.
const MAX_VALUES: usize = 500_000;
/// Values in one body outside of [`HISTORY`].
const MAX_OTHER_VALUES: usize = 50_000;
/// The fields that bring a conversation.
const HISTORY: [&[u8]; 4] = [b"input", b"messages", b"items", b"contents"];
/// Bytes of memory that an object takes besides its values, in all copies that are made of it.
const OBJECT: usize = 3800;
/// The same of any value.
const VALUE: usize = 320;
/// The same of an escape in a text: in JSON within JSON it is escaped again.
const ESCAPE: usize = 5;
/// Copies of a body's text that are in memory at the same time.
const COPIES: usize = 8;
/// Bytes of memory for which a request needs no share: every tenant may send small ones at any time.
const FREE: usize = 256 << 10;
/// Bytes of a body from which on it is large: less takes less than a millisecond.
const LARGE: usize = 128 << 10;
/// Time for which a client may stop sending.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// Bytes that a client must send each second, on average and after [`SILENCE`].
const LEAST_SPEED: usize = 64 << 10;

/// A tenant's share of the memory for bodies.
#[derive(Debug)]
struct Memory {
    bytes: usize,
    place: Place,
}

impl Memory {
    fn of(app: &App, tenant: &Tenant) -> Result<Self, ApiError> {
        Ok(Self { bytes: 0, place: memory(app, tenant, 0)? })
    }

    /// Counts bytes of memory, which are in use until this is dropped.
    fn count(&mut self, bytes: usize) -> Result<(), ApiError> {
        let kib = |bytes: usize| bytes.saturating_sub(FREE) >> 10;
        let more = kib(self.bytes + bytes) - kib(self.bytes);
        self.place.take_more(more).map_err(|no_room| match no_room {
            // Nobody would ever get as much.
            _ if kib(self.bytes + bytes) > self.place.most() => {
                ApiError::too_large("The JSON body would take more memory than one request may.")
            }
            no_room => busy(no_room),
        })?;
        self.bytes += bytes;
        Ok(())
    }
}

/// Counts bytes of memory for a tenant, which are in use until this is dropped.
pub(crate) fn memory(app: &App, tenant: &Tenant, bytes: usize) -> Result<Place, ApiError> {
    app.bodies.take(tenant, bytes.saturating_sub(FREE) >> 10).map_err(busy)
}

fn busy(no_room: NoRoom) -> ApiError {
    let message = match no_room {
        NoRoom::AtAll => "The server is working on many large requests; try again in a moment.",
        NoRoom::ForThisTenant => "The server is working on many large requests of yours; try again in a moment.",
    };
    ApiError::too_many(message, Duration::from_secs(1))
}

/// Reads a body whole, and counts the memory that it takes.
async fn read(request: Request, app: &App) -> Result<(Vec<u8>, Memory), ApiError> {
    let Some(Caller(tenant)) = request.extensions().get().cloned() else {
        return Err(ApiError::internal("a route that asks nobody for a key"));
    };
    let body = request.into_body();
    let too_large = || ApiError::too_large(format!("The body is larger than {} MB.", MAX_BODY >> 20));
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let mut memory = Memory::of(app, &tenant)?;
    let (mut bytes, mut stream) = (Vec::new(), body.into_data_stream());
    let began = Instant::now();
    loop {
        let end = began + SILENCE + Duration::from_secs((bytes.len() / LEAST_SPEED) as u64);
        let chunk = match timeout_at(end.min(Instant::now() + SILENCE), stream.next()).await {
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

/// Works on a body of so many bytes. For a large one that takes long, and happens where nobody else's request waits for it.
async fn aside<T: Send + 'static>(
    app: &App,
    bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if bytes < LARGE {
        return work();
    }
    let _permit = app.parsers.acquire().await.map_err(ApiError::internal)?;
    let work = tokio::task::spawn_blocking(work).await;
    work.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// The shape of a body, seen without building anything of it.
#[derive(Debug, Default)]
struct Shape {
    values: usize,
    objects: usize,
    escapes: usize,
    /// Values outside of the fields that bring a conversation.
    others: usize,
}

impl Shape {
    /// Counts levels, values, objects and escapes.
    fn of(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut shape = Self::default();
        let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
        // The last text at the first level, and whether the field that it named brings a conversation.
        let (mut text, mut is_history) = (0..0, false);
        for (index, byte) in bytes.iter().enumerate() {
            let mut is_value = false;
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => {
                    escaped = true;
                    shape.escapes += 1;
                }
                b'"' => {
                    quoted = !quoted;
                    if depth == 1 {
                        text = if quoted { index + 1..index + 1 } else { text.start..index };
                    }
                }
                _ if quoted => {}
                b':' if depth == 1 => {
                    is_history = bytes.get(text.clone()).is_some_and(|name| HISTORY.contains(&name));
                }
                b'{' | b'[' => {
                    (depth, is_value) = (depth + 1, true);
                    shape.objects += usize::from(*byte == b'{');
                    if depth > MAX_DEPTH {
                        let message = format!("The JSON body nests more than {MAX_DEPTH} levels deep.");
                        return Err(ApiError::bad_request(message).code("invalid_json"));
                    }
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                b',' => is_value = true,
                _ => {}
            }
            shape.values += usize::from(is_value);
            shape.others += usize::from(is_value && !is_history);
        }
        if shape.values > MAX_VALUES {
            return Err(ApiError::too_large(format!("The JSON body holds more than {MAX_VALUES} values.")));
        }
        if shape.others > MAX_OTHER_VALUES {
            let message =
                format!("The JSON body holds more than {MAX_OTHER_VALUES} values besides those of the conversation.");
            return Err(ApiError::too_large(message));
        }
        Ok(shape)
    }

    /// Bytes of memory that is taken besides the text itself, in all copies.
    fn memory(&self, text: usize) -> usize {
        text * (COPIES - 1) + self.escapes * ESCAPE + self.values * VALUE + self.objects * OBJECT
    }
}

/// Bytes of memory that are counted for a body.
#[cfg(any(fuzzing, test))]
pub(crate) fn body_memory(bytes: &[u8]) -> Result<usize, ApiError> {
    Ok(bytes.len() + Shape::of(bytes)?.memory(bytes.len()))
}

/// A body that is a JSON object, of which the fields are read one by one so that an error can name its parameter. What is not read is
/// ignored, and what its `Content-Type` says does not matter.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    pub(crate) map: Map<String, Value>,
    /// The memory that it takes, and everything that is made of it.
    memory: Option<Arc<Memory>>,
}

impl FromRequest<Arc<App>> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (bytes, mut memory) = read(request, app).await?;
        aside(app, bytes.len(), move || {
            memory.count(Shape::of(&bytes)?.memory(bytes.len()))?;
            Self::parse(&bytes, memory)
        })
        .await
    }
}

/// A body that is JSON, as it was sent.
pub(crate) struct Raw {
    pub(crate) bytes: Bytes,
    shape: Shape,
    memory: Memory,
}

impl FromRequest<Arc<App>> for Raw {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (bytes, memory) = read(request, app).await?;
        let size = bytes.len();
        aside(app, size, move || Ok(Self { shape: Shape::of(&bytes)?, bytes: bytes.into(), memory })).await
    }
}

impl Raw {
    /// Counts the memory that everything made of it takes. It is in use until the second part is dropped.
    pub(crate) fn counted(self) -> Result<(Bytes, impl Send + Sync + Unpin + 'static), ApiError> {
        let Self { bytes, shape, mut memory } = self;
        memory.count(shape.memory(bytes.len()))?;
        Ok((bytes, memory))
    }

    /// Reads its fields.
    pub(crate) async fn fields(self, app: &App) -> Result<Fields, ApiError> {
        let Self { bytes, shape, mut memory } = self;
        memory.count(shape.memory(bytes.len()))?;
        aside(app, bytes.len(), move || Fields::parse(&bytes, memory)).await
    }
}

/// A body of any kind, as it was sent.
pub(crate) struct Plain {
    pub(crate) bytes: Bytes,
    memory: Memory,
}

impl FromRequest<Arc<App>> for Plain {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (bytes, memory) = read(request, app).await?;
        Ok(Self { bytes: bytes.into(), memory })
    }
}

impl Plain {
    /// Reads a part of it that is JSON.
    pub(crate) async fn json<T: DeserializeOwned + Send + 'static>(
        self,
        app: &App,
        part: Bytes,
    ) -> Result<T, ApiError> {
        let mut memory = self.memory;
        aside(app, part.len(), move || {
            memory.count(Shape::of(&part)?.memory(part.len()))?;
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
    fn parse(bytes: &[u8], memory: Memory) -> Result<Self, ApiError> {
        let memory = Some(Arc::new(memory));
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

    /// Returns the memory that is counted for it, to be held as long as anything that was made of it.
    pub(crate) fn memory(&self) -> impl Send + Sync + 'static + use<> {
        self.memory.clone()
    }

    /// All of them, as they were sent but for blanks and order.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(&self.map).unwrap_or_default()
    }

    /// Reads a message, field by field in the order in which its type declares them. Null is the same as absent.
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        message::read(self.map)
    }

    /// Gives a field a value where it has none.
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
    use super::*;

    #[test]
    fn deep_and_crowded_bodies_are_refused_before_they_are_built() {
        let refused = |text: &str| Shape::of(text.as_bytes()).unwrap_err().message;
        assert!(refused(&"[".repeat(MAX_DEPTH + 1)).contains("levels"));
        let deep = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(Shape::of(deep.as_bytes()).is_ok());
        let list = |count: usize| format!("[{}1]", "1,".repeat(count));
        assert!(refused(&format!(r#"{{"input":{}}}"#, list(MAX_VALUES))).contains("500000 values"));
        assert!(refused(&format!(r#"{{"tools":{}}}"#, list(MAX_OTHER_VALUES))).contains("besides"));
        assert!(refused(&format!(r#"{{"x":{{"input":{}}}}}"#, list(MAX_OTHER_VALUES))).contains("besides"));
        for body in [
            format!(r#"{{"input" : {}, "model": "m"}}"#, list(MAX_OTHER_VALUES)),
            format!(r#"{{"input":"{}\"[[["}}"#, "[,".repeat(MAX_VALUES)),
        ] {
            assert!(Shape::of(body.as_bytes()).is_ok());
        }
    }

    #[tokio::test]
    async fn others_go_on_while_a_large_body_is_read() {
        let data = tempfile::tempdir().unwrap();
        let store = aludel_store::Store::open(data.path()).await.unwrap();
        let backend = Arc::new(aludel_sandbox::memory::Memory::default());
        let engine = aludel_engine::Engine::new(store, backend, [], Default::default(), Vec::new(), Default::default());
        let app = Arc::new(App::new(Arc::new(engine), crate::app::Settings::default()));
        let body = format!(r#"{{"input":[{}1]}}"#, "1,".repeat(MAX_VALUES / 2));
        let mut request = Request::new(axum::body::Body::from(body));
        request.extensions_mut().insert(Caller(Tenant::local()));
        let reading = Fields::from_request(request, &app);
        tokio::pin!(reading);
        // The one thread is free for others until it is done.
        let mut turns = 0_u32;
        loop {
            tokio::select! {
                biased;
                read = &mut reading => break assert_eq!(read.unwrap().map["input"].as_array().unwrap().len(), MAX_VALUES / 2 + 1),
                () = tokio::task::yield_now() => turns += 1,
            }
        }
        assert!(turns > 10, "{turns} turns of others");
    }
}
