//! Agents with a scripted model, and what their turns tell.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "a test may panic, and each uses a part of this")]

use std::time::Duration;

use aludel_agent::upstream::Capabilities;
use aludel_agent::upstream::chat::{Chat, ChatOptions, Protocol};
use aludel_agent::{Agent, AgentBuilder, CodeInterpreter, Event, Item, Secret, Turn, text_of};
use aludel_testkit::{Bench, ScriptedUpstream};
use futures_util::StreamExt;

/// A model at this address that can do everything.
pub fn options(url: String) -> ChatOptions {
    ChatOptions {
        protocol: Protocol::Chat,
        url,
        model: "scripted".into(),
        key: Some(Secret::new("sk-very-secret").from_origin("env:TEST_KEY")),
        capabilities: Capabilities { function_calling: true, vision: true },
        idle_timeout: Duration::from_secs(20),
        headers: Vec::new(),
        max_output_tokens: None,
        requests: None,
    }
}

/// A model that knows no functions and sees no images.
pub fn plain(url: String) -> ChatOptions {
    ChatOptions { capabilities: Capabilities { function_calling: false, vision: false }, ..options(url) }
}

/// An agent without tools.
pub fn builder(options: ChatOptions) -> AgentBuilder {
    Agent::builder(Chat::new(options).unwrap())
}

/// An agent with the interpreter.
pub fn agent(upstream: &ScriptedUpstream, bench: &Bench) -> AgentBuilder {
    builder(options(upstream.url())).code_interpreter(CodeInterpreter::new(bench.session.clone()))
}

/// Runs a turn and returns its events too.
pub async fn follow(agent: &Agent, question: &str) -> (Vec<Event>, Turn) {
    let mut stream = agent.run_streamed(question);
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    (events, stream.turn().unwrap())
}

/// The texts of all tool answers.
pub fn observations(turn: &Turn) -> Vec<String> {
    turn.items
        .iter()
        .filter_map(|item| match item {
            Item::Output(output) => Some(text_of(&output.parts)),
            _ => None,
        })
        .collect()
}
