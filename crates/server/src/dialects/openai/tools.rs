//! The tools of a request: the code interpreter with its container, and functions of the client's.

use std::sync::Arc;

use aludel_engine::sessions::SessionChoice;
use aludel_engine::{Environment, Session};
use aludel_store::{FileId, SessionId, Tenant};
use aludel_wire::openai::MemoryLimit;
use serde_json::{Map, Value};

use crate::app::App;
use crate::dialects::openai::containers::{check_memory, no_container, parse_memory, tier};
use crate::dialects::openai::environment::{environment, refused};
use crate::error::ApiError;

/// The requested container of the code interpreter.
#[derive(Debug, Clone)]
pub(crate) enum ContainerChoice {
    /// This container.
    Explicit(SessionId),
    /// The conversation's container, or a new one.
    Auto {
        file_ids: Vec<FileId>,
        memory_limit: Option<MemoryLimit>,
        /// Environment variables of its programs.
        environment: Environment,
        /// The client's name for a session: requests with the same name share a container.
        session: Option<String>,
    },
}

impl ContainerChoice {
    /// A container that is made on demand, or that of this session if there is one.
    pub(crate) fn auto(session: Option<String>) -> Self {
        Self::Auto { file_ids: Vec::new(), memory_limit: None, environment: Environment::default(), session }
    }

    /// Parses the `container` of a tool; `param` is the tool's path in the request.
    pub(crate) fn read(tool: &Value, param: &str) -> Result<Self, ApiError> {
        let param = format!("{param}.container");
        match tool.get("container") {
            Some(Value::String(id)) => {
                Ok(Self::Explicit(SessionId::parse(id).ok_or_else(|| no_container(id).param(param))?))
            }
            Some(Value::Object(container)) => auto(container, &param),
            None | Some(Value::Null) => Err(ApiError::missing(param)),
            Some(_) => {
                let message = format!("Invalid type for '{param}': expected a container's id or an object.");
                Err(ApiError::bad_request(message).param(param).code("invalid_type"))
            }
        }
    }

    /// Opens the container, with the requested files. Without one in the request it is the conversation's last. Returns true for one that
    /// was made for this request.
    pub(crate) async fn open(
        &self,
        app: &App,
        tenant: &Tenant,
        used: Option<SessionId>,
    ) -> Result<(Arc<Session>, bool), ApiError> {
        if let Self::Auto { memory_limit: Some(limit), .. } = self {
            check_memory(*limit, app, "tools")?;
        }
        let is_auto = matches!(self, Self::Auto { session: None, .. });
        let is_used = used.is_some() || matches!(self, Self::Auto { session: Some(_), .. });
        let container = app.engine.sessions.open(tenant, self.choice(used.clone())).await?;
        let is_new = is_auto && used.is_none_or(|used| used != *container.id());
        if let Err(error) = self.fill(app, tenant, &container, is_used).await {
            if is_new {
                app.engine.sessions.remove_unused(&container).await;
            }
            return Err(error);
        }
        Ok((container, is_new))
    }

    /// Adds the requested variables to a container, and the requested files to one that was used before.
    async fn fill(&self, app: &App, tenant: &Tenant, container: &Session, is_used: bool) -> Result<(), ApiError> {
        if let Self::Auto { environment, .. } = self
            && !environment.is_empty()
        {
            let added = container.add_environment(environment).await;
            added.map_err(|error| refused(error, "tools"))?;
        }
        if let (Self::Auto { file_ids, .. }, true) = (self, is_used) {
            let present: Vec<String> = container.files().await?.into_iter().map(|file| file.path).collect();
            for id in file_ids {
                let file = app.store.file(tenant, id).await?;
                let file =
                    file.ok_or_else(|| crate::dialects::openai::files::no_file(id.as_str()).param("file_ids"))?;
                if !present.iter().any(|path| path.ends_with(&format!("/{}", file.filename))) {
                    container.add_stored_file(&file).await?;
                }
            }
        }
        Ok(())
    }

    fn choice(&self, used: Option<SessionId>) -> SessionChoice {
        match (self, used) {
            (Self::Explicit(id), _) => SessionChoice::Explicit(id.clone()),
            (Self::Auto { .. }, Some(id)) => SessionChoice::Reuse(id),
            (Self::Auto { session: Some(session), memory_limit, .. }, None) => {
                SessionChoice::Named { name: format!("session {session}"), memory: memory_limit.map(tier) }
            }
            (Self::Auto { file_ids, memory_limit, session: None, .. }, None) => {
                SessionChoice::Auto { file_ids: file_ids.clone(), memory: memory_limit.map(tier) }
            }
        }
    }
}

fn auto(container: &Map<String, Value>, param: &str) -> Result<ContainerChoice, ApiError> {
    const KNOWN: [&str; 5] = ["type", "file_ids", "memory_limit", "network_policy", "env"];
    if let Some(unknown) = container.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        let param = format!("{param}.{unknown}");
        return Err(ApiError::bad_request(format!("Unknown parameter: '{param}'."))
            .param(param)
            .code("unknown_parameter"));
    }
    match container.get("type").and_then(Value::as_str) {
        Some("auto") => {}
        Some(other) => {
            let message = format!("Invalid value: '{other}'. Supported values are: 'auto'.");
            return Err(ApiError::invalid(format!("{param}.type"), message));
        }
        None => return Err(ApiError::missing(format!("{param}.type"))),
    }
    let ids: Vec<String> = match container.get("file_ids") {
        None | Some(Value::Null) => Vec::new(),
        Some(ids) => serde_json::from_value(ids.clone()).map_err(|error| {
            ApiError::invalid(format!("{param}.file_ids"), format!("Invalid '{param}.file_ids': {error}."))
        })?,
    };
    let file = |id: &String| {
        FileId::parse(id).ok_or_else(|| crate::dialects::openai::files::no_file(id).param(format!("{param}.file_ids")))
    };
    let memory_limit = match container.get("memory_limit") {
        None | Some(Value::Null) => None,
        Some(limit) => {
            let parsed = limit.as_str().and_then(parse_memory);
            Some(parsed.ok_or_else(|| {
                let message = format!("Invalid value: {limit}. Supported values are: '1g', '4g', '16g', and '64g'.");
                ApiError::invalid(format!("{param}.memory_limit"), message)
            })?)
        }
    };
    if let Some(policy) = container.get("network_policy").filter(|policy| !policy.is_null())
        && policy.get("type").and_then(Value::as_str) != Some("disabled")
    {
        let message = "Containers here have no network; 'network_policy' can only be {\"type\": \"disabled\"}.";
        return Err(ApiError::invalid(format!("{param}.network_policy"), message));
    }
    Ok(ContainerChoice::Auto {
        file_ids: ids.iter().map(file).collect::<Result<_, _>>()?,
        memory_limit,
        environment: environment(container.get("env"), &format!("{param}.env"))?,
        session: None,
    })
}

/// Checks the name of a function of the client's.
pub(crate) fn check_function_name(name: &str, param: &str) -> Result<(), ApiError> {
    let plain = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        let message = format!("Invalid '{param}.name': letters, digits, '_' and '-', at most 64 of them.");
        return Err(ApiError::invalid(format!("{param}.name"), message));
    }
    Ok(())
}
