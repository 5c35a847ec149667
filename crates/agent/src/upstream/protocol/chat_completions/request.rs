//! From our conversation to the messages of Chat Completions.

use aludel_wire::chat::{
    Call, CalledFunction, Content, ContentPart, Function, Message, Request, StreamOptions, Tool, ToolChoice,
    ToolChoiceMode,
};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use crate::item::{ImageDetail, Item, Part, RemoteImage, text_of};
use crate::upstream::{self, AnswerFormat};

/// Field with the limit of tokens for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MaxTokens {
    /// `max_tokens`.
    Plain,
    /// `max_completion_tokens`.
    OfCompletion,
}

/// Differences between servers of the same protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) max_tokens: MaxTokens,
    /// True if it can be asked for the usage.
    pub(super) stream_options: bool,
    /// True if it takes an amount of thinking.
    pub(super) effort: bool,
    /// True if it wants its thoughts back.
    pub(super) thoughts: bool,
}

/// The body of a request.
pub(super) fn request(model: &str, request: &upstream::ModelRequest, vision: bool, style: Style) -> Request {
    let tools: Vec<Tool> = request
        .tools
        .iter()
        .map(|tool| {
            Tool::function(Function {
                name: tool.name.clone(),
                description: Some(tool.description.clone()),
                parameters: Some(tool.parameters.clone()),
                strict: tool.strict,
            })
        })
        .collect();
    let tool_choice = match &request.tool_choice {
        // `auto` is the default, and some servers refuse it.
        upstream::ToolChoice::Auto => None,
        upstream::ToolChoice::None => Some(ToolChoice::Mode(ToolChoiceMode::None)),
        upstream::ToolChoice::Required => Some(ToolChoice::Mode(ToolChoiceMode::Required)),
        upstream::ToolChoice::Named(name) => Some(ToolChoice::named(name.clone())),
    };
    let limit = request.sampling.max_output_tokens;
    Request {
        model: model.to_owned(),
        messages: messages(&request.instructions, &request.items, vision, style.thoughts),
        tool_choice: tool_choice.filter(|_| !tools.is_empty()),
        tools: (!tools.is_empty()).then_some(tools),
        parallel_tool_calls: request.sampling.parallel_calls.filter(|_| !request.tools.is_empty()),
        stream: Some(true),
        stream_options: style.stream_options.then_some(StreamOptions { include_usage: true }),
        temperature: request.sampling.temperature,
        top_p: request.sampling.top_p,
        max_tokens: limit.filter(|_| style.max_tokens == MaxTokens::Plain),
        max_completion_tokens: limit.filter(|_| style.max_tokens == MaxTokens::OfCompletion),
        reasoning_effort: request
            .sampling
            .reasoning_effort
            .clone()
            .filter(|effort| style.effort && effort != upstream::NO_THINKING),
        response_format: request.sampling.format.as_ref().map(|format| match format {
            AnswerFormat::Json => json!({ "type": "json_object" }),
            AnswerFormat::Schema(schema) => json!({ "type": "json_schema", "json_schema": schema }),
        }),
        more: request.sampling.chat_fields.clone(),
    }
}

fn messages(instructions: &str, items: &[Item], vision: bool, with_thoughts: bool) -> Vec<Message> {
    let mut messages = Vec::with_capacity(items.len() + 1);
    if !instructions.is_empty() {
        messages.push(Message::System { content: Content::Text(instructions.to_owned()) });
    }
    // A tool's message contains only text, and all answers must directly follow their calls: images come after the last.
    let mut images: Vec<ContentPart> = Vec::new();
    let mut thoughts = None;
    for item in items {
        if !matches!(item, Item::Output(_)) {
            flush_images(&mut messages, &mut images);
        }
        match item {
            Item::User(parts) => messages.push(Message::User { content: content(parts, vision) }),
            Item::Assistant(text) => messages.push(assistant(Some(Content::Text(text.clone())), thoughts.take())),
            Item::Reasoning(text) => thoughts = with_thoughts.then(|| text.clone()),
            Item::Call(call) => add_call(&mut messages, call, &mut thoughts),
            Item::Output(output) => {
                let content = Content::Text(text_of(&output.parts));
                messages.push(Message::Tool { content, tool_call_id: output.call_id.clone() });
                if vision {
                    images.extend(output.parts.iter().filter_map(image));
                }
            }
        }
    }
    flush_images(&mut messages, &mut images);
    messages
}

fn assistant(content: Option<Content>, reasoning_content: Option<String>) -> Message {
    Message::Assistant { content, tool_calls: None, refusal: None, reasoning_content }
}

/// Calls belong to the assistant's message before them.
fn add_call(messages: &mut Vec<Message>, call: &crate::item::Call, thoughts: &mut Option<String>) {
    if !matches!(messages.last(), Some(Message::Assistant { .. })) {
        messages.push(assistant(None, thoughts.take()));
    }
    if let Some(Message::Assistant { tool_calls, .. }) = messages.last_mut() {
        tool_calls.get_or_insert_default().push(Call {
            id: call.id.clone(),
            kind: "function".to_owned(),
            function: CalledFunction { name: call.name.clone(), arguments: call.arguments.clone() },
        });
    }
}

fn flush_images(messages: &mut Vec<Message>, images: &mut Vec<ContentPart>) {
    if !images.is_empty() {
        let mut parts = vec![ContentPart::text("Images that the program displayed:")];
        parts.append(images);
        messages.push(Message::User { content: Content::Parts(parts) });
    }
}

fn content(parts: &[Part], vision: bool) -> Content {
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        return Content::Text(text_of(parts));
    }
    if !vision {
        // A note instead of the image, so that the model does not miss a reference.
        let seen = parts.iter().map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Image { .. } | Part::ImageUrl(_) => "[an image, which this model cannot see]",
        });
        return Content::Text(seen.collect::<Vec<_>>().join("\n"));
    }
    let part = |part: &Part| match part {
        Part::Text(text) => Some(ContentPart::text(text.clone())),
        other => image(other),
    };
    Content::Parts(parts.iter().filter_map(part).collect())
}

fn image(part: &Part) -> Option<ContentPart> {
    match part {
        Part::Text(_) => None,
        Part::Image { mime, data, detail } => {
            let url = format!("data:{mime};base64,{}", BASE64_STANDARD.encode(data));
            Some(ContentPart::image(url, detail.map(word_of)))
        }
        Part::ImageUrl(RemoteImage { url, detail }) => Some(ContentPart::image(url.clone(), detail.map(word_of))),
    }
}

/// The word for a detail. This protocol has none for the whole image.
fn word_of(detail: ImageDetail) -> &'static str {
    match detail {
        ImageDetail::Original => ImageDetail::High.word(),
        detail => detail.word(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_join_their_message_and_images_follow_the_last_answer() {
        let call =
            |id: &str| Item::Call(crate::item::Call { id: id.into(), name: "python".into(), arguments: "{}".into() });
        let output = |id: &str| {
            let image = Part::image("image/png", vec![1]);
            Item::Output(crate::item::CallOutput { call_id: id.into(), parts: vec![Part::Text("done".into()), image] })
        };
        let items =
            [Item::user("q"), Item::Assistant("let me see".into()), call("a"), call("b"), output("a"), output("b")];
        let json = |vision| {
            let roles: Vec<String> = messages("be brief", &items, vision, false)
                .iter()
                .map(|message| serde_json::to_value(message).unwrap()["role"].as_str().unwrap().to_owned())
                .collect();
            roles.join(" ")
        };
        assert_eq!(json(true), "system user assistant tool tool user");
        assert_eq!(json(false), "system user assistant tool tool");
    }

    #[test]
    fn thoughts_go_back_with_the_message_they_led_to() {
        let call = crate::item::Call { id: "a".into(), name: "python".into(), arguments: "{}".into() };
        let items = [
            Item::user("q"),
            Item::Reasoning("first".into()),
            Item::Call(call),
            Item::output("a", "1"),
            Item::Reasoning("second".into()),
            Item::Assistant("one".into()),
        ];
        let thoughts = |with| {
            let messages = serde_json::to_value(messages("", &items, false, with)).unwrap();
            [1, 3].map(|at| messages[at].get("reasoning_content").map(|text| text.as_str().unwrap().to_owned()))
        };
        assert_eq!(thoughts(true), [Some("first".to_owned()), Some("second".to_owned())]);
        assert_eq!(thoughts(false), [None, None]);
    }

    #[test]
    fn a_model_that_does_not_see_is_told_what_it_misses() {
        let image = RemoteImage { url: "https://host/x.png".into(), detail: Some(ImageDetail::Low) };
        let parts = [Part::Text("What is this?".into()), Part::ImageUrl(image)];
        let text = content(&parts, false).text();
        assert_eq!(text, "What is this?\n[an image, which this model cannot see]");
        let seen = serde_json::to_value(content(&parts, true)).unwrap();
        assert_eq!(seen[1]["image_url"], serde_json::json!({ "url": "https://host/x.png", "detail": "low" }));
    }
}
