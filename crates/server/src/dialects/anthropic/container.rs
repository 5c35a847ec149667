//! The container of a request's programs: a session, with the files of the messages.

use std::collections::HashSet;
use std::sync::Arc;

use aludel_engine::Session;
use aludel_engine::sessions::{SessionChoice, WORKSPACE};
use aludel_engine::turns::SessionRetention;
use aludel_store::{SessionId, Tenant};

use super::conversation::Upload;
use super::error::{no_container, of_engine};
use crate::app::App;
use crate::error::ApiError;

/// Opens the container that a client names, or a new one. An expired container is made again from its files.
pub(super) async fn open(
    app: &App,
    tenant: &Tenant,
    named: Option<&SessionId>,
) -> Result<(Arc<Session>, SessionRetention), ApiError> {
    let (choice, retention) = match named {
        None => (SessionChoice::Auto { file_ids: Vec::new(), memory: None }, SessionRetention::Own { lingers: false }),
        Some(id) => {
            if app.store.session(tenant, id).await?.is_none() {
                return Err(no_container(id.as_str()));
            }
            (SessionChoice::Reuse(id.clone()), SessionRetention::Keep)
        }
    };
    Ok((app.engine.sessions.open(tenant, choice).await.map_err(of_engine)?, retention))
}

/// Copies the files of the messages into the session. Clients repeat old ones: they are skipped unless the container is new, because
/// programs may have changed them.
pub(super) async fn copy_into(app: &App, session: &Session, uploads: &[Upload]) -> Result<(), ApiError> {
    if uploads.is_empty() {
        return Ok(());
    }
    let present: HashSet<String> = session.files().await?.into_iter().map(|file| file.path).collect();
    for Upload { file, name, is_old } in uploads {
        if *is_old && present.contains(&format!("{WORKSPACE}/{name}")) {
            continue;
        }
        let blob = app.store.copy_blob(session.tenant(), file.blob()).await?;
        session.add_file(name, file.mime(), blob).await?;
    }
    Ok(())
}
