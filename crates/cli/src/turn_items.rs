//! A question and its answer, in the form for the model with the next question.

use std::collections::HashSet;

use aludel_agent::{Call, Item, arguments_of};
use aludel_engine::turns::EventKind;
use aludel_sandbox::PYTHON_TOOL;

/// The items of a turn, collected from its events.
#[derive(Debug, Default)]
pub(crate) struct TurnItems {
    items: Vec<Item>,
    /// Text that the model is writing.
    text: String,
}

impl TurnItems {
    /// Takes the next event.
    pub(crate) fn record(&mut self, event: &EventKind) {
        match event {
            EventKind::RoundStarted { .. } => self.end_text(),
            EventKind::Text { delta, .. } | EventKind::Refusal { delta, .. } => self.text.push_str(delta),
            EventKind::ToolReady { call_id, input, .. } => {
                self.end_text();
                let arguments = arguments_of(input);
                self.items.push(Item::Call(Call { id: call_id.clone(), name: PYTHON_TOOL.to_owned(), arguments }));
            }
            EventKind::Observed { call_id, text } => self.items.push(Item::output(call_id, text)),
            _ => {}
        }
    }

    /// The items of the answer: every call has its output, and every output its call.
    pub(crate) fn into_items(mut self) -> Vec<Item> {
        self.end_text();
        let (mut calls, mut outputs) = (HashSet::new(), HashSet::new());
        for item in &self.items {
            match item {
                Item::Call(call) => calls.insert(call.id.clone()),
                Item::Output(output) => outputs.insert(output.call_id.clone()),
                Item::User(_) | Item::Assistant(_) | Item::Reasoning(_) => false,
            };
        }
        self.items.retain(|item| match item {
            Item::Call(call) => outputs.contains(&call.id),
            Item::Output(output) => calls.contains(&output.call_id),
            Item::User(_) | Item::Assistant(_) | Item::Reasoning(_) => true,
        });
        self.items
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            self.items.push(Item::Assistant(std::mem::take(&mut self.text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use aludel_engine::turns::{ItemId, ToolKind};

    use super::*;

    #[test]
    fn text_calls_and_outputs_stay_in_order_and_no_call_is_without_its_output() {
        let mut exchange = TurnItems::default();
        let text = |delta: &str| EventKind::Text { item: ItemId::new(), delta: delta.into() };
        let ready = |id: &str| EventKind::ToolReady {
            item: ItemId::new(),
            call_id: id.into(),
            tool: ToolKind::Python,
            input: "1".into(),
        };
        let observed = |id: &str| EventKind::Observed { call_id: id.into(), text: "2".into() };
        for event in [
            EventKind::RoundStarted { number: 1 },
            text("Let me "),
            text("see."),
            ready("a"),
            observed("a"),
            observed("malformed"),
            EventKind::RoundStarted { number: 2 },
            ready("interrupted"),
            text("So"),
        ] {
            exchange.record(&event);
        }
        let call = Call { id: "a".into(), name: "python".into(), arguments: r#"{"code":"1"}"#.into() };
        let expected = [
            Item::Assistant("Let me see.".into()),
            Item::Call(call),
            Item::output("a", "2"),
            Item::Assistant("So".into()),
        ];
        assert_eq!(exchange.into_items(), expected);
    }
}
