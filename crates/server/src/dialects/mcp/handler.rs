//! The requests that a client may send.

use std::sync::Arc;

use aludel_engine::Arrival;
use aludel_engine::permits::Permit;
use aludel_ignore::Ignore;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation, InitializeRequestParams, InitializeResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tracing::{Instrument as _, Span};

use super::calls::parts;
use super::server::Server;
use super::tools::{self, Profile};
use super::{calls, files, resources};
use crate::http::MemoryCharge;

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
            self.permit.set(Arc::clone(permit)).ignore("a client initializes once");
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
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let span = span(&context);
        let arrival = context.extensions.remove::<Arrival>();
        let called = async {
            match (&*request.name, self.profile) {
                ("python", _) => calls::python(self, request, &context, arrival).await,
                ("wait", Profile::Full) => calls::wait(self, request, &context).await,
                ("files", Profile::Full) => Ok(files::call(self, request, arrival, charge(&context)).await.into()),
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
        resources::list(self, page, charge(&context)).instrument(span(&context)).await
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
        resources::read(self, &request.uri, charge(&context)).instrument(span(&context)).await
    }
}

/// The memory that is counted for a message over HTTP.
fn charge(context: &RequestContext<RoleServer>) -> Option<&MemoryCharge> {
    parts(context).and_then(|parts| parts.extensions.get::<MemoryCharge>())
}

/// The span of the HTTP request; the transport's tasks run outside of it.
fn span(context: &RequestContext<RoleServer>) -> Span {
    let span = parts(context).and_then(|parts| parts.extensions.get::<Span>());
    span.cloned().unwrap_or_else(Span::current)
}
