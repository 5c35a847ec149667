//! Memory of requests for JSON and files, counted before anything is built of them and shared between tenants.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aludel_engine::permits::{NoRoom, Permit};
use aludel_engine::processor_time::ProcessorShare;
use aludel_store::Tenant;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use super::background::in_background;
use crate::app::App;
use crate::error::ApiError;

/// Levels of nesting in a body.
const MAX_DEPTH: usize = 100;
/// Values in one body: each takes far more memory than its text.
const MAX_VALUES: usize = 500_000;
/// Values in one body outside of [`HISTORY`].
const MAX_OTHER_VALUES: usize = 50_000;
/// The fields that bring a conversation.
const HISTORY: [&[u8]; 4] = [b"input", b"messages", b"items", b"contents"];
/// Bytes of memory of an object besides its values, in all copies that are made of it.
const BYTES_PER_OBJECT: usize = 3800;
/// Bytes of memory of any value, in all copies that are made of it.
const BYTES_PER_VALUE: usize = 320;
/// Bytes for an escape in a text, which JSON within JSON escapes again.
const BYTES_PER_ESCAPE: usize = 5;
/// Copies of a text or a file that are in memory at the same time.
const COPIES_OF_TEXT: usize = 8;
/// Copies of a stored text in memory: as it is stored, as values, as it is told.
const COPIES_OF_STORED: usize = 3;
/// Bytes of memory that a request need not reserve, so that every tenant can always send small ones.
const FREE_BYTES: usize = 256 << 10;

/// Memory that is counted for a tenant until the last clone of this is dropped.
#[derive(Debug, Clone)]
pub(crate) struct MemoryCharge {
    counted: Arc<Mutex<TenantMemory>>,
    /// The tenant's share of the processors.
    share: ProcessorShare,
}

#[derive(Debug)]
struct TenantMemory {
    bytes: usize,
    permit: Permit,
}

/// The memory of a request's body, counted until the answer has been sent: what is read of it lives that long.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestMemory(Arc<OnceLock<MemoryCharge>>);

impl RequestMemory {
    pub(super) fn hold(&self, charge: MemoryCharge) {
        self.0.get_or_init(|| charge);
    }
}

impl MemoryCharge {
    /// A charge of nothing.
    pub(crate) fn of(app: &App, tenant: &Tenant) -> Result<Self, ApiError> {
        let counted = TenantMemory { bytes: 0, permit: memory(app, tenant, 0)? };
        Ok(Self { counted: Arc::new(Mutex::new(counted)), share: app.engine.processor_time.share_of(tenant) })
    }

    /// The tenant's share of the processors.
    pub(super) fn share(&self) -> ProcessorShare {
        self.share.clone()
    }

    /// Counts more bytes.
    pub(crate) fn count(&self, bytes: usize) -> Result<(), ApiError> {
        let mut counted = self.counted.lock();
        let all = counted.bytes.saturating_add(bytes);
        let more = kib(all) - kib(counted.bytes);
        acquire(&mut counted.permit, more, kib(all))?;
        counted.bytes = all;
        Ok(())
    }

    /// Counts a file of this size that is in memory for a model, in all its copies.
    pub(crate) fn count_file(&self, bytes: u64) -> Result<(), ApiError> {
        self.count(usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(COPIES_OF_TEXT))
    }

    /// Counts everything made of a further JSON text in memory.
    pub(crate) fn count_json(&self, text: &str) -> Result<(), ApiError> {
        self.count(text.len() + Shape::of(text.as_bytes()).memory(text.len()))
    }

    /// Reads stored JSON texts. Each is counted before anything is built of it.
    pub(crate) async fn read<T: DeserializeOwned + Send + 'static>(
        &self,
        app: &App,
        texts: Vec<String>,
    ) -> Result<Vec<T>, ApiError> {
        let memory = self.clone();
        let read = move |text: String| {
            memory.count_json(&text)?;
            serde_json::from_str(&text)
                .map_err(|error| ApiError::internal(format!("stored JSON is not whole: {error}")))
        };
        let bytes = texts.iter().map(String::len).sum();
        in_background(app, &self.share, bytes, move || texts.into_iter().map(read).collect()).await
    }
}

/// Counts bytes of memory for a tenant until the result is dropped.
pub(crate) fn memory(app: &App, tenant: &Tenant, bytes: usize) -> Result<Permit, ApiError> {
    let mut permit = app.bodies.none(tenant);
    acquire(&mut permit, kib(bytes), kib(bytes))?;
    Ok(permit)
}

/// Counts the memory of reading a stored text of this many bytes and telling it, until the result is dropped.
pub(crate) fn stored_memory(app: &App, tenant: &Tenant, bytes: u64) -> Result<Permit, ApiError> {
    memory(app, tenant, usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(COPIES_OF_STORED))
}

/// The KiB that are counted of these bytes.
fn kib(bytes: usize) -> usize {
    bytes.saturating_sub(FREE_BYTES) >> 10
}

/// Counts `more` KiB of a request that counts `all` KiB then.
fn acquire(permit: &mut Permit, more: usize, all: usize) -> Result<(), ApiError> {
    let most = permit.most();
    permit.acquire_more(more).map_err(|no_room| match no_room {
        // More than any tenant can have.
        _ if all > most => {
            ApiError::too_large("The request, with all that it refers to, would take more memory than one request may.")
        }
        no_room => busy(no_room),
    })
}

fn busy(no_room: NoRoom) -> ApiError {
    let message = match no_room {
        NoRoom::AtAll => "The server is working on many large requests; try again in a moment.",
        NoRoom::ForThisTenant => "The server is working on many large requests of yours; try again in a moment.",
    };
    ApiError::too_many(message, Duration::from_secs(1))
}

/// The shape of a JSON text, found without building values.
#[derive(Debug, Default)]
pub(super) struct Shape {
    depth: usize,
    values: usize,
    objects: usize,
    escapes: usize,
    /// Values outside of the fields that bring a conversation.
    others: usize,
}

impl Shape {
    /// Counts levels, values, objects and escapes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut shape = Self::default();
        let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
        // The last text at the first level, and true if the field of that name has a conversation.
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
                    shape.depth = shape.depth.max(depth);
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                b',' => is_value = true,
                _ => {}
            }
            shape.values += usize::from(is_value);
            shape.others += usize::from(is_value && !is_history);
        }
        shape
    }

    /// The shape of a body; fails if it is too deep or has too many values.
    pub(super) fn of_body(bytes: &[u8]) -> Result<Self, ApiError> {
        let shape = Self::of(bytes);
        if shape.depth > MAX_DEPTH {
            let message = format!("The JSON body nests more than {MAX_DEPTH} levels deep.");
            return Err(ApiError::bad_request(message).code("invalid_json"));
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

    /// Bytes of memory besides the text itself, in all copies.
    pub(super) fn memory(&self, text: usize) -> usize {
        text * (COPIES_OF_TEXT - 1)
            + self.escapes * BYTES_PER_ESCAPE
            + self.values * BYTES_PER_VALUE
            + self.objects * BYTES_PER_OBJECT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_and_crowded_bodies_are_refused_before_they_are_built() {
        let refused = |text: &str| Shape::of_body(text.as_bytes()).unwrap_err().message;
        assert!(refused(&"[".repeat(MAX_DEPTH + 1)).contains("levels"));
        let deep = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(Shape::of_body(deep.as_bytes()).is_ok());
        let list = |count: usize| format!("[{}1]", "1,".repeat(count));
        assert!(refused(&format!(r#"{{"input":{}}}"#, list(MAX_VALUES))).contains("500000 values"));
        assert!(refused(&format!(r#"{{"tools":{}}}"#, list(MAX_OTHER_VALUES))).contains("besides"));
        assert!(refused(&format!(r#"{{"x":{{"input":{}}}}}"#, list(MAX_OTHER_VALUES))).contains("besides"));
        for body in [
            format!(r#"{{"input" : {}, "model": "m"}}"#, list(MAX_OTHER_VALUES)),
            format!(r#"{{"input":"{}\"[[["}}"#, "[,".repeat(MAX_VALUES)),
        ] {
            assert!(Shape::of_body(body.as_bytes()).is_ok());
        }
    }
}
