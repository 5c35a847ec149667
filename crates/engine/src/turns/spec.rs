//! The specification of a turn: enough to begin it, and to go on with it after a restart.

use std::sync::Arc;

use aludel_agent::upstream::{FunctionTool, Sampling, ToolChoice};
use aludel_agent::{Agent, ApprovalDecision, ApprovalRequest, Budgets, CodeInterpreter, Item};
use aludel_store::Tenant;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::run::{ChoicePlan, SessionRetention};
use crate::approvals::{Decider, Gate, ProgramOrigin};
use crate::sessions::Session;
use crate::{Engine, Error};

/// The form of stored specs that this version writes and reads.
const VERSION: u32 = 1;

/// A turn as it is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TurnSpec {
    /// The model, by the name under which clients ask for it.
    pub model: String,
    /// The system prompt.
    pub instructions: String,
    /// Functions of the client's.
    pub functions: Vec<FunctionTool>,
    /// Tools of the client that programs can call. A program that does so waits, and its turn with it, for a later request.
    #[serde(default)]
    pub callable: Vec<FunctionTool>,
    /// The tool that the first round must or must not call.
    pub tool_choice: ToolChoice,
    /// The model's way to choose its words.
    pub sampling: Sampling,
    /// Programs after which the model has to answer with what it has.
    pub max_programs: Option<u32>,
    /// Tokens that the model may read in all rounds, after which the turn ends.
    #[serde(default)]
    pub max_input_tokens: Option<u64>,
    /// Tokens that the model may write in all rounds, after which the turn ends.
    #[serde(default)]
    pub max_output_tokens: Option<u64>,
    /// The party that decides about programs.
    pub decider: Decider,
    /// True if the model has a shell and an editor besides the interpreter.
    #[serde(default)]
    pub has_shell: bool,
}

/// A spec with the form in which it is stored.
#[derive(Serialize, Deserialize)]
struct VersionedSpec {
    version: u32,
    spec: TurnSpec,
}

impl TurnSpec {
    /// A turn with this model and nothing else.
    pub fn new(model: impl Into<String>, instructions: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            instructions: instructions.into(),
            functions: Vec::new(),
            callable: Vec::new(),
            tool_choice: ToolChoice::Auto,
            sampling: Sampling::default(),
            max_programs: None,
            max_input_tokens: None,
            max_output_tokens: None,
            decider: Decider::Operator,
            has_shell: false,
        }
    }

    /// Parses a stored spec; `None` if it is of another version, or empty.
    pub(super) fn read(text: &str) -> Option<Self> {
        let stored: VersionedSpec = serde_json::from_str(text).ok()?;
        (stored.version == VERSION).then_some(stored.spec)
    }

    /// As it is stored.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(VersionedSpec { version: VERSION, spec: self.clone() }).unwrap_or_default()
    }

    /// A gate for the programs of this turn, in the request of this id.
    pub fn gate(
        &self,
        engine: &Arc<Engine>,
        tenant: &Tenant,
        request: String,
        session: &Arc<Session>,
        survives_restart: bool,
    ) -> Arc<Gate> {
        let (kernel_programs, model) = (Arc::clone(session.kernel_programs()), self.model.clone());
        Gate::new(engine, tenant, ProgramOrigin { request, kernel_programs, model }, self.decider, survives_restart)
    }

    /// A choice of the turn, on this conversation. With a session, the model can run programs there through the gate.
    pub fn plan_choice(
        &self,
        engine: &Arc<Engine>,
        tenant: &Tenant,
        items: Vec<Item>,
        session: Option<(Arc<Session>, Arc<Gate>)>,
        retention: SessionRetention,
    ) -> Result<ChoicePlan, Error> {
        let models = engine.models();
        let model = models.find(&self.model)?;
        let upstream = engine.upstream(model);
        let mut budgets = Budgets::default();
        budgets.input_tokens = self.max_input_tokens.unwrap_or(budgets.input_tokens);
        budgets.output_tokens = self.max_output_tokens.unwrap_or(budgets.output_tokens);
        let mut agent = Agent::builder(upstream)
            .owner(tenant.as_str())
            .instructions(self.instructions.clone())
            .tool_choice(self.tool_choice.clone())
            .sampling(self.sampling.clone())
            .budgets(budgets);
        if let Some(count) = self.max_programs {
            agent = agent.max_programs(count);
        }
        for tool in &self.functions {
            agent = agent.client_tool(tool.clone());
        }
        let (session, gate) = session.unzip();
        if let (Some(session), Some(gate)) = (&session, &gate) {
            let template = session.start_from(model.template.clone());
            let packages = engine.packages_of(template.as_ref());
            let interpreter = CodeInterpreter::new(Arc::clone(session) as _).packages(packages.iter().cloned());
            let interpreter = interpreter.with_shell(self.has_shell).with_callable(self.callable.clone());
            agent = agent.code_interpreter(interpreter.approve(gate_with_reservation(gate, session)));
        }
        let (model, agent, may_wait) = (self.model.clone(), agent.build(), !self.callable.is_empty());
        let (reservation, publish_as) = (None, None);
        let is_formed = session.is_some() && self.sampling.format.is_some();
        Ok(ChoicePlan { model, agent, items, session, reservation, gate, retention, publish_as, may_wait, is_formed })
    }
}

/// Sends programs through the gate once a permit for the session's sandbox is reserved, for the rest of the turn.
fn gate_with_reservation(
    gate: &Arc<Gate>,
    session: &Arc<Session>,
) -> impl Fn(ApprovalRequest) -> BoxFuture<'static, ApprovalDecision> + Send + Sync + use<> {
    let (gate, session, reserved) = (Arc::clone(gate), Arc::clone(session), Arc::new(Mutex::new(None)));
    move |program| {
        let (gate, session, reserved) = (Arc::clone(&gate), Arc::clone(&session), Arc::clone(&reserved));
        Box::pin(async move {
            match session.reserve_in_time().await {
                Ok(reservation) => *reserved.lock() = Some(reservation),
                Err(Error::SessionsFull { limit } | Error::SessionsShared { limit }) => {
                    let reason =
                        format!("none of the {limit} containers (server.containers) was free for it; try again later");
                    return ApprovalDecision::Deny { reason };
                }
                // Its start fails in the same way, and is told.
                Err(_) => {}
            }
            gate.pass(program).await
        })
    }
}
