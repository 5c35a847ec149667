//! Creations of sandboxes that a client may repeat: one with the same idempotency key gives the sandbox that is there.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_engine::sandboxes::{ClientSandbox, Sandboxes};
use aludel_store::Tenant;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::error::ApiError;

/// The longest idempotency key, bytes.
const MAX_KEY: usize = 255;

/// The creations with a key whose sandboxes are there, or are being made.
#[derive(Debug, Default)]
pub(crate) struct RepeatedCreations(Mutex<HashMap<(Tenant, String), Creation>>);

#[derive(Debug)]
struct Creation {
    /// The digest of its request.
    request: String,
    /// The id of its sandbox.
    made: Arc<OnceCell<String>>,
}

impl RepeatedCreations {
    /// Returns the sandbox that was made under this key, or makes it. Fails if the key came with another request.
    pub(crate) async fn once(
        &self,
        sandboxes: &Sandboxes,
        (tenant, key): (&Tenant, &str),
        request: &str,
        create: impl Future<Output = Result<Arc<ClientSandbox>, ApiError>>,
    ) -> Result<Arc<ClientSandbox>, ApiError> {
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(ApiError::bad_request(format!("an idempotency key has from 1 to {MAX_KEY} bytes")));
        }
        let creation = self.creation(sandboxes, tenant, key, request)?;
        let mut made = None;
        let creating = async {
            let sandbox = made.insert(create.await?);
            Ok::<_, ApiError>(sandbox.id().to_owned())
        };
        let id = creation.get_or_try_init(|| creating).await?;
        let gone = || ApiError::not_found("the sandbox of this idempotency key has ended".to_owned());
        made.or_else(|| sandboxes.get(tenant, id)).ok_or_else(gone)
    }

    fn creation(
        &self,
        sandboxes: &Sandboxes,
        tenant: &Tenant,
        key: &str,
        request: &str,
    ) -> Result<Arc<OnceCell<String>>, ApiError> {
        let mut known = self.0.lock();
        known.retain(|(tenant, _), creation| match creation.made.get() {
            Some(id) => sandboxes.get(tenant, id).is_some(),
            None => Arc::strong_count(&creation.made) > 1,
        });
        let new = || Creation { request: request.to_owned(), made: Arc::default() };
        let creation = known.entry((tenant.clone(), key.to_owned())).or_insert_with(new);
        if creation.request != request {
            let message =
                "this idempotency key was sent before with another body; a different request needs a key of its own";
            return Err(ApiError::conflict(message));
        }
        Ok(Arc::clone(&creation.made))
    }
}
