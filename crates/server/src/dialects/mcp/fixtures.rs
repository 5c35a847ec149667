//! Tools, prompts and resources that the protocol's conformance suite looks for by name (`fixtures.json`), beside our own and through the
//! same transports. They are part of the tests alone: `tests/clients/mcp/conformance/run` starts the test below and runs the suite against
//! it.
#![allow(deprecated, reason = "the suite of 2025-11-25 has logging and sampling")]

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use aludel_store::{Tenant, fresh_id};
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult, ContentBlock,
    ErrorData, GetPromptRequestParams, GetPromptResponse, GetPromptResult, InitializeRequestParams, InitializeResult,
    InputRequest, InputRequests, InputRequiredResult, InputResponses, JsonObject, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel, LoggingMessageNotificationParam,
    PaginatedRequestParams, ProgressNotificationParam, Prompt, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Resource, ResultType, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Mcp;
use super::server::Server;
use super::tools::Profile;

/// A picture of one pixel.
const PNG: &str =
    r#""iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==""#;
/// Pause between two notices of a call.
const PAUSE: Duration = Duration::from_millis(50);

static FIXTURES: LazyLock<Fixtures> =
    LazyLock::new(|| serde_json::from_str(&include_str!("fixtures.json").replace(r#""PNG""#, PNG)).unwrap());
/// Calls that wait for their client's input, by the returned state, with the number of the round. Each state is valid once.
static WAITING: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Deserialize)]
struct Fixtures {
    tools: BTreeMap<String, ToolFixture>,
    inputs: BTreeMap<String, Value>,
    prompts: BTreeMap<String, PromptFixture>,
    resources: BTreeMap<String, JsonObject>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ToolFixture {
    schema: Option<JsonObject>,
    result: Option<Value>,
    /// Lines that are logged.
    log: Vec<String>,
    /// Values of progress, of 100.
    progress: Vec<f64>,
    /// Capabilities that the client has to declare.
    needs: Option<Value>,
    /// A request to a client that shook hands.
    asks: Option<Value>,
    /// Inputs that the client is asked for, round after round.
    rounds: Vec<Vec<String>>,
    /// True if the client brings a state back with its inputs.
    has_state: bool,
    /// True if only such inputs are asked for as the client can give.
    if_declared: bool,
}

#[derive(Debug, Deserialize)]
struct PromptFixture {
    #[serde(default)]
    arguments: Vec<String>,
    #[serde(default)]
    inputs: Vec<String>,
    messages: Value,
}

/// Our server with the fixtures.
#[derive(Clone)]
pub(super) struct WithFixtures(Server);

impl WithFixtures {
    pub(super) fn new(mcp: &Arc<Mcp>, tenant: &Tenant, profile: Profile) -> Self {
        Self(Server::new(mcp, tenant, profile))
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn text(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn tool(name: &str, fixture: &ToolFixture) -> Tool {
    let schema = fixture.schema.clone().unwrap_or_else(|| read(json!({"type": "object", "properties": {}})));
    Tool::new(name.to_owned(), "A fixture.", schema)
}

/// The next inputs that a call needs, or `None` if it has them all.
fn inputs(
    rounds: &[Vec<String>],
    has_state: bool,
    can_give: impl Fn(&str) -> bool,
    responses: Option<&InputResponses>,
    state: Option<&str>,
) -> Result<Option<InputRequiredResult>, ErrorData> {
    let asked = match state {
        Some(state) => WAITING.lock().remove(state),
        None => Some(0),
    };
    let asked = asked.ok_or_else(|| ErrorData::invalid_params("The state is none that this server gave.", None))?;
    let keys = |round: usize| rounds.get(round).map(|keys| keys.iter().filter(|key| can_give(key)));
    let has = |key: &String| responses.and_then(|responses| responses.get(key)).is_some_and(Value::is_object);
    let is_answered = keys(asked).is_some_and(|mut keys| keys.all(has));
    let round = asked + usize::from(is_answered);
    let Some(keys) = keys(round) else { return Ok(None) };
    let request = |key: &String| (key.clone(), read::<InputRequest>(FIXTURES.inputs[key].clone()));
    let state = has_state.then(|| fresh_id("state_"));
    if let Some(state) = &state {
        WAITING.lock().insert(state.clone(), round);
    }
    Ok(Some(InputRequiredResult::new(Some(keys.map(request).collect::<InputRequests>()), state)))
}

/// The capability that a client declares if it can give this input.
fn capability(input: &Value) -> &'static str {
    match input["method"].as_str() {
        Some("elicitation/create") => "elicitation",
        Some("sampling/createMessage") => "sampling",
        _ => "roots",
    }
}

/// Asks a client that shook hands.
async fn ask(request: &Value, arguments: &JsonObject, context: &RequestContext<RoleServer>) -> CallToolResult {
    let mut params = request["params"].clone();
    let answer = if request["method"] == "sampling/createMessage" {
        params["messages"][0]["content"]["text"] = arguments["prompt"].clone();
        let answer = context.peer.create_message(read(params)).await;
        answer.map(|answer| format!("LLM response: {}", json!(answer.message)))
    } else {
        let answer = context.peer.create_elicitation(read(params)).await;
        answer.map(|answer| format!("Elicitation completed: {}", json!(answer)))
    };
    answer.map_or_else(|error| CallToolResult::error(vec![ContentBlock::text(error.to_string())]), text)
}

impl ServerHandler for WithFixtures {
    fn get_info(&self) -> ServerConfig {
        let mut config = self.0.get_info();
        config.capabilities = read(
            json!({"completions": {}, "logging": {}, "prompts": {}, "resources": {"subscribe": true}, "tools": {}}),
        );
        config
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        self.0.initialize(request.clone(), context).await?;
        self.negotiate_initialize(&request)
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut listed = self.0.list_tools(page, context).await?;
        listed.tools.extend(FIXTURES.tools.iter().map(|(name, fixture)| tool(name, fixture)));
        Ok(listed)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        FIXTURES.tools.get(name).map(|fixture| tool(name, fixture)).or_else(|| self.0.get_tool(name))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(fixture) = FIXTURES.tools.get(&*request.name) else {
            return self.0.call_tool(request, context).await;
        };
        let declared = json!(context.client_capabilities());
        if let Some(needs) = &fixture.needs
            && needs.as_object().unwrap().keys().any(|name| declared[name].is_null())
        {
            return Err(ErrorData::missing_required_client_capability(read(needs.clone())));
        }
        if let Some(asks) = &fixture.asks {
            return Ok(ask(asks, &request.arguments.unwrap_or_default(), &context).await.into());
        }
        let can_give = |key: &str| !fixture.if_declared || !declared[capability(&FIXTURES.inputs[key])].is_null();
        let (responses, state) = (request.input_responses.as_ref(), request.request_state.as_deref());
        if !fixture.rounds.is_empty() {
            let needed = inputs(&fixture.rounds, fixture.has_state, can_give, responses, state)?;
            return Ok(needed.map_or_else(|| text(format!("state-ok: {}", json!(responses))).into(), Into::into));
        }
        let is_modern = context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        let wants_log = !is_modern || context.meta.log_level().is_some();
        for line in fixture.log.iter().filter(|_| wants_log) {
            let notice = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(line));
            context.peer.notify_logging_message(notice).await.unwrap();
            sleep(PAUSE).await;
        }
        for progress in &fixture.progress {
            if let Some(token) = context.meta.get_progress_token() {
                let mut notice = ProgressNotificationParam::new(token, *progress);
                notice.total = Some(100.0);
                context.peer.notify_progress(notice).await.unwrap();
            }
            sleep(PAUSE).await;
        }
        let mut result = fixture.result.clone().map_or_else(|| text("Done.".to_owned()), read::<CallToolResult>);
        result.result_type = Some(ResultType::COMPLETE);
        Ok(result.into())
    }

    async fn list_prompts(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompts = FIXTURES.prompts.iter().map(|(name, fixture)| {
            let arguments: Vec<Value> =
                fixture.arguments.iter().map(|name| json!({"name": name, "required": true})).collect();
            read::<Prompt>(json!({"name": name, "description": "A fixture.", "arguments": arguments}))
        });
        Ok(ListPromptsResult::with_all_items(prompts.collect()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let fixture = FIXTURES.prompts.get(&request.name);
        let fixture = fixture.ok_or_else(|| ErrorData::invalid_params("Unknown prompt.", None))?;
        let rounds: Vec<Vec<String>> =
            [fixture.inputs.clone()].into_iter().filter(|inputs| !inputs.is_empty()).collect();
        let responses = request.input_responses.as_ref();
        if let Some(needed) = inputs(&rounds, false, |_| true, responses, request.request_state.as_deref())? {
            return Ok(needed.into());
        }
        let mut messages = fixture.messages.to_string();
        for (name, value) in request.arguments.unwrap_or_default() {
            messages = messages.replace(&format!("{{{name}}}"), value.as_str().unwrap_or_default());
        }
        Ok(GetPromptResult::new(serde_json::from_str(&messages).unwrap()).into())
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let mut listed = self.0.list_resources(page, context).await?;
        listed.resources.extend(FIXTURES.resources.keys().map(|uri| Resource::new(uri, uri)));
        Ok(listed)
    }

    async fn list_resource_templates(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let mut listed = self.0.list_resource_templates(page, context).await?;
        listed.resource_templates.push(read(json!({"uriTemplate": "test://template/{id}/data", "name": "template"})));
        Ok(listed)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let Some(fixture) = FIXTURES.resources.get(&request.uri) else {
            return self.0.read_resource(request, context).await;
        };
        let mut content = fixture.clone();
        content.insert("uri".to_owned(), request.uri.into());
        Ok(ReadResourceResult::new(vec![read(content.into())]).into())
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Ok(read(json!({
            "resultType": "complete", "completion": {"values": ["paris", "park"], "total": 2, "hasMore": false}
        })))
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.supported_by(&self.get_info().capabilities))
    }

    async fn set_level(
        &self,
        _request: SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn subscribe(
        &self,
        _request: SubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }
}

#[tokio::test]
#[ignore = "serves until its input ends, for tests/clients/mcp/conformance/run"]
async fn serves_the_fixtures() {
    use aludel_engine::{ApprovalPolicy, Engine};
    use aludel_sandbox::memory::Memory;
    use aludel_store::Store;
    use tokio::io::AsyncReadExt as _;

    let data = tempfile::tempdir().unwrap();
    let (store, backend) = (Store::open(data.path()).await.unwrap(), Arc::new(Memory::default()));
    let engine = Engine::new(store, backend, [], ApprovalPolicy::default(), Vec::new(), Default::default());
    let app = crate::App::new(Arc::new(engine), crate::ServerSettings::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("listening on http://{}", listener.local_addr().unwrap());
    let ended = async {
        let mut input = Vec::new();
        tokio::io::stdin().read_to_end(&mut input).await.unwrap();
    };
    crate::serve(app, listener, ended).await.unwrap();
}
