//! The conversation of a request, in the form for the model and the session.

use std::collections::VecDeque;

use aludel_agent::{Call, CallOutput, Item, Part, framed};
use aludel_store::SessionId;
use aludel_wire::gemini::{self, CodeExecutionResult, Content, ExecutableCode, FunctionCall, FunctionResponse, Role};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::attachments::{AttachedFiles, NamedFile};
use super::inputs::{Inline, Inputs};
use crate::error::ApiError;

/// Concurrent open calls: each answer is searched among them.
const MAX_OPEN: usize = 1000;
/// Programs that wait for their results: each result is searched among them.
const MAX_RUNNING: usize = 100;
/// The name under which clients repeat programs as calls of functions.
const PROGRAM: &str = "code_execution";
/// Output of a program that came back without its result.
const NOT_REPEATED: &str = "The client did not repeat its output.";

/// A conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) items: Vec<Item>,
    /// The session of its last program, from the program's id or from a signature.
    pub(super) session: Option<SessionId>,
    /// Its files.
    pub(super) inputs: Inputs,
    /// Unanswered calls of the client's functions: ids and names.
    open: Vec<(String, String)>,
    /// Programs of the model's last message whose results follow, oldest first.
    programs: VecDeque<Program>,
    /// Calls of the client's functions in it. Their outputs come after all of them, those of programs after each.
    calls: Vec<Item>,
    /// Places of the outputs of programs that were repeated as calls of functions, until their results follow.
    repeated: VecDeque<usize>,
    /// Number of ids that were made up.
    invented_ids: usize,
}

/// A program whose results are being parsed.
#[derive(Debug)]
struct Program {
    /// Its id at the client, if it has one.
    named: Option<String>,
    id: String,
    /// `None` without a result.
    output: Option<String>,
}

/// The id of a program: its session, and a number of its own.
pub(super) fn program_id(session: &SessionId, item: &str) -> String {
    format!("{session}.{item}")
}

/// The session in the id of a program.
pub(super) fn session_of_program(id: &str) -> Option<SessionId> {
    SessionId::parse(id.split_once('.')?.0)
}

/// A signature that names a session.
pub(super) fn signature_of(session: &SessionId) -> String {
    BASE64_STANDARD.encode(session.as_str())
}

/// The session that a signature names, in either alphabet of base64. Those of other servers name none.
fn session_of_signature(signature: &str) -> Option<SessionId> {
    let signature = signature.trim_end_matches('=');
    let bytes = BASE64_STANDARD_NO_PAD.decode(signature).or_else(|_| BASE64_URL_SAFE_NO_PAD.decode(signature)).ok()?;
    SessionId::parse(str::from_utf8(&bytes).ok()?)
}

/// A program that a client repeats as the call of a function: Vercel's without a result, Mastra's with one.
fn repeated_program(call: &FunctionCall) -> Option<ExecutableCode> {
    let is_program = call.name == PROGRAM && call.args.contains_key("language");
    let code = call.args.get("code").filter(|_| is_program)?.as_str()?.to_owned();
    Some(ExecutableCode { id: None, language: Default::default(), code })
}

/// The files that messages name.
pub(super) fn named_in(contents: &[Content]) -> impl Iterator<Item = NamedFile<'_>> {
    contents.iter().enumerate().flat_map(|(index, content)| {
        content.parts.iter().enumerate().filter_map(move |(part_index, part)| {
            let uri = part.file_data.as_ref()?.file_uri.as_str();
            let param = format!("contents[{index}].parts[{part_index}].fileData.fileUri");
            Some(NamedFile { uri, param, is_old: false })
        })
    })
}

impl Conversation {
    /// Parses messages that name the files `attached`. `tool` is the name of our tool, for the model; without it there is no place for
    /// files.
    pub(super) fn read(contents: &[Content], attached: &AttachedFiles, tool: Option<&str>) -> Result<Self, ApiError> {
        let inputs = Inputs::new(tool.is_some());
        let (items, session, open, programs, calls, repeated, invented_ids) = Default::default();
        let mut conversation = Self { items, session, inputs, open, programs, calls, repeated, invented_ids };
        for (index, content) in contents.iter().enumerate() {
            let param = format!("contents[{index}]");
            match content.role {
                Some(Role::Model) => conversation.model(content, tool.unwrap_or("python"), &param)?,
                Some(Role::User | Role::Function | Role::System) | None => {
                    conversation.end_message();
                    conversation.user(content, attached, &param)?;
                }
            }
        }
        conversation.end_message();
        match conversation.open.first() {
            Some((_, name)) => {
                let message = format!("The call of the function '{name}' has no functionResponse in 'contents'.");
                Err(ApiError::invalid("contents", message))
            }
            None => Ok(conversation),
        }
    }

    fn user(&mut self, content: &Content, attached: &AttachedFiles, param: &str) -> Result<(), ApiError> {
        let mut parts = Vec::new();
        for (index, part) in content.parts.iter().enumerate() {
            let param = format!("{param}.parts[{index}]");
            match part {
                gemini::Part { function_response: Some(response), .. } => self.answered(response, &param)?,
                gemini::Part { inline_data: Some(blob), .. } => {
                    let param = format!("{param}.inlineData");
                    let name = blob.display_name.as_deref().and_then(|name| name.rsplit('/').next());
                    let name = name.filter(|name| !matches!(*name, "" | "." | "..") && !name.contains('\0'));
                    let file = Inline { mime: &blob.mime_type, data: &blob.data, name: name.map(str::to_owned) };
                    self.inputs.inline(file, &param, &mut parts)?;
                }
                gemini::Part { file_data: Some(data), .. } => {
                    let param = format!("{param}.fileData.fileUri");
                    self.inputs.named(&data.file_uri, attached, &param, &mut parts)?;
                }
                gemini::Part { text: Some(text), .. } => parts.push(Part::Text(text.clone())),
                _ => {
                    let message = format!("'{param}' is neither text, inlineData, fileData nor functionResponse.");
                    return Err(ApiError::invalid(param, message));
                }
            }
        }
        if !parts.is_empty() {
            self.items.push(Item::User(parts));
        }
        Ok(())
    }

    fn answered(&mut self, response: &FunctionResponse, param: &str) -> Result<(), ApiError> {
        let by_id = self.open.iter().position(|(id, _)| response.id.as_ref() == Some(id));
        let index = by_id.or_else(|| self.open.iter().position(|(_, name)| *name == response.name));
        let text = match &response.response {
            Value::Object(fields) if fields.len() == 1 => match fields.get("result").or(fields.get("output")) {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => response.response.to_string(),
            },
            response => response.to_string(),
        };
        if index.is_none()
            && response.name == PROGRAM
            && let Some(Item::Output(output)) = self.repeated.pop_front().and_then(|index| self.items.get_mut(index))
        {
            output.parts = vec![Part::Text(framed(&text))];
            return Ok(());
        }
        let Some(index) = index else {
            let message =
                format!("'{param}.functionResponse' of '{}' answers no functionCall before it.", response.name);
            return Err(ApiError::invalid(format!("{param}.functionResponse"), message));
        };
        let (call_id, _) = self.open.remove(index);
        self.items.push(Item::output(call_id, text));
        Ok(())
    }

    /// Reads a part of a message of the model: clients repeat each frame of a stream as a content of its own.
    fn model(&mut self, content: &Content, tool: &str, param: &str) -> Result<(), ApiError> {
        // The request that this answered has copied the files before it. Those after it are new, whatever their names.
        self.inputs.are_repeated();
        for (index, part) in content.parts.iter().enumerate() {
            let signed = part.thought_signature.as_deref().and_then(session_of_signature);
            self.session = signed.or(self.session.take());
            if let Some(result) = &part.code_execution_result {
                self.result(result, &format!("{param}.parts[{index}]"))?;
                continue;
            }
            if let Some(code) = part.function_call.as_ref().and_then(repeated_program) {
                self.program(&code, tool, Some(NOT_REPEATED.to_owned()));
                continue;
            }
            if let Some(code) = &part.executable_code {
                self.program(code, tool, None);
                continue;
            }
            self.end_programs();
            match part {
                gemini::Part { function_call: Some(_), .. } if self.open.len() == MAX_OPEN => {
                    let message =
                        format!("More than {MAX_OPEN} calls of functions wait for their answers at '{param}'.");
                    return Err(ApiError::invalid(param, message));
                }
                gemini::Part { function_call: Some(call), .. } => {
                    let id = call.id.clone().unwrap_or_else(|| self.make_up("call"));
                    self.open.push((id.clone(), call.name.clone()));
                    let arguments = Value::Object(call.args.clone()).to_string();
                    self.calls.push(Item::Call(Call { id, name: call.name.clone(), arguments }));
                }
                gemini::Part { thought: Some(true), .. } => {}
                gemini::Part { text: Some(text), .. } if !text.is_empty() => match self.items.last_mut() {
                    Some(Item::Assistant(before)) => before.push_str(text),
                    _ => self.items.push(Item::Assistant(text.clone())),
                },
                // Images that programs displayed, and parts of other servers.
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends a message of the model.
    fn end_message(&mut self) {
        self.end_programs();
        self.items.append(&mut self.calls);
    }

    fn program(&mut self, code: &ExecutableCode, tool: &str, output: Option<String>) {
        // Several may be written before the first one runs.
        while self.programs.front().is_some_and(|program| program.output.is_some())
            || self.programs.len() == MAX_RUNNING
        {
            self.end_program();
        }
        let named = code.id.as_deref().and_then(session_of_program);
        self.session = named.or(self.session.take());
        // Models' servers accept only short ids.
        let id = self.make_up("program");
        let arguments = json!({ "code": code.code }).to_string();
        self.items.push(Item::Call(Call { id: id.clone(), name: tool.to_owned(), arguments }));
        self.programs.push_back(Program { named: code.id.clone(), id, output });
    }

    fn result(&mut self, result: &CodeExecutionResult, param: &str) -> Result<(), ApiError> {
        let named = self.programs.iter().position(|program| result.id.is_some() && program.named == result.id);
        let last = self.programs.len().checked_sub(1);
        let Some(program) = named.or(last).and_then(|index| self.programs.get_mut(index)) else {
            let message = format!("'{param}.codeExecutionResult' follows no executableCode.");
            return Err(ApiError::invalid(format!("{param}.codeExecutionResult"), message));
        };
        program.output.get_or_insert_default().push_str(&result.output);
        Ok(())
    }

    fn end_programs(&mut self) {
        while !self.programs.is_empty() {
            self.end_program();
        }
    }

    /// Adds the output of the oldest program: every call has exactly one.
    fn end_program(&mut self) {
        if let Some(Program { id, output, .. }) = self.programs.pop_front() {
            let output = output.unwrap_or_default();
            let text = if output.is_empty() { "(no output)".to_owned() } else { framed(&output) };
            if output == NOT_REPEATED {
                self.repeated.push_back(self.items.len());
            }
            self.items.push(Item::Output(CallOutput { call_id: id, parts: vec![Part::Text(text)] }));
        }
    }

    fn make_up(&mut self, kind: &str) -> String {
        self.invented_ids += 1;
        format!("{kind}-{}", self.invented_ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(contents: Value) -> Result<Conversation, ApiError> {
        let contents: Vec<Content> = serde_json::from_value(contents).unwrap();
        Conversation::read(&contents, &AttachedFiles::default(), Some("python"))
    }

    #[test]
    fn a_signature_leads_to_the_session_whatever_part_it_is_repeated_with() {
        let session = SessionId::new();
        let signature = signature_of(&session);
        let url_safe = signature.replace('+', "-").replace('/', "_").trim_end_matches('=').to_owned();
        for signature in [&signature, &url_safe] {
            for part in [
                json!({ "text": "It is 42.", "thoughtSignature": signature }),
                json!({ "text": "", "thought_signature": signature }),
                json!({ "executableCode": { "code": "x" }, "thoughtSignature": signature }),
            ] {
                let other = json!({ "text": "More.", "thoughtSignature": "CpcBAdHtim8x" });
                let contents = json!([{ "role": "model", "parts": [part, other] }]);
                assert_eq!(read(contents).unwrap().session, Some(session.clone()));
            }
        }
    }

    #[test]
    fn what_a_client_repeats_is_what_the_model_did() {
        let session = SessionId::new();
        let id = program_id(&session, "1");
        let conversation = read(json!([
            { "parts": [{ "text": "6 x 7?" }, { "inlineData": { "mimeType": "text/csv", "data": "YQ==" } }] },
            { "role": "model", "parts": [
                { "text": "thinking", "thought": true, "thoughtSignature": "x" },
                { "executableCode": { "language": "PYTHON", "code": "6 * 7", "id": id } },
                { "codeExecutionResult": { "outcome": "OUTCOME_OK", "output": "42", "id": id } },
                { "codeExecutionResult": { "outcome": "OUTCOME_FAILED", "output": "oh" } },
                { "inlineData": { "mimeType": "image/png", "data": "" } },
                { "executableCode": { "code": "x" } },
                { "text": "It is 42." },
                { "functionCall": { "name": "f", "args": { "a": 1 } } } ] },
            { "role": "user", "parts": [{ "functionResponse": { "name": "f", "response": { "result": "done" } } }] },
        ]));
        let conversation = conversation.unwrap();
        assert_eq!(conversation.session, Some(session));
        let call = |id: &str, name: &str, arguments: &str| {
            Item::Call(Call { id: id.into(), name: name.into(), arguments: arguments.into() })
        };
        let attached = "[The user attached a file: /mnt/data/input_file_0.csv]";
        let expected = vec![
            Item::User(vec![Part::Text("6 x 7?".into()), Part::Text(attached.into())]),
            call("program-1", "python", r#"{"code":"6 * 7"}"#),
            conversation.items[2].clone(),
            call("program-2", "python", r#"{"code":"x"}"#),
            Item::output("program-2", "(no output)"),
            Item::Assistant("It is 42.".into()),
            call("call-3", "f", r#"{"a":1}"#),
            Item::output("call-3", "done"),
        ];
        assert_eq!(conversation.items, expected);
        let Item::Output(CallOutput { call_id, parts }) = &conversation.items[2] else { panic!("no output") };
        assert!(call_id == "program-1" && aludel_agent::text_of(parts).contains("\n42oh\n"), "{parts:?}");
    }

    #[test]
    fn frames_of_a_stream_are_one_message() {
        let id = |name: &str| program_id(&SessionId::new(), name);
        let (one, two) = (id("1"), id("2"));
        let parts = [
            json!({ "text": "Let me " }),
            json!({ "text": "see." }),
            json!({ "executableCode": { "code": "1", "id": one } }),
            json!({ "executableCode": { "code": "2", "id": two } }),
            json!({ "codeExecutionResult": { "output": "one", "id": one } }),
            json!({ "codeExecutionResult": { "output": "two", "id": two } }),
            json!({ "functionCall": { "name": "f" } }),
            json!({ "text": "It " }),
            json!({ "text": "is." }),
            json!({ "text": "" }),
        ];
        let answer = json!({ "role": "user", "parts": [{ "functionResponse": { "name": "f" } }] });
        let frames = parts.iter().map(|part| json!({ "role": "model", "parts": [part] }));
        let frames: Value = frames.chain([answer.clone()]).collect();
        for contents in [frames, json!([{ "role": "model", "parts": parts }, answer])] {
            let told: Vec<String> = read(contents).unwrap().items.iter().map(|item| format!("{item:?}")).collect();
            let expected = ["Let me see.", "program-1", "program-2", "one", "two", "It is.", "call-3", "call-3"];
            assert_eq!(told.len(), expected.len(), "{told:#?}");
            for (told, expected) in told.iter().zip(expected) {
                assert!(told.contains(expected), "{told} without {expected}");
            }
            assert!(told[3].contains("program-1") && told[4].contains("program-2"), "{told:#?}");
        }
    }

    #[test]
    fn a_program_that_comes_back_as_a_call_needs_no_answer() {
        let call = json!({ "functionCall": {
            "id": "Z2", "name": "code_execution", "args": { "language": "PYTHON", "code": "x" }
        } });
        let conversation = read(json!([{ "role": "model", "parts": [call, { "text": "Done." }] }])).unwrap();
        let [Item::Call(call), Item::Output(output), Item::Assistant(_)] = &conversation.items[..] else {
            panic!("{:?}", conversation.items)
        };
        assert_eq!((&*call.name, &*call.arguments), ("python", r#"{"code":"x"}"#));
        assert!(output.call_id == call.id && aludel_agent::text_of(&output.parts).contains(NOT_REPEATED));
    }

    #[test]
    fn a_program_that_comes_back_as_a_call_may_have_its_result() {
        let call = |id: &str, code: &str| json!({ "functionCall": { "id": id, "name": PROGRAM, "args": { "language": "PYTHON", "code": code } } });
        let result = |id: &str, text: &str| json!({ "functionResponse": { "id": id, "name": PROGRAM, "response": { "output": text } } });
        let conversation = read(json!([
            { "role": "model", "parts": [call("a", "1"), call("b", "2")] },
            { "role": "user", "parts": [result("a", "one"), result("b", "two"), { "text": "And?" }] },
        ]));
        let items = conversation.unwrap().items;
        let outputs = items.iter().filter_map(|item| if let Item::Output(output) = item { Some(output) } else { None });
        let told: Vec<String> = outputs.map(|output| aludel_agent::text_of(&output.parts)).collect();
        assert!(told.len() == 2 && told[0].contains("\none\n") && told[1].contains("\ntwo\n"), "{told:?}");
        let third = json!([{ "role": "user", "parts": [result("c", "three")] }]);
        assert!(read(third).unwrap_err().message.contains("answers no functionCall"));
    }

    #[test]
    fn many_calls_do_not_make_work_for_each_other() {
        let call = json!({ "functionCall": { "name": "f" } });
        let many = json!([{ "role": "model", "parts": vec![call; 50_000] }]);
        assert!(read(many).unwrap_err().message.contains("More than 1000 calls"));
    }

    #[test]
    fn what_leads_nowhere_is_refused_by_its_place() {
        for (contents, param) in [
            (
                json!([{ "role": "model", "parts": [{ "codeExecutionResult": {} }] }]),
                "contents[0].parts[0].codeExecutionResult",
            ),
            (json!([{ "parts": [{ "functionResponse": { "name": "f" } }] }]), "contents[0].parts[0].functionResponse"),
            (json!([{ "role": "model", "parts": [{ "functionCall": { "name": "f" } }] }]), "contents"),
            (json!([{ "parts": [{ "inlineData": { "data": "!" } }] }]), "contents[0].parts[0].inlineData.data"),
            (json!([{ "parts": [{ "fileData": { "fileUri": "x" } }] }]), "contents[0].parts[0].fileData.fileUri"),
            (json!([{ "parts": [{}] }]), "contents[0].parts[0]"),
        ] {
            assert_eq!(read(contents.clone()).unwrap_err().param.as_deref(), Some(param), "{contents}");
        }
    }
}
