//! The parts of items that clients get only on request.

use aludel_wire::openai::responses::{Item, ItemDocument, ItemStatus, Response};
use serde::{Deserialize, Serialize};

/// The extra contents of an answer.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Include {
    /// The output of programs.
    pub(crate) outputs: bool,
    /// Reasoning in a form that can be sent back.
    pub(crate) reasoning: bool,
}

impl Include {
    /// Parses the names; unknown ones are for tools that this server does not have.
    pub(crate) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut include = Self::default();
        for name in names {
            include.outputs |= name == "code_interpreter_call.outputs";
            include.reasoning |= name == "reasoning.encrypted_content";
        }
        include
    }
}

/// The response for a client: with programs' output and encrypted reasoning only on request.
pub(super) fn for_client(mut response: Response, include: Include) -> Response {
    response.output = response.output.into_iter().map(|item| shown_item(item, include)).collect();
    response
}

/// One item for a client, with the same filter.
pub(super) fn shown_item(mut item: Item, include: Include) -> Item {
    match &mut item {
        Item::CodeInterpreterCall(call) if !include.outputs && call.status != Some(ItemStatus::InProgress) => {
            call.outputs = None;
        }
        Item::Reasoning(reasoning) if !include.reasoning => reasoning.encrypted_content = None,
        _ => {}
    }
    item
}

/// One item of a client's input, with the same filter.
pub(crate) fn shown_document(mut item: ItemDocument, include: Include) -> ItemDocument {
    match item.kind() {
        Some("code_interpreter_call") if !include.outputs && item.text("status") != Some("in_progress") => {
            item.hide_outputs();
        }
        Some("reasoning") if !include.reasoning => item.hide_encrypted_content(),
        _ => {}
    }
    item
}
