//! Approval by the client's user, if the policy lets the key decide and the client can ask.

use std::sync::Arc;

use aludel_agent::excerpt;
use aludel_ignore::Ignore;
use aludel_store::{ApprovalRecord, ApprovalStatus, ApprovalUpdate, Tenant};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
    ElicitationSchemaBuilder, EnumSchema, ErrorData, InputRequest, InputRequests, InputRequiredResult, InputResponses,
    ProtocolVersion,
};
use rmcp::service::RequestContext;
use serde::Deserialize;

use super::error::ToolError;
use super::runs::{Run, Stage};
use super::server::Server;

/// Bytes of a program that the client's user is shown.
const MAX_SHOWN: usize = 4000;
/// Bytes of the reason of a refusal.
const MAX_REASON: usize = 1000;
/// The key of the question among the inputs that a call needs.
const QUESTION: &str = "approve";
const RUN_ONCE: &str = "run once";
const DENY: &str = "deny";

/// The result of a question to the client's user.
pub(super) enum Asked {
    /// The client's user has decided, or another party meanwhile.
    Now,
    /// The client asks its user and then calls again; this is the answer to its first call.
    Later(CallToolResponse),
    /// The client's user cannot decide here.
    Elsewhere,
}

/// The answer of the client's user.
#[derive(Debug, Deserialize)]
struct Answer {
    decision: String,
    #[serde(default)]
    reason: Option<String>,
}

/// Asks the client's user about a program that waits.
pub(super) async fn ask(
    server: &Server,
    run: &Run,
    approval: &ApprovalRecord,
    context: &RequestContext<RoleServer>,
) -> Result<Asked, ErrorData> {
    let elicitation = context.client_capabilities().and_then(|capabilities| capabilities.elicitation);
    let has_forms = elicitation.is_some_and(|elicitation| elicitation.form.is_some() || elicitation.url.is_none());
    if !has_forms || !may_decide(server) {
        return Ok(Asked::Elsewhere);
    }
    let question = question(approval)?;
    let is_modern =
        context.protocol_version().is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str());
    if is_modern {
        let question = InputRequest::Elicitation(ElicitRequest::new(question));
        let requests = InputRequests::from([(QUESTION.to_owned(), question)]);
        // The state is a handle: its data is here, belongs to this tenant, and is decided about once.
        return Ok(Asked::Later(InputRequiredResult::new(Some(requests), Some(run.id.clone())).into()));
    }
    let mut stage = run.stage.clone();
    let decided = stage.wait_for(|stage| !matches!(stage, Stage::AwaitsApproval(_)));
    let answer = tokio::select! {
        biased;
        () = context.ct.cancelled() => return Ok(Asked::Now),
        // The operator was faster, or the time is over.
        _ = decided => return Ok(Asked::Now),
        // If the client cannot ask or fails, that is no approval.
        answer = context.peer.create_elicitation(question) => answer.unwrap_or(ElicitResult::new(ElicitationAction::Cancel)),
    };
    if let Err(error) = decide(server, approval, answer, context).await {
        return Err(ErrorData::internal_error(error.0, None));
    }
    Ok(Asked::Now)
}

/// Takes the answer in a client's repeated call. Returns its program.
pub(super) async fn answered(
    server: &Server,
    state: &str,
    code: &str,
    responses: Option<InputResponses>,
    context: &RequestContext<RoleServer>,
) -> Result<Arc<Run>, ToolError> {
    let refused = |words: &str| ToolError(format!("Not approved, so the program did not run: {words}."));
    let run = server.mcp.runs.find(&server.tenant, state);
    let run = run.ok_or_else(|| refused("nobody was asked about it, or that is too long ago"))?;
    if run.sha256 != aludel_store::program_digest(code) {
        return Err(refused("the program is not the one that was asked about"));
    }
    let stage = run.stage.borrow().clone();
    if let (Stage::AwaitsApproval(approval), Some(mut responses)) = (stage, responses)
        && let Some(answer) = responses.remove(QUESTION)
    {
        let answer = serde_json::from_value(answer).unwrap_or(ElicitResult::new(ElicitationAction::Cancel));
        decide(server, &approval, answer, context).await?;
        // The decision takes effect in a moment; until then the client is not asked again.
        let mut stage = run.stage.clone();
        stage
            .wait_for(|stage| !matches!(stage, Stage::AwaitsApproval(_)))
            .await
            .ignore("the program has ended if this fails");
    }
    Ok(run)
}

/// Returns true if the client's user may decide: if the key may, or if there are no keys.
fn may_decide(server: &Server) -> bool {
    server.tenant == Tenant::local() || server.tenant == Tenant::terminal() || server.mcp.engine.approvals().by_key
}

/// Stores a decision. Only the first counts.
async fn decide(
    server: &Server,
    approval: &ApprovalRecord,
    answer: ElicitResult,
    context: &RequestContext<RoleServer>,
) -> Result<(), ToolError> {
    if !may_decide(server) {
        return Err(ToolError("Only the operator decides here (approval.decided_by).".to_owned()));
    }
    let form: Option<Answer> = answer.content.and_then(|content| serde_json::from_value(content).ok());
    let runs =
        answer.action == ElicitationAction::Accept && form.as_ref().is_some_and(|form| form.decision == RUN_ONCE);
    let reason = form.and_then(|form| form.reason).filter(|reason| !reason.trim().is_empty());
    let decision = ApprovalUpdate {
        sha256: approval.sha256.clone(),
        status: if runs { ApprovalStatus::Approved } else { ApprovalStatus::Denied },
        by: format!("the user of {}", client(context)),
        reason: match reason {
            Some(reason) => Some(excerpt::line(&reason, MAX_REASON)),
            None => (!runs).then(|| "the user did not approve it".to_owned()),
        },
    };
    // An earlier decision stands.
    server.mcp.engine.store.decide(Some(&server.tenant), &approval.id, decision).await?;
    Ok(())
}

/// The question with its form.
fn question(approval: &ApprovalRecord) -> Result<ElicitRequestParams, ErrorData> {
    let code = excerpt::head_and_tail(&approval.code, MAX_SHOWN);
    let message = format!(
        "May this program run? ({})\n\n{}\n\n{} bytes, SHA-256 {}",
        approval.reasons.join("; "),
        excerpt::fenced("python", &excerpt::plain(&code)),
        approval.code.len(),
        approval.sha256
    );
    let requested_schema = form().map_err(|error| ErrorData::internal_error(error, None))?;
    Ok(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema })
}

fn form() -> Result<ElicitationSchema, String> {
    let decision = EnumSchema::builder(vec![RUN_ONCE.to_owned(), DENY.to_owned()]);
    let decision = decision.title("Decision").with_default(DENY)?.build();
    let form = ElicitationSchemaBuilder::new().required_enum_schema("decision", decision);
    form.optional_string("reason").build().map_err(str::to_owned)
}

/// The client's own name, for people who decide about its programs.
pub(super) fn client(context: &RequestContext<RoleServer>) -> String {
    let name = context.client_info().map(|client| client.name).unwrap_or_default();
    format!("MCP client {}", excerpt::line(&name, 80))
}
