//! The fuzz target `wire` of `fuzz/`, and the replay of its corpus. Not part of any other build.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::openai::responses::{self, ItemDocument, ToolDocument};
use crate::{anthropic, assistants, chat, gemini, openai, opensandbox};

/// Parses a message of every protocol: what parses is written and parses again as the same value, and a document comes back unchanged.
pub fn wire(bytes: &[u8]) {
    let Ok(sent) = serde_json::from_slice::<Value>(bytes) else { return };
    again::<chat::Request>(&sent);
    again::<chat::Response>(&sent);
    again::<chat::Chunk>(&sent);
    again::<chat::ErrorEnvelope>(&sent);
    again::<openai::CreateConversation>(&sent);
    again::<openai::AddItems>(&sent);
    again::<openai::UpdateConversation>(&sent);
    again::<responses::Request>(&sent);
    again::<responses::Response>(&sent);
    again::<responses::StreamEvent>(&sent);
    again::<responses::ToolChoice>(&sent);
    again::<assistants::Assistant>(&sent);
    again::<assistants::Thread>(&sent);
    again::<assistants::Message>(&sent);
    again::<assistants::Run>(&sent);
    again::<assistants::RunStep>(&sent);
    again::<assistants::MessageDelta>(&sent);
    again::<assistants::StepDelta>(&sent);
    again::<assistants::CreateAssistant>(&sent);
    again::<assistants::CreateThread>(&sent);
    again::<assistants::CreateMessage>(&sent);
    again::<assistants::CreateRun>(&sent);
    again::<assistants::CreateThreadAndRun>(&sent);
    again::<assistants::SubmitToolOutputs>(&sent);
    again::<assistants::ResponseFormat>(&sent);
    again::<assistants::ToolChoice>(&sent);
    again::<anthropic::Request>(&sent);
    again::<gemini::GenerateContentRequest>(&sent);
    again::<gemini::GenerateContentResponse>(&sent);
    again::<gemini::FileMetadata>(&sent);
    again::<gemini::FileList>(&sent);
    again::<gemini::ErrorEnvelope>(&sent);
    again::<gemini::interactions::CreateInteraction>(&sent);
    again::<gemini::interactions::Interaction>(&sent);
    again::<gemini::interactions::StreamEvent>(&sent);
    again::<gemini::interactions::Step>(&sent);
    again::<gemini::interactions::Tool>(&sent);
    again::<gemini::interactions::GenerationConfig>(&sent);
    again::<anthropic::InputMessage>(&sent);
    again::<anthropic::Tool>(&sent);
    again::<anthropic::Block>(&sent);
    again::<anthropic::Event>(&sent);
    again::<anthropic::ErrorEnvelope>(&sent);
    again::<opensandbox::lifecycle::NewSandbox>(&sent);
    again::<opensandbox::code::RunCode>(&sent);
    again::<opensandbox::code::Event>(&sent);
    again::<opensandbox::commands::RunCommand>(&sent);
    again::<opensandbox::files::UploadMetadata>(&sent);

    let document = ItemDocument::from(sent.clone());
    assert_eq!(serde_json::from_str::<ItemDocument>(&document.to_string()).expect("JSON"), document);
    let item = document.item();
    assert_eq!(item.document().item(), item, "{sent}");
    assert_eq!(document.into_json(), sent);
    let document = ToolDocument::from(sent.clone());
    let tool = document.tool();
    let written = serde_json::to_value(&tool).expect("plain data");
    assert_eq!(ToolDocument::from(written).tool(), tool, "{sent}");
    assert_eq!(document.into_json(), sent);
}

/// Reads a message, writes it, and reads it again.
fn again<T: DeserializeOwned + Serialize + PartialEq + Debug>(sent: &Value) {
    let Ok(read) = T::deserialize(sent) else { return };
    let written = serde_json::to_value(&read).expect("plain data");
    let again = T::deserialize(&written).unwrap_or_else(|error| panic!("{error}: {written} of {sent}"));
    assert_eq!(again, read, "{written} of {sent}");
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn kept_inputs_pass() {
        super::replay::replay("wire", super::wire);
    }
}
