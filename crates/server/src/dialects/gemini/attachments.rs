//! The files of the Files API that a request names.

use std::collections::HashMap;

use aludel_store::{FileRecord, Tenant};
use axum::body::Bytes;
use axum::http::StatusCode;
use tokio::io::AsyncReadExt;

use super::MAX_FILES;
use super::files;
use crate::app::App;
use crate::error::ApiError;
use crate::http::MemoryCharge;

/// Bytes of a file that the model is shown.
const MAX_SHOWN: u64 = 8 << 20;

/// Files by the addresses that a request has for them.
#[derive(Debug, Default)]
pub(super) struct AttachedFiles(HashMap<String, Attachment>);

/// A file that a request names.
#[derive(Debug, Clone)]
pub(super) struct Attachment {
    pub(super) file: FileRecord,
    /// Its content, if the model is shown it.
    pub(super) shown: Option<Bytes>,
}

/// A file that a conversation names.
#[derive(Debug, Clone)]
pub(super) struct NamedFile<'a> {
    /// Its address.
    pub(super) uri: &'a str,
    /// Path of the address in the request.
    pub(super) param: String,
    /// True if an earlier request named it: it may be gone.
    pub(super) is_old: bool,
}

impl AttachedFiles {
    /// Finds files. The model gets images, and texts if there is no place for files (`has_place`); `memory` counts those.
    pub(super) async fn find(
        app: &App,
        tenant: &Tenant,
        named: Vec<NamedFile<'_>>,
        has_place: bool,
        memory: &MemoryCharge,
    ) -> Result<Self, ApiError> {
        let mut found = HashMap::new();
        for NamedFile { uri, param, is_old } in named {
            if found.contains_key(uri) {
                continue;
            }
            if found.len() == MAX_FILES {
                let message = format!("There can be at most {MAX_FILES} files in a conversation.");
                return Err(ApiError::invalid(param, message));
            }
            let name = files::name_of(uri).ok_or_else(|| {
                let message = format!(
                    "'{param}' is not an address of this server's Files API; upload the file there, or send its bytes."
                );
                ApiError::invalid(&param, message)
            })?;
            let file = match files::find(app, tenant, name).await {
                Err(error) if is_old && error.status == StatusCode::NOT_FOUND => continue,
                file => file.map_err(|error| error.param(&param))?,
            };
            let is_shown = file.mime.starts_with("image/") || (!has_place && file.mime.starts_with("text/"));
            let shown = if is_shown { Some(read(app, &file, memory, &param).await?) } else { None };
            found.insert(uri.to_owned(), Attachment { file, shown });
        }
        Ok(Self(found))
    }

    /// The file of an address.
    pub(super) fn get(&self, uri: &str) -> Option<&Attachment> {
        self.0.get(uri)
    }
}

async fn read(app: &App, file: &FileRecord, memory: &MemoryCharge, param: &str) -> Result<Bytes, ApiError> {
    if file.bytes > MAX_SHOWN {
        let message = format!("The file of '{param}' is larger than the {} MB that a model is shown.", MAX_SHOWN >> 20);
        return Err(ApiError::invalid(param, message));
    }
    memory.count_file(file.bytes)?;
    let mut bytes = Vec::new();
    let mut content = app.store.read_blob(&file.blob).await?.take(MAX_SHOWN);
    content.read_to_end(&mut bytes).await.map_err(ApiError::internal)?;
    Ok(bytes.into())
}
