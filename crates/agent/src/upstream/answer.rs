//! An answer as it comes: the protocol's pieces in, deltas out.

use super::{Delta, FinishReason, TokenUsage};

/// Bytes of one call's arguments.
const MAX_ARGUMENTS: usize = 1 << 20;
/// Tokens of one kind that one answer is believed to have.
const MAX_TOKENS: u64 = 1 << 53;
/// Calls in one answer.
const MAX_CALLS: usize = 64;

/// An answer that is being read.
#[derive(Default)]
pub(super) struct AnswerBuilder {
    deltas: Vec<Delta>,
    calls: Vec<StartedCall>,
    finish: Option<FinishReason>,
}

/// A call that has started: its identification at the upstream, and the number of bytes of its arguments so far.
struct StartedCall {
    number: Option<u32>,
    id: String,
    size: usize,
}

/// A piece of a call. The first of each has the name.
#[derive(Default)]
pub(super) struct CallPiece {
    /// The number that the upstream gives to the call.
    pub(super) number: Option<u32>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    /// The next characters of its arguments.
    pub(super) arguments: String,
}

impl AnswerBuilder {
    /// Takes the deltas that are ready.
    pub(super) fn take(&mut self) -> Vec<Delta> {
        std::mem::take(&mut self.deltas)
    }

    /// Returns true once all of it has come, but for the usage.
    pub(super) fn is_whole(&self) -> bool {
        self.finish.is_some()
    }

    pub(super) fn text(&mut self, text: Option<String>) {
        self.deltas.extend(text.filter(|text| !text.is_empty()).map(Delta::Text));
    }

    pub(super) fn reasoning(&mut self, text: Option<String>) {
        self.deltas.extend(text.filter(|text| !text.is_empty()).map(Delta::Reasoning));
    }

    pub(super) fn refusal(&mut self, text: Option<String>) {
        self.deltas.extend(text.filter(|text| !text.is_empty()).map(Delta::Refusal));
    }

    pub(super) fn call(&mut self, piece: CallPiece) -> Result<(), Fault> {
        let index = match self.find(&piece) {
            Some(index) => index,
            None => {
                if self.calls.len() == MAX_CALLS {
                    return Err(Fault::TooLarge("the list of its calls", MAX_CALLS as u64));
                }
                let index = self.calls.len();
                let id = piece.id.unwrap_or_default();
                self.calls.push(StartedCall { number: piece.number, id: id.clone(), size: 0 });
                self.deltas.push(Delta::CallStarted { index, id, name: piece.name.unwrap_or_default() });
                index
            }
        };
        let fragment = piece.arguments;
        if !fragment.is_empty() {
            let call = &mut self.calls[index];
            call.size += fragment.len();
            if call.size > MAX_ARGUMENTS {
                return Err(Fault::TooLarge("the arguments of a call", MAX_ARGUMENTS as u64));
            }
            self.deltas.push(Delta::CallArguments { index, fragment });
        }
        Ok(())
    }

    /// Finds the call of a piece, unless the piece starts a new one. Servers identify calls in different ways.
    fn find(&self, piece: &CallPiece) -> Option<usize> {
        let id = piece.id.as_deref().filter(|id| !id.is_empty());
        match (piece.number, id) {
            // Some servers number every call 0; then only the id distinguishes them.
            (Some(number), id) => self
                .calls
                .iter()
                .rposition(|call| call.number == Some(number))
                .filter(|at| id.is_none_or(|id| self.calls[*at].id.is_empty() || self.calls[*at].id == id)),
            (None, Some(id)) => self.calls.iter().position(|call| call.id == id),
            (None, None) if piece.name.as_deref().is_some_and(|name| !name.is_empty()) => None,
            (None, None) => self.calls.len().checked_sub(1),
        }
    }

    /// Some servers send a running total with every piece; the last one counts.
    pub(super) fn usage(&mut self, usage: TokenUsage) {
        let TokenUsage { input, cached, output, reasoning } = usage;
        let [input, cached, output, reasoning] = [input, cached, output, reasoning].map(|count| count.min(MAX_TOKENS));
        self.deltas.push(Delta::Usage(TokenUsage { input, cached, output, reasoning }));
    }

    pub(super) fn finish(&mut self, reason: FinishReason) {
        self.finish = Some(reason);
    }

    /// Returns the last delta.
    pub(super) fn end(&self) -> Delta {
        Delta::Finished(self.finish.unwrap_or(FinishReason::Stop))
    }
}

/// A fault of an answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// It does not follow the protocol, for this reason.
    NotUnderstood(String),
    /// The server reports a failure with this text, which may be empty.
    Failed(String),
    /// The model failed in this way, and another attempt may not.
    Passing(String),
    /// This is larger than the bound.
    TooLarge(&'static str, u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_tokens_can_be_added_up() {
        let mut answer = AnswerBuilder::default();
        answer.usage(TokenUsage { input: u64::MAX, cached: u64::MAX, output: u64::MAX, reasoning: 3 });
        let [Delta::Usage(usage)] = &answer.take()[..] else { panic!("a count") };
        assert_eq!((usage.total(), usage.cached, usage.reasoning), (2 * MAX_TOKENS, MAX_TOKENS, 3));
    }
}
