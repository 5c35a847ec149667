//! Agents with a scripted model, and the events of their turns.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "a test may panic, and each uses a part of this")]

use std::sync::Arc;

use aludel_agent::upstream::ModelCapabilities;
use aludel_agent::upstream::http::{HttpOptions, HttpUpstream};
use aludel_agent::{Agent, AgentBuilder, CodeInterpreter, Event, Item, Secret, Turn, text_of};
use aludel_sandbox::memory::{ScriptedCell, simple};
use aludel_testkit::{Bench, ScriptedTransport, chat_options};
use futures_util::StreamExt;

/// A model and the way to it.
pub struct Model {
    pub options: HttpOptions,
    transport: Arc<ScriptedTransport>,
}

/// A model at this address that can do everything.
pub fn options_at(url: String) -> HttpOptions {
    let key = Secret::new("sk-very-secret").from_origin("env:TEST_KEY");
    HttpOptions { key: Some(key), ..chat_options(url, "scripted") }
}

/// A model in this process that can do everything.
pub fn options(transport: &Arc<ScriptedTransport>) -> Model {
    Model { options: options_at("http://localhost/v1".into()), transport: Arc::clone(transport) }
}

/// A model that knows no functions and sees no images.
pub fn plain(transport: &Arc<ScriptedTransport>) -> Model {
    let mut model = options(transport);
    model.options.capabilities = ModelCapabilities { function_calling: false, vision: false };
    model
}

/// An agent without tools.
pub fn builder(Model { options, transport }: Model) -> AgentBuilder {
    Agent::builder(HttpUpstream::over(options, transport).unwrap())
}

/// An agent with the interpreter.
pub fn agent(transport: &Arc<ScriptedTransport>, bench: &Bench) -> AgentBuilder {
    builder(options(transport)).code_interpreter(CodeInterpreter::new(bench.runtime.clone()))
}

/// A sandbox whose programs are scripted.
pub async fn bench() -> Bench {
    Bench::memory(script).await
}

/// The behaviour of programs.
fn script(code: &str, cell: &mut ScriptedCell) {
    match code {
        "draw()" => cell.display_png(*b"\x89PNG"),
        "print(len(x))" => cell.print("4\n"),
        "print(6 * 7)" | "print(6 * 7)\n" => cell.print("42\n"),
        "open('ran', 'a').write('x'); print(6 * 7)" => cell.write("ran", "x").print("42\n"),
        "while True: print('x' * 100)" => cell.flood(u64::MAX),
        "import time; time.sleep(60)" => cell.never_end(),
        "print('on', flush=True)\nimport time\ntime.sleep(60)" => cell.print("on\n").never_end(),
        _ if code.contains("1/0") => cell.fail("ZeroDivisionError", "division by zero"),
        _ => {
            simple(code, cell);
            cell
        }
    };
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
