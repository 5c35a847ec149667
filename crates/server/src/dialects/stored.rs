//! Conversations that are combined from stored requests, in the form for a model.

use std::collections::HashMap;

use aludel_agent::Item;

use crate::error::{ApiError, CONTEXT_EXCEEDED};

/// Longest chain of requests that continue each other.
const MAX_CHAIN: usize = 1000;
/// Bytes of JSON in one conversation.
pub(crate) const MAX_CONTEXT: u64 = 64 << 20;

/// The size of a conversation.
#[derive(Debug, Default)]
pub(crate) struct Length {
    requests: usize,
    bytes: u64,
}

impl Length {
    /// Adds a request of this size; fails if it makes the conversation too long.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.requests += 1;
        self.bytes += bytes as u64;
        if self.requests > MAX_CHAIN || self.bytes > MAX_CONTEXT { Err(too_long()) } else { Ok(()) }
    }
}

/// The refusal of a conversation that is too long.
pub(crate) fn too_long() -> ApiError {
    let message = format!("The conversation is longer than {} MB; begin a new one.", MAX_CONTEXT >> 20);
    ApiError::bad_request(message).code(CONTEXT_EXCEEDED)
}

/// Brings each call to its answer where a message or a later round stands between them, and drops a call that is sent again before its
/// answer, or with the same one. Clients that continue a stored answer may send its question or its calls again, and models take answers
/// only right behind the calls of one round. The thoughts before a call go with it.
pub(crate) fn calls_at_answers(items: Vec<Item>) -> Vec<Item> {
    let mut open: HashMap<&str, (usize, usize)> = HashMap::new();
    let mut answered: HashMap<&str, (usize, usize)> = HashMap::new();
    // The positions of items that belong before an item of another position, in order.
    let mut earlier: HashMap<usize, Vec<usize>> = HashMap::new();
    let (mut is_elsewhere, mut is_repeated) = (vec![false; items.len()], false);
    // A round is a list of calls and that of their answers.
    let (mut round, mut has_answers) = (0, false);
    for (index, item) in items.iter().enumerate() {
        let (call, keeps_call) = match item {
            Item::User(_) | Item::Assistant(_) => {
                (round, has_answers) = (round + 1, false);
                continue;
            }
            Item::Reasoning(_) => continue,
            Item::Call(call) => {
                if std::mem::take(&mut has_answers) {
                    round += 1;
                }
                match open.insert(&call.id, (index, round)) {
                    Some((first, _)) => (first, false),
                    None => continue,
                }
            }
            Item::Output(output) => {
                has_answers = true;
                let Some((call, before)) = open.remove(&*output.call_id) else { continue };
                if let Some((first, answer)) = answered.insert(&output.call_id, (call, index))
                    && items[first] == items[call]
                    && items[answer] == *item
                {
                    (is_elsewhere[call], is_elsewhere[index], is_repeated) = (true, true, true);
                    continue;
                }
                if before == round {
                    continue;
                }
                (call, true)
            }
        };
        let thoughts = items[..call].iter().rev().take_while(|item| matches!(item, Item::Reasoning(_))).count();
        let mut moved = earlier.remove(&call).unwrap_or_default();
        moved.extend((call - thoughts..call).filter(|position| !is_elsewhere[*position]));
        moved.extend(keeps_call.then_some(call));
        earlier.insert(index, moved);
        is_elsewhere[call - thoughts..=call].fill(true);
    }
    if earlier.is_empty() && !is_repeated {
        return items;
    }
    let mut left: Vec<Option<Item>> = items.into_iter().map(Some).collect();
    let mut placed = Vec::with_capacity(left.len());
    for index in 0..left.len() {
        for position in earlier.remove(&index).unwrap_or_default() {
            placed.extend(left[position].take());
        }
        if !is_elsewhere[index] {
            placed.extend(left[index].take());
        }
    }
    placed
}

/// Adds a placeholder answer to each unanswered call: models expect none without an answer.
pub(crate) fn answered(items: Vec<Item>, is_open: impl Fn(&str) -> bool) -> Vec<Item> {
    let mut finished = Vec::with_capacity(items.len());
    for item in items {
        let unanswered = match &item {
            Item::Call(call) if is_open(&call.id) => Some(call.id.clone()),
            _ => None,
        };
        finished.push(item);
        finished.extend(unanswered.map(|id| Item::output(id, "(the call was not answered)")));
    }
    finished
}

#[cfg(test)]
mod tests {
    use aludel_agent::{Call, Part};

    use super::*;

    /// Items by their words: `r` thoughts, `a` a call, `a=` its answer, and messages.
    fn placed(words: &str) -> String {
        let read = |word: &str| match word {
            "r" | "s" => Item::Reasoning(word.to_owned()),
            "a" | "b" | "c" => {
                Item::Call(Call { id: word.to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() })
            }
            "a=" | "b=" | "c=" => Item::output(&word[..1], "done"),
            "said" => Item::Assistant(word.to_owned()),
            _ => Item::User(vec![Part::Text(word.to_owned())]),
        };
        let word = |item: Item| match item {
            Item::Reasoning(text) | Item::Assistant(text) => text,
            Item::Call(call) => call.id,
            Item::Output(output) => output.call_id + "=",
            Item::User(parts) => {
                parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(&**text) } else { None }).collect()
            }
        };
        let items = words.split(' ').map(read).collect();
        calls_at_answers(items).into_iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn calls_stand_right_before_their_answers() {
        for (sent, for_model) in [
            ("q r a b a= b= said q", "q r a b a= b= said q"),
            ("q a said b b= a=", "q said b b= a a="),
            ("q r a said a=", "q said r a a="),
            ("q a b a= a b= a=", "q a a= b b="),
            ("q a b a= c b= c=", "q a a= c b b= c="),
            ("q a b b= c c= a=", "q b b= c c= a a="),
            ("q a c c= r b a= b=", "q c c= r b a a= b="),
            // Semantic Kernel repeats the question, LlamaIndex and Strands the calls, too.
            ("q r a q a=", "q q r a a="),
            ("q r a b q a b a= b=", "q q r a b a= b="),
            ("q r a q a q a=", "q q q r a a="),
            ("q r a q s a q a a=", "q q q r s a a="),
            ("q a b a= q b=", "q a a= q b b="),
            ("q a q said a=", "q q said a a="),
            ("q a q", "q a q"),
            ("q a a= b q a a= b b=", "q a a= q b b="),
            ("q a a= q r a a=", "q a a= q r"),
        ] {
            assert_eq!(placed(sent), for_model);
        }
    }
}
