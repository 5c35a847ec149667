//! The model's answer in one round: turns deltas into events.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::de::IgnoredAny;

use crate::event::Event;
use crate::fenced::{FencedPiece, Scanner};
use crate::item::Call;
use crate::partial_json::StringField;
use crate::random;
use crate::shell::ProgramTool;
use crate::upstream::{Delta, FinishReason, TokenUsage};

/// A rough count of tokens, for upstreams that give none.
const BYTES_PER_TOKEN: usize = 4;
/// More bytes than a token has on average in any language.
const MAX_BYTES_PER_TOKEN: usize = 8;

/// An answer of the model as it comes.
pub(super) struct ModelReply {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) calls: Vec<PendingCall>,
    pub(super) refused: bool,
    pub(super) usage: Option<TokenUsage>,
    pub(super) finish: Option<FinishReason>,
    /// The tools whose programs are shown during streaming, by name.
    ours: Vec<(String, ProgramTool)>,
    /// Ids that later calls must not use: answers are found by id.
    taken: HashSet<String>,
    /// For models that cannot call: finds the program in the text.
    scanner: Option<Scanner>,
}

/// A call whose arguments are arriving.
pub(super) struct PendingCall {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
    /// True if it is a call of our tool, and its start was sent.
    is_shown: bool,
    /// The live view of the program.
    code: Option<StringField>,
}

impl ModelReply {
    /// Listens to a model that calls functions, ours by these names.
    pub(super) fn of_calls(ours: Vec<(String, ProgramTool)>, taken: HashSet<String>) -> Self {
        Self {
            text: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            refused: false,
            usage: None,
            finish: None,
            ours,
            taken,
            scanner: None,
        }
    }

    /// A reply of a model without function calling: a fenced program in its text, with one of these info strings, is a call of the first of
    /// these tools.
    pub(super) fn of_text(ours: Vec<(String, ProgramTool)>, fences: Vec<String>, taken: HashSet<String>) -> Self {
        let scanner = (!ours.is_empty()).then(|| Scanner::new(fences));
        Self { scanner, ..Self::of_calls(ours, taken) }
    }

    /// Returns true if nothing was said.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Returns true once the program in the text is complete. Text after it would be the model's invention of the output.
    pub(super) fn is_complete(&self) -> bool {
        self.scanner.as_ref().is_some_and(Scanner::is_closed)
    }

    /// About as many tokens as were written.
    pub(super) fn tokens(&self) -> u64 {
        tokens(self.bytes())
    }

    /// At least as many tokens as were written.
    pub(super) fn least_tokens(&self) -> u64 {
        (self.bytes() / MAX_BYTES_PER_TOKEN) as u64
    }

    fn bytes(&self) -> usize {
        let calls: usize = self.calls.iter().map(|call| call.arguments.len()).sum();
        self.text.len() + self.reasoning.len() + calls
    }

    /// Takes the next piece and returns its events.
    pub(super) fn read(&mut self, delta: Delta) -> Vec<Event> {
        match delta {
            Delta::Retrying { wait, reason } => vec![Event::Retrying { wait, reason }],
            Delta::FellBack { error, model, .. } => {
                let reason = format!("{error}; asking `{model}` instead");
                vec![Event::Retrying { wait: Duration::ZERO, reason }]
            }
            Delta::Text(text) => match &mut self.scanner {
                Some(scanner) => {
                    let pieces = scanner.push(&text);
                    self.pieces(pieces)
                }
                None => self.say(text),
            },
            Delta::Refusal(text) => {
                self.refused = true;
                self.text.push_str(&text);
                vec![Event::Refusal(text)]
            }
            Delta::Reasoning(text) => {
                self.reasoning.push_str(&text);
                vec![Event::Reasoning(text)]
            }
            Delta::CallStarted { id, name, .. } => self.start(id, name),
            Delta::CallArguments { index, fragment } => self.argue(index, &fragment),
            Delta::Usage(usage) => {
                self.usage = Some(usage);
                Vec::new()
            }
            Delta::Finished(finish) => {
                self.finish = Some(finish);
                Vec::new()
            }
        }
    }

    /// The end of the model's words: what was held back is sent.
    pub(super) fn end(&mut self) -> Vec<Event> {
        let whole = self.finish != Some(FinishReason::Length);
        let Some(scanner) = &mut self.scanner else { return Vec::new() };
        let pieces = scanner.finish();
        let program = scanner.program().filter(|_| whole || scanner.is_closed());
        let events = self.pieces(pieces);
        if let (Some(call), Some(program)) = (self.calls.last_mut(), program) {
            call.arguments = serde_json::json!({ "code": program }).to_string();
        }
        events
    }

    fn say(&mut self, text: String) -> Vec<Event> {
        self.text.push_str(&text);
        vec![Event::Text(text)]
    }

    fn start(&mut self, id: String, name: String) -> Vec<Event> {
        // Some upstreams send no id, and some the same one in every round.
        let usable = !id.is_empty() && self.taken.insert(id.clone());
        let id = if usable { id } else { format!("call_{}", random::word()) };
        let tool = self.ours.iter().find(|(known, _)| *known == name).map(|(_, tool)| *tool);
        let events = tool.map(|tool| Event::WritingStarted { call_id: id.clone(), tool }).into_iter().collect();
        let code = tool.and_then(ProgramTool::shown_key).map(StringField::new);
        self.calls.push(PendingCall { id, name, arguments: String::new(), is_shown: tool.is_some(), code });
        events
    }

    fn argue(&mut self, index: usize, fragment: &str) -> Vec<Event> {
        let Some(call) = self.calls.get_mut(index) else { return Vec::new() };
        call.arguments.push_str(fragment);
        let text = call.code.as_mut().map(|code| code.push(fragment)).unwrap_or_default();
        if text.is_empty() { Vec::new() } else { vec![Event::CodeDelta { call_id: call.id.clone(), text }] }
    }

    fn pieces(&mut self, pieces: Vec<FencedPiece>) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in pieces {
            match piece {
                FencedPiece::Text(text) => events.extend(self.say(text)),
                FencedPiece::Opened => {
                    let name = self.ours.first().map(|(name, _)| name.clone()).unwrap_or_default();
                    events.extend(self.start(String::new(), name));
                }
                FencedPiece::Code(text) => {
                    let Some(call) = self.calls.last_mut() else { continue };
                    // Counted here; the arguments are made from the whole program at the end.
                    call.arguments.push_str(&text);
                    events.push(Event::CodeDelta { call_id: call.id.clone(), text });
                }
            }
        }
        events
    }
}

impl PendingCall {
    /// Returns true if its program was sent while it was written.
    pub(super) fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Returns true if its arguments are a complete object.
    pub(super) fn is_whole(&self) -> bool {
        serde_json::from_str::<HashMap<String, IgnoredAny>>(&self.arguments).is_ok()
    }

    /// The call as an item of the conversation. Arguments that are not JSON are wrapped, so that the upstream can read its own history.
    pub(super) fn item(&self) -> Call {
        let arguments = match serde_json::from_str::<IgnoredAny>(&self.arguments) {
            // Some upstreams send an empty text for no arguments.
            Err(_) if self.arguments.trim().is_empty() => "{}".to_owned(),
            Ok(_) => self.arguments.clone(),
            Err(_) => serde_json::json!({ "malformed": self.arguments }).to_string(),
        };
        Call { id: self.id.clone(), name: self.name.clone(), arguments }
    }
}

/// About as many tokens as text of this length has.
pub(super) fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(id: &str) -> Delta {
        Delta::CallStarted { index: 0, id: id.into(), name: "python".into() }
    }

    #[test]
    fn ids_are_unique_whatever_the_upstream_gives() {
        let mut reply = ModelReply::of_calls(Vec::new(), HashSet::from(["used".to_owned()]));
        for id in ["", "", "used", "new", "new"] {
            reply.read(started(id));
        }
        let ids: HashSet<_> = reply.calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids.len(), 5);
        assert!(ids.contains("new") && !ids.contains("used") && !ids.contains(""), "{ids:?}");
    }

    #[test]
    fn arguments_of_no_call_are_dropped() {
        let mut reply = ModelReply::of_calls(Vec::new(), HashSet::new());
        assert_eq!(reply.read(Delta::CallArguments { index: 3, fragment: "{}".into() }), []);
    }

    #[test]
    fn a_fenced_program_is_a_call_unless_it_was_cut_off() {
        for (text, finish, expected) in [
            ("Look:\n```python\nprint(1)\n```\nOutput: 2", FinishReason::Stop, Some(r#"{"code":"print(1)\n"}"#)),
            ("```python\nprint(1)", FinishReason::Stop, Some(r#"{"code":"print(1)"}"#)),
            ("```python\nprint(1", FinishReason::Length, Some("print(1")),
            ("no code", FinishReason::Stop, None),
        ] {
            let mut reply = ModelReply::of_text(
                vec![("python".into(), ProgramTool::Interpreter)],
                vec!["python".into()],
                HashSet::new(),
            );
            reply.read(Delta::Text(text.into()));
            reply.read(Delta::Finished(finish));
            reply.end();
            assert_eq!(reply.calls.first().map(|call| call.arguments.as_str()), expected, "{text:?}");
        }
    }
}
