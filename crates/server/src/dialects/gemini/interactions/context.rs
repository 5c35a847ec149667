//! The conversation so far: stored interactions, and their form for the model and the session.

use std::collections::{HashMap, HashSet};

use aludel_agent::{Call, CallOutput, Item, Part, framed};
use aludel_engine::execution::ending_of;
use aludel_store::{InteractionId, SessionId, Tenant};
use aludel_wire::gemini::interactions::{Content, Interaction, Media, Status, Step};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::request::{ParsedRequest, no_previous};
use crate::app::App;
use crate::dialects::gemini::attachments::{AttachedFiles, NamedFile};
use crate::dialects::gemini::conversation::session_of_program;
use crate::dialects::gemini::inputs::{Inline, Inputs};
use crate::dialects::reasoning::unwrapped;
use crate::dialects::stored::{Length, answered};
use crate::error::ApiError;
use crate::http::MemoryCharge;

/// The conversation that a request builds on, and its additions.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) items: Vec<Item>,
    /// The session that the conversation used last.
    pub(super) session: Option<SessionId>,
    /// Its files.
    pub(super) inputs: Inputs,
}

impl Context {
    /// Collects what the request refers to. `tool` is the name of our tool for the model; `memory` counts all of it.
    pub(super) async fn collect(
        app: &App,
        tenant: &Tenant,
        request: &ParsedRequest,
        tool: &str,
        memory: &MemoryCharge,
    ) -> Result<Self, ApiError> {
        let History { steps: before, session } = match &request.previous {
            Some(previous) => history(app, tenant, previous, memory).await?,
            None => History::default(),
        };
        let named = named_in(&before, true).chain(named_in(&request.steps, false)).collect();
        let attached = AttachedFiles::find(app, tenant, named, request.runs_code, memory).await?;
        let mut reader = Reader::new(&attached, tool, request.runs_code);
        for step in &before {
            reader.read(step, "previous_interaction_id")?;
        }
        reader.is_new = true;
        reader.inputs.are_repeated();
        for (index, step) in request.steps.iter().enumerate() {
            reader.read(step, &format!("input[{index}]"))?;
        }
        let Reader { items, functions, programs, inputs, session: named, .. } = reader;
        let programs: HashSet<String> = programs.into_values().collect();
        let items = answered(items, |id| functions.contains(id) || programs.contains(id));
        Ok(Self { items, session: named.or(session), inputs })
    }
}

/// Stored interactions.
#[derive(Debug, Default)]
struct History {
    /// The steps of all of them, oldest first.
    steps: Vec<Step>,
    session: Option<SessionId>,
}

/// The steps of an interaction and of all that it builds on.
async fn history(app: &App, tenant: &Tenant, last: &InteractionId, memory: &MemoryCharge) -> Result<History, ApiError> {
    let (mut links, mut session) = (Vec::new(), None);
    let (mut next, mut length) = (Some(last.clone()), Length::default());
    while let Some(id) = next {
        let Some(text) = app.store.interaction_text(tenant, &id).await? else {
            if id == *last {
                return Err(no_previous(id.as_str()));
            }
            // An earlier one was deleted: the conversation goes on without it.
            break;
        };
        length.add(text.object.len() + text.input.len())?;
        let input: Vec<Vec<Step>> = memory.read(app, vec![text.input]).await?;
        let mut steps: Vec<Step> = input.into_iter().flatten().collect();
        let interactions: Vec<Interaction> = memory.read(app, vec![text.object]).await?;
        next = None;
        for interaction in interactions {
            if matches!(interaction.status, Status::Queued | Status::InProgress) {
                let message = format!("The interaction '{id}' has not ended yet; wait for it, or cancel it.");
                return Err(ApiError::invalid("previous_interaction_id", message));
            }
            steps.extend(interaction.steps.unwrap_or_default());
            session = session.or_else(|| SessionId::parse(interaction.environment_id.as_deref()?));
            next = interaction.previous_interaction_id.as_deref().and_then(InteractionId::parse);
        }
        links.push(steps);
    }
    Ok(History { steps: links.into_iter().rev().flatten().collect(), session })
}

/// The addresses of files in steps, each with its place.
fn named_in(steps: &[Step], is_old: bool) -> impl Iterator<Item = NamedFile<'_>> {
    steps.iter().enumerate().flat_map(move |(index, step)| {
        let contents = match step {
            Step::UserInput { content } => content.as_slice(),
            _ => &[],
        };
        contents.iter().enumerate().filter_map(move |(place, content)| match content {
            Content::Image(media) | Content::Document(media) | Content::Audio(media) | Content::Video(media) => {
                let uri = media.uri.as_deref().filter(|_| media.data.is_none())?;
                Some(NamedFile { uri, param: format!("input[{index}].content[{place}].uri"), is_old })
            }
            Content::Text { .. } => None,
        })
    })
}

/// Builds the model's view, in which every call has exactly one output.
struct Reader<'a> {
    attached: &'a AttachedFiles,
    tool: &'a str,
    inputs: Inputs,
    items: Vec<Item>,
    /// Calls of the client's functions that are not answered yet.
    functions: HashSet<String>,
    /// Programs without a result: their ids, and the ids for the model.
    programs: HashMap<String, String>,
    count: usize,
    /// The session that the ids of programs name last.
    session: Option<SessionId>,
    /// True for steps of this request.
    is_new: bool,
}

impl<'a> Reader<'a> {
    fn new(attached: &'a AttachedFiles, tool: &'a str, has_place: bool) -> Self {
        let (items, functions, programs, count, session, is_new) = Default::default();
        Self { attached, tool, inputs: Inputs::new(has_place), items, functions, programs, count, session, is_new }
    }

    fn read(&mut self, step: &Step, param: &str) -> Result<(), ApiError> {
        match step {
            Step::UserInput { content } => {
                let mut parts = Vec::new();
                for (index, content) in content.iter().enumerate() {
                    self.content(content, &format!("{param}.content[{index}]"), &mut parts)?;
                }
                if !parts.is_empty() {
                    self.items.push(Item::User(parts));
                }
            }
            Step::ModelOutput { content } => {
                let text = text_of(content);
                if !text.is_empty() {
                    self.items.push(Item::Assistant(text));
                }
            }
            Step::Thought { signature, .. } => {
                let reasoning = signature.as_deref().and_then(unwrapped).filter(|reasoning| !reasoning.is_empty());
                self.items.extend(reasoning.map(Item::Reasoning));
            }
            Step::CodeExecutionCall { id, arguments } => {
                // Models' servers accept only short ids.
                self.count += 1;
                self.session = session_of_program(id).or(self.session.take());
                let known_as = format!("program-{}", self.count);
                let arguments = aludel_agent::arguments_of(arguments.code.as_deref().unwrap_or_default());
                self.items.push(Item::Call(Call { id: known_as.clone(), name: self.tool.to_owned(), arguments }));
                if self.programs.insert(id.clone(), known_as).is_some() && self.is_new {
                    return Err(taken(id, param));
                }
            }
            Step::CodeExecutionResult { call_id, result, .. } => {
                let known_as = self.programs.remove(call_id).ok_or_else(|| answers_nothing(call_id, param))?;
                let output = match Vec::<Content>::deserialize(result) {
                    Ok(contents) => text_of(&contents),
                    Err(_) => result.as_str().unwrap_or_default().to_owned(),
                };
                let text = if output.is_empty() { "(no output)".to_owned() } else { framed(&output) };
                self.items.push(Item::output(known_as, text));
            }
            Step::FunctionCall { id, name, arguments } => {
                // Vercel's client repeats programs as calls.
                self.session = session_of_program(id).or(self.session.take());
                let arguments = Value::Object(arguments.clone()).to_string();
                self.items.push(Item::Call(Call { id: id.clone(), name: name.clone(), arguments }));
                if !self.functions.insert(id.clone()) && self.is_new {
                    return Err(taken(id, param));
                }
            }
            Step::FunctionResult { call_id, result, .. } => {
                if !self.functions.remove(call_id) {
                    return Err(answers_nothing(call_id, param));
                }
                let parts = result_parts(result, &format!("{param}.result"))?;
                self.items.push(Item::Output(CallOutput { call_id: call_id.clone(), parts }));
            }
        }
        Ok(())
    }

    fn content(&mut self, content: &Content, param: &str, parts: &mut Vec<Part>) -> Result<(), ApiError> {
        let media = match content {
            Content::Text { text } => {
                parts.push(Part::Text(text.clone()));
                return Ok(());
            }
            Content::Image(media) | Content::Document(media) | Content::Audio(media) | Content::Video(media) => media,
        };
        match media {
            Media { data: Some(data), mime_type: Some(mime), .. } => {
                // The name contains a hash of the content, so that different files of one position do not collide.
                let digest: String = Sha256::digest(data).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
                let name = format!("input_{digest}.{}", ending_of(mime).unwrap_or("bin"));
                self.inputs.inline(Inline { mime, data, name: Some(name) }, param, parts)
            }
            Media { data: Some(_), mime_type: None, .. } => Err(ApiError::missing(format!("{param}.mime_type"))),
            Media { uri: Some(uri), .. } if !self.is_new && self.attached.get(uri).is_none() => {
                parts.push(Part::Text("[A file that the user attached is gone.]".to_owned()));
                Ok(())
            }
            Media { uri: Some(uri), .. } => self.inputs.named(uri, self.attached, &format!("{param}.uri"), parts),
            Media { data: None, uri: None, .. } => {
                Err(ApiError::invalid(param, format!("'{param}' needs 'data' or 'uri'.")))
            }
        }
    }
}

fn text_of(contents: &[Content]) -> String {
    let texts = contents.iter().filter_map(|content| match content {
        Content::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The result of a client's function, for the model: a text, contents, or any JSON.
fn result_parts(result: &Value, param: &str) -> Result<Vec<Part>, ApiError> {
    let contents = match result {
        Value::String(text) => return Ok(vec![Part::Text(text.clone())]),
        Value::Array(_) => Vec::<Content>::deserialize(result).ok(),
        _ => None,
    };
    let Some(contents) = contents else { return Ok(vec![Part::Text(result.to_string())]) };
    let parts = contents.into_iter().enumerate().map(|(index, content)| match content {
        Content::Text { text } => Ok(Part::Text(text)),
        Content::Image(Media { data: Some(data), mime_type: Some(mime), .. }) => {
            let param = format!("{param}[{index}].data");
            let bytes = BASE64_STANDARD.decode(data);
            let bytes = bytes.map_err(|_| ApiError::invalid(&param, format!("'{param}' is not base64.")))?;
            Ok(Part::image(mime, bytes))
        }
        _ => {
            let param = format!("{param}[{index}]");
            let message = format!("'{param}' must be a text, or an image with 'data' and 'mime_type'.");
            Err(ApiError::invalid(param, message))
        }
    });
    parts.collect()
}

fn answers_nothing(call_id: &str, param: &str) -> ApiError {
    let param = format!("{param}.call_id");
    ApiError::invalid(&param, format!("'{param}', '{call_id}', is the id of no call before it without a result."))
}

fn taken(id: &str, param: &str) -> ApiError {
    let param = format!("{param}.id");
    ApiError::invalid(&param, format!("'{param}', '{id}', is that of another call."))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(steps: Value) -> Result<Vec<Item>, ApiError> {
        let steps: Vec<Step> = serde_json::from_value(steps).unwrap();
        let attached = AttachedFiles::default();
        let mut reader = Reader::new(&attached, "python", true);
        reader.is_new = true;
        for (index, step) in steps.iter().enumerate() {
            reader.read(step, &format!("input[{index}]"))?;
        }
        Ok(reader.items)
    }

    #[test]
    fn ids_of_programs_lead_to_the_session_also_as_those_of_calls() {
        let (session, attached) = (SessionId::new(), AttachedFiles::default());
        let id = crate::dialects::gemini::conversation::program_id(&session, "1");
        for kind in ["code_execution_call", "function_call"] {
            let step = json!({ "type": kind, "id": id, "name": "code_execution", "arguments": { "code": "1" } });
            let mut reader = Reader::new(&attached, "python", true);
            reader.read(&serde_json::from_value(step).unwrap(), "input[0]").unwrap();
            assert_eq!(reader.session, Some(session.clone()), "{kind}");
        }
    }

    #[test]
    fn steps_are_what_the_model_did() {
        let items = read(json!([
            { "type": "user_input", "content": [{ "type": "text", "text": "6 x 7?" },
                { "type": "document", "data": "YQ==", "mime_type": "text/csv" }] },
            { "type": "thought", "signature": crate::dialects::reasoning::wrapped("hm") },
            { "type": "thought", "signature": "of another server" },
            { "type": "code_execution_call", "id": "code_1", "arguments": { "code": "6 * 7", "language": "python" } },
            { "type": "code_execution_result", "call_id": "code_1", "result": "42" },
            { "type": "model_output", "content": [{ "type": "image", "data": "AA==", "mime_type": "image/png" }] },
            { "type": "model_output", "content": [{ "type": "text", "text": "It is 42." }] },
            { "type": "function_call", "id": "f1", "name": "f", "arguments": { "a": 1 } },
            { "type": "function_result", "call_id": "f1", "result": [{ "type": "text", "text": "done" }] },
        ]));
        let items = items.unwrap();
        let name = "[The user attached a file: /mnt/data/input_";
        let Item::User(parts) = &items[0] else { panic!("{items:?}") };
        assert!(
            matches!(&parts[1], Part::Text(text) if text.starts_with(name) && text.ends_with(".csv]")),
            "{parts:?}"
        );
        assert_eq!(items[1], Item::Reasoning("hm".into()));
        let call = |id: &str, name: &str, arguments: &str| {
            Item::Call(Call { id: id.into(), name: name.into(), arguments: arguments.into() })
        };
        assert_eq!(items[2], call("program-1", "python", r#"{"code":"6 * 7"}"#));
        let Item::Output(CallOutput { call_id, parts }) = &items[3] else { panic!("{items:?}") };
        assert!(call_id == "program-1" && aludel_agent::text_of(parts).contains("\n42\n"), "{parts:?}");
        let rest = [Item::Assistant("It is 42.".into()), call("f1", "f", r#"{"a":1}"#), Item::output("f1", "done")];
        assert_eq!(items[4..], rest);
    }

    #[test]
    fn what_leads_nowhere_is_refused_by_its_place() {
        let call = json!({ "type": "function_call", "id": "f1", "name": "f" });
        let file = |content: Value| json!([{ "type": "user_input", "content": [content] }]);
        for (steps, param) in [
            (json!([{ "type": "function_result", "call_id": "f1", "result": "" }]), "input[0].call_id"),
            (json!([{ "type": "code_execution_result", "call_id": "c", "result": "" }]), "input[0].call_id"),
            (json!([call, call]), "input[1].id"),
            (file(json!({ "type": "image" })), "input[0].content[0]"),
            (file(json!({ "type": "image", "data": "!", "mime_type": "image/png" })), "input[0].content[0].data"),
            (file(json!({ "type": "image", "data": "AA==" })), "input[0].content[0].mime_type"),
            (file(json!({ "type": "document", "uri": "files/x" })), "input[0].content[0].uri"),
        ] {
            assert_eq!(read(steps.clone()).unwrap_err().param.as_deref(), Some(param), "{steps}");
        }
    }
}
