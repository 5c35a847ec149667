//! The server that one client speaks with, whatever the transport and the era of its protocol.

use std::sync::{Arc, OnceLock};

use aludel_engine::Session;
use aludel_engine::permits::Permit;
use aludel_engine::sessions::SessionChoice;
use aludel_store::{ContainerId, Tenant};
use axum::http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation, InitializeRequestParams, InitializeResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tokio::sync::Mutex;
use tracing::{Instrument as _, Span};

use super::error::ToolError;
use super::tools::{self, Profile};
use super::{Mcp, calls, files, resources};

/// The server of one connection, or of one request where the protocol knows no connections.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) mcp: Arc<Mcp>,
    pub(super) tenant: Tenant,
    pub(super) profile: Profile,
    /// The session of calls that name none: the first of them makes it.
    pub(super) default: Arc<Mutex<Option<ContainerId>>>,
    /// The permit of a connection.
    permit: Arc<OnceLock<Arc<Permit>>>,
}

impl Server {
    /// A server for one tenant's client.
    pub(super) fn new(mcp: &Arc<Mcp>, tenant: &Tenant, profile: Profile) -> Self {
        let (mcp, tenant) = (Arc::clone(mcp), tenant.clone());
        Self { mcp, tenant, profile, default: Arc::default(), permit: Arc::default() }
    }

    /// The session that a call names, or that of the connection.
    pub(super) async fn session(&self, named: Option<&str>) -> Result<Arc<Session>, ToolError> {
        let engine = &self.mcp.engine;
        if let Some(name) = named.map(str::trim).filter(|name| !name.is_empty()) {
            return self.known_session(name).await?.ok_or_else(|| ToolError::no_session(name));
        }
        let mut default = self.default.lock().await;
        if let Some(id) = &*default
            && let Some(session) = self.known_session(id.as_str()).await?
        {
            return Ok(session);
        }
        let new = SessionChoice::Auto { file_ids: Vec::new(), memory: None };
        let session = engine.sessions.open(&self.tenant, new).await?;
        *default = Some(session.id().clone());
        Ok(session)
    }

    /// The session of this id, whether it has expired or not: its files are there.
    pub(super) async fn known_session(&self, id: &str) -> Result<Option<Arc<Session>>, ToolError> {
        let engine = &self.mcp.engine;
        let Some(id) = ContainerId::parse(id) else { return Ok(None) };
        if engine.store.container(&self.tenant, &id).await?.is_none() {
            return Ok(None);
        }
        Ok(Some(engine.sessions.open(&self.tenant, SessionChoice::Reuse(id)).await?))
    }
}

impl Server {
    /// Makes a change in a task of its own: a call may be dropped with its connection, and what was half made would stay so.
    pub(super) async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, ToolError>> + Send + 'static,
    ) -> Result<T, ToolError> {
        let task = self.mcp.engine.tasks.spawn(change.in_current_span());
        task.await.unwrap_or_else(|error| Err(aludel_engine::Error::internal(error).into()))
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let (name, capabilities) = match self.profile {
            Profile::Full => ("aludel", ServerCapabilities::builder().enable_tools().enable_resources().build()),
            Profile::PythonAlone => ("python", ServerCapabilities::builder().enable_tools().build()),
        };
        let mut config = ServerConfig::new(capabilities);
        config.server_info = Implementation::new(name, env!("CARGO_PKG_VERSION"));
        config.instructions = Some(tools::about(&self.mcp.engine));
        config
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        if let Some(permit) = parts(&context).and_then(|parts| parts.extensions.get::<Arc<Permit>>()) {
            // It is set once: a client shakes hands once.
            let _first = self.permit.set(Arc::clone(permit));
        }
        self.negotiate_initialize(&request)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list(&self.mcp.engine, self.profile)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::list(&self.mcp.engine, self.profile).into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let span = span(&context);
        let called = async {
            match (&*request.name, self.profile) {
                ("python", _) => calls::python(self, request, &context).await,
                ("wait", Profile::Full) => calls::wait(self, request, &context).await,
                ("files", Profile::Full) => Ok(files::call(self, request).await.into()),
                (name, _) => {
                    let name = aludel_agent::excerpt::line(name, 80);
                    Err(ErrorData::invalid_params(format!("Unknown tool: {name}"), None))
                }
            }
        };
        called.instrument(span).await
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(self, page).instrument(span(&context)).await
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(self, &request.uri).instrument(span(&context)).await
    }
}

/// The HTTP request that brought a message, if one did.
fn parts(context: &RequestContext<RoleServer>) -> Option<&Parts> {
    context.extensions.get::<Parts>()
}

/// The span of the HTTP request, which the transport's tasks are not in.
fn span(context: &RequestContext<RoleServer>) -> Span {
    let span = parts(context).and_then(|parts| parts.extensions.get::<Span>());
    span.cloned().unwrap_or_else(Span::current)
}
