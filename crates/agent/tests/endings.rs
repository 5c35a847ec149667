//! Turns that end early, and turns of several tools: nothing is lost, nothing goes on, and the conversation can be continued.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aludel_agent::upstream::{AnswerFormat, FunctionTool, Sampling};
use aludel_agent::{
    ApprovalDecision, BareSandbox, Budget, Budgets, Call, CodeInterpreter, CutOff, Ending, Event, Item, Runtime,
    RuntimeError, Turn,
};
use aludel_sandbox::{Cell, Execution, ExecutionEvent, FileEntry, KernelSpec, Limits};
use aludel_testkit::{Bench, End, Scripted, ScriptedTransport};
use common::{agent, bench, builder, follow, observations, options, plain};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

fn tool(name: &str) -> FunctionTool {
    FunctionTool {
        name: name.into(),
        description: "A tool.".into(),
        parameters: json!({ "type": "object" }).into(),
        strict: None,
    }
}

/// The calls that nobody answered.
fn open_calls(turn: &Turn) -> Vec<&str> {
    let answered =
        |id: &str| turn.items.iter().any(|item| matches!(item, Item::Output(output) if output.call_id == id));
    turn.items
        .iter()
        .filter_map(|item| match item {
            Item::Call(call) if !answered(&call.id) => Some(call.name.as_str()),
            _ => None,
        })
        .collect()
}

/// Runs a program in the session, and returns what it prints first.
async fn prints(bench: &Bench, code: &str) -> Option<ExecutionEvent> {
    bench.runtime.execute(Cell::new(code)).await.unwrap().next().await
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_calls_leaves_no_call_open_not_even_the_callers() {
    let bench = bench().await;
    let calls = vec![
        ("python", r#"{"code": "print(1)"}"#.to_owned()),
        ("weather", "{}".to_owned()),
        ("python", r#"{"code": "print(2)"}"#.to_owned()),
    ];
    let upstream = ScriptedTransport::new(vec![Scripted::Calls(calls)]);
    let budgets = Budgets { tool_calls: 1, ..Budgets::default() };
    let turn = agent(&upstream, &bench).client_tool(tool("weather")).budgets(budgets).build().run("Go").await;
    assert_eq!(turn.ending, Ending::Budget(Budget::ToolCalls(1)));
    assert_eq!(open_calls(&turn), [""; 0]);
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_tool_of_the_caller_may_have_our_name() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![Scripted::Calls(vec![("python", "{}".into())])]);
    let (events, turn) = follow(&agent(&upstream, &bench).client_tool(tool("python")).build(), "Go").await;
    assert!(matches!(&turn.ending, Ending::ClientTools(calls) if calls.len() == 1), "{:?}", turn.ending);
    assert!(!events.iter().any(|event| matches!(event, Event::WritingStarted { .. })), "it is not our tool");
    let names: Vec<_> = upstream.requests()[0]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.len() == 2 && names[0] != names[1], "{names:?}");
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_model_that_calls_what_does_not_exist_is_told_of_every_tool() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![Scripted::Calls(vec![("browser", "{}".into())]), Scripted::Text("ok")]);
    let turn = agent(&upstream, &bench).client_tool(tool("weather")).build().run("Go").await;
    assert!(observations(&turn)[0].contains("python, weather"), "{:?}", observations(&turn));
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cancelling_does_not_wait_for_another_program_of_the_session() {
    let bench = bench().await;
    let other = bench.runtime.execute(Cell::new("import time; time.sleep(60)")).await.unwrap();
    let upstream = ScriptedTransport::new(vec![Scripted::Python("print(1)")]);
    let mut stream = agent(&upstream, &bench).build().run_streamed("Go");
    let canceller = stream.canceller();
    let mut cancelled_at = None;
    while let Some(event) = stream.next().await {
        if matches!(event, Event::CodeWritten { .. }) {
            let canceller = canceller.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(200)).await;
                canceller.cancel();
            });
            cancelled_at = Some(Instant::now());
        }
    }
    assert_eq!(stream.turn().unwrap().ending, Ending::Cancelled);
    // The other one's time is 30 s.
    assert!(cancelled_at.unwrap().elapsed() < Duration::from_secs(15));
    drop(other);
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_never_pauses_can_be_cancelled() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![Scripted::Python("while True: print('x' * 100)")]);
    let mut stream = agent(&upstream, &bench).build().run_streamed("Go");
    let canceller = stream.canceller();
    let mut cancelled_at = None;
    while let Some(event) = stream.next().await {
        if cancelled_at.is_none() && matches!(event, Event::Execution { .. }) {
            canceller.cancel();
            cancelled_at = Some(Instant::now());
        }
    }
    let turn = stream.turn().unwrap();
    assert_eq!((&turn.ending, open_calls(&turn).len()), (&Ending::Cancelled, 0));
    assert!(cancelled_at.unwrap().elapsed() < Duration::from_secs(25), "nobody waits for its time limit");
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dropping_the_stream_ends_the_program_and_frees_the_session() {
    let bench = bench().await;
    let upstream =
        ScriptedTransport::new(vec![Scripted::Python("print('on', flush=True)\nimport time\ntime.sleep(60)")]);
    let mut stream = agent(&upstream, &bench).build().run_streamed("Go");
    while let Some(event) = stream.next().await {
        if matches!(event, Event::Execution { event: ExecutionEvent::Stdout(_), .. }) {
            break;
        }
    }
    drop(stream);
    let started = Instant::now();
    assert_eq!(prints(&bench, "print('next')").await, Some(ExecutionEvent::Stdout("next\n".into())));
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn time_is_up_also_while_the_model_is_silent_and_while_a_person_thinks() {
    let bench = bench().await;
    let budgets = Budgets { time: Duration::from_millis(500), ..Budgets::default() };
    let expected = Ending::Budget(Budget::Time(budgets.time));
    let silent = ScriptedTransport::new(vec![Scripted::Hang]);
    assert_eq!(agent(&silent, &bench).budgets(budgets.clone()).build().run("Go").await.ending, expected);
    let asks = ScriptedTransport::new(vec![Scripted::Python("print(1)")]);
    let interpreter =
        CodeInterpreter::new(bench.runtime.clone()).approve(|_| std::future::pending::<ApprovalDecision>());
    let turn = builder(options(&asks)).code_interpreter(interpreter).budgets(budgets).build().run("Go").await;
    assert_eq!((&turn.ending, open_calls(&turn).len()), (&expected, 0));
    // A time that no clock can hold is none.
    let upstream = ScriptedTransport::new(vec![Scripted::Text("Hi.")]);
    let budgets = Budgets { time: Duration::MAX, ..Budgets::default() };
    assert_eq!(builder(options(&upstream)).budgets(budgets).build().run("Go").await.answer, "Hi.");
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn tokens_are_counted_while_a_model_does_not_stop() {
    let word = json!({ "choices": [{ "index": 0, "delta": { "content": "word ".repeat(100) } }] }).to_string();
    let upstream = ScriptedTransport::new(vec![Scripted::Events(vec![word; 100], End::Hold)]);
    let budgets = Budgets { tokens: 1000, ..Budgets::default() };
    let started = Instant::now();
    let turn = builder(options(&upstream)).budgets(budgets).build().run("Go").await;
    assert_eq!(turn.ending, Ending::Budget(Budget::Tokens(1000)));
    assert!(turn.answer.starts_with("word "));
    assert!(started.elapsed() < Duration::from_secs(18), "nobody waits for the idle timeout");
}

#[tokio::test(start_paused = true)]
async fn a_question_that_was_never_read_costs_nothing() {
    let upstream = ScriptedTransport::new(vec![Scripted::Status(401, "", "no")]);
    let (events, turn) = follow(&builder(options(&upstream)).build(), "Hello, is anybody there?").await;
    assert_eq!(turn.usage.total(), 0);
    assert!(!events.iter().any(|event| matches!(event, Event::Usage(_))));
}

#[tokio::test(start_paused = true)]
async fn what_a_model_invents_after_its_program_is_not_shown() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![
        Scripted::Text("Let me see.\n```python\nprint(6 * 7)\n```\nOutput: 41\nSo the answer is 41.\n"),
        Scripted::Text("It is 42."),
    ]);
    let agent = builder(plain(&upstream)).code_interpreter(CodeInterpreter::new(bench.runtime.clone())).build();
    let (events, turn) = follow(&agent, "6 times 7?").await;
    assert_eq!(turn.answer, "It is 42.");
    let said: String = events
        .iter()
        .filter_map(|event| match event {
            Event::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(said, "Let me see.\nIt is 42.");
    let written: String = events
        .iter()
        .filter_map(|event| match event {
            Event::CodeDelta { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(written, "print(6 * 7)\n");
    assert!(!upstream.requests()[1].to_string().contains("answer is 41"), "the model does not read its own invention");
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_model_without_functions_sees_text_only() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![Scripted::Text("Still 1.")]);
    let agent = builder(plain(&upstream))
        .code_interpreter(CodeInterpreter::new(bench.runtime.clone()))
        .client_tool(tool("weather"))
        .build();
    // The conversation began with a model that can call.
    let call = Call { id: "c1".into(), name: "python".into(), arguments: r#"{"code": "print(1)"}"#.into() };
    let items = vec![
        Item::user("One?"),
        Item::Assistant("I compute.".into()),
        Item::Call(call),
        Item::output("c1", "[stdout]\n1"),
        Item::Assistant("1.".into()),
        Item::user("Sure?"),
    ];
    let turn = agent.resume(items.clone()).wait().await;
    assert_eq!(turn.items[..items.len()], items, "the conversation itself stays as it was");
    let request = &upstream.requests()[0];
    assert!(request.get("tools").is_none(), "{request}");
    let messages: Vec<_> = request["messages"].as_array().unwrap()[1..]
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["content"].as_str().unwrap()))
        .collect();
    assert_eq!(
        messages,
        [
            ("user", "One?"),
            ("assistant", "I compute.\n```python\nprint(1)\n```"),
            ("user", "[stdout]\n1"),
            ("assistant", "1."),
            ("user", "Sure?"),
        ]
    );
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_the_token_limit_cut_off_is_called_so() {
    let bench = bench().await;
    let call = json!({ "index": 0, "id": "c", "function": { "name": "python", "arguments": "{\"code\": \"print(" } });
    let events = [json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] }, "finish_reason": "length" }] })];
    let events = events.map(|event| event.to_string()).to_vec();
    let upstream = ScriptedTransport::new(vec![Scripted::Events(events, End::Done), Scripted::Text("Shorter then.")]);
    let turn = agent(&upstream, &bench).build().run("Go").await;
    assert!(observations(&turn)[0].contains("limit of tokens"), "{:?}", observations(&turn));
    bench.stop().await;
}

/// The events of an answer that calls these functions and ends for this reason.
fn calling(calls: &[(&str, &str)], finish: &str) -> Scripted {
    let call = |(index, (name, arguments)): (usize, &(&str, &str))| {
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "index": index, "id": format!("c{index}"), "function": function })
    };
    let calls: Vec<_> = calls.iter().enumerate().map(call).collect();
    let event = json!({ "choices": [{ "index": 0, "delta": { "tool_calls": calls }, "finish_reason": finish }] });
    Scripted::Events(vec![event.to_string()], End::Done)
}

#[tokio::test(start_paused = true)]
async fn a_call_of_the_caller_that_was_cut_off_is_not_handed_over() {
    let bench = bench().await;
    let program = ("python", r#"{"code": "print(1)"}"#);
    for (half, finish, by) in [
        (r#"{"city": "Bo"#, "length", CutOff::Length),
        ("", "length", CutOff::Length),
        ("\"Bo\"", "length", CutOff::Length),
        (r#"{"city": "#, "content_filter", CutOff::Filter),
    ] {
        let calls = [program, ("weather", r#"{"city": "Bonn"}"#), ("weather", half)];
        let upstream = ScriptedTransport::new(vec![calling(&calls, finish), Scripted::Text("Rain.")]);
        let agent = agent(&upstream, &bench).client_tool(tool("weather")).build();
        let (events, turn) = follow(&agent, "Go").await;
        assert_eq!(turn.ending, Ending::CutOff(by), "{half}");
        assert_eq!(open_calls(&turn), [""; 0], "{half}");
        assert!(observations(&turn).contains(&format!("The call was cut off by {by}.")), "{:?}", observations(&turn));
        assert!(!events.iter().any(|event| matches!(event, Event::CodeWritten { .. })), "nothing has run");
        assert_eq!(agent.resume(turn.items).wait().await.answer, "Rain.");
    }
    let whole = ("weather", r#"{"city": "Bonn"}"#);
    let upstream = ScriptedTransport::new(vec![calling(&[whole], "length")]);
    let turn = agent(&upstream, &bench).client_tool(tool("weather")).build().run("Go").await;
    assert!(matches!(&turn.ending, Ending::ClientTools(calls) if calls[0].arguments == whole.1), "{:?}", turn.ending);
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn blank_arguments_are_none() {
    let bench = bench().await;
    for blank in ["", " \n"] {
        let upstream = ScriptedTransport::new(vec![
            calling(&[("python", blank)], "tool_calls"),
            calling(&[("weather", blank)], "tool_calls"),
        ]);
        let turn = agent(&upstream, &bench).client_tool(tool("weather")).build().run("Go").await;
        let Ending::ClientTools(calls) = &turn.ending else { panic!("{:?}", turn.ending) };
        assert_eq!(calls[0].arguments, "{}", "{blank:?}");
        let sent = &upstream.requests()[1]["messages"].to_string();
        assert!(sent.contains(r#""arguments":"{}""#) && sent.contains("Send {"), "{sent}");
    }
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_the_last_program_the_model_must_answer() {
    let bench = bench().await;
    let two = vec![("python", json!({ "code": "1" }).to_string()), ("python", json!({ "code": "2" }).to_string())];
    let upstream = ScriptedTransport::new(vec![Scripted::Calls(two), Scripted::Text("One.")]);
    let sampling = Sampling { format: Some(AnswerFormat::Json), parallel_calls: Some(false), ..Sampling::default() };
    let agent = agent(&upstream, &bench).max_programs(1).sampling(sampling).build();
    let (events, turn) = follow(&agent, "?").await;
    assert_eq!((&turn.ending, turn.answer.as_str()), (&Ending::Answered, "One."));
    let run = events.iter().filter(|event| matches!(event, Event::CodeWritten { .. })).count();
    assert_eq!(run, 1);
    assert!(observations(&turn)[1].contains("No more programs"), "{:?}", observations(&turn));
    let requests = upstream.requests();
    assert_eq!((requests[0].get("tool_choice"), &requests[1]["tool_choice"]), (None, &json!("none")));
    assert_eq!(requests[0]["response_format"], json!({ "type": "json_object" }));
    assert_eq!(requests[0]["parallel_tool_calls"], json!(false));
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_model_that_goes_on_asking_for_programs_is_stopped_and_its_attempts_are_not_shown() {
    let bench = bench().await;
    let upstream =
        ScriptedTransport::new((0..30).map(|number| Scripted::Python(&*format!("{number}").leak())).collect());
    let (events, turn) = follow(&agent(&upstream, &bench).max_programs(3).build(), "?").await;
    assert_eq!(turn.ending, Ending::Budget(Budget::ToolCalls(3)));
    assert_eq!(upstream.requests().len(), 5);
    let shown =
        events.iter().filter(|event| matches!(event, Event::WritingStarted { .. } | Event::CallRejected { .. }));
    assert_eq!(shown.count(), 3);
    assert!(observations(&turn)[3..].iter().all(|text| text.contains("No more programs")), "{:?}", observations(&turn));
    bench.stop().await;
}

/// A runtime that counts programs, and refuses them without another one behind it.
struct Counting {
    inner: Option<Arc<BareSandbox>>,
    limits: Limits,
    kernel: KernelSpec,
    started: AtomicUsize,
}

impl Runtime for Counting {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn kernel(&self) -> &KernelSpec {
        &self.kernel
    }

    fn files(&self) -> BoxFuture<'_, Vec<FileEntry>> {
        Box::pin(async { vec![FileEntry { path: "given.csv".into(), size: 3, mime: "text/csv" }] })
    }

    fn execute<'a>(&'a self, cell: Cell<'a>) -> BoxFuture<'a, Result<Execution, RuntimeError>> {
        Box::pin(async move {
            self.started.fetch_add(1, Ordering::Relaxed);
            self.inner.as_ref().ok_or_else(|| RuntimeError::Other("no room".to_owned()))?.execute(cell).await
        })
    }
}

#[tokio::test]
async fn an_answer_that_broke_off_counts_as_it_was_read() {
    let bench = bench().await;
    // As Anthropic's API begins.
    let begins = json!({ "choices": [], "usage": { "prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11 } });
    let text = json!({ "choices": [{ "index": 0, "delta": { "content": "x".repeat(4000) }, "finish_reason": null }] });
    let events = [begins, text].map(|event| event.to_string()).to_vec();
    let upstream = ScriptedTransport::new(vec![Scripted::Events(events, End::Break)]);
    let turn = agent(&upstream, &bench).build().run("Go").await;
    assert!(matches!(turn.ending, Ending::Upstream(_)), "{:?}", turn.ending);
    assert!(turn.usage.input == 10 && turn.usage.output > 500, "{:?}", turn.usage);
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_is_asked_for_its_files_first_and_for_programs_when_there_are_some() {
    let bench = bench().await;
    let limits = bench.runtime.limits().clone();
    let kernel = KernelSpec::python("");
    let runtime = |inner| {
        Arc::new(Counting { inner, limits: limits.clone(), kernel: kernel.clone(), started: AtomicUsize::new(0) })
    };
    let upstream = ScriptedTransport::new(vec![
        Scripted::Text("No need."),
        Scripted::Python("print('ran')"),
        Scripted::Text("Done."),
        Scripted::Text("Again."),
    ]);
    let counting = runtime(Some(Arc::clone(&bench.runtime)));
    let agent = builder(options(&upstream)).code_interpreter(CodeInterpreter::new(counting.clone())).build();
    agent.run("?").await;
    assert_eq!(counting.started.load(Ordering::Relaxed), 0);
    let turn = agent.run("?").await;
    assert_eq!(counting.started.load(Ordering::Relaxed), 1);
    assert!(observations(&turn)[0].contains("ran"));
    for request in upstream.requests() {
        assert_eq!(request["messages"][0]["content"], "?\n[Files now: /mnt/data/given.csv (3 bytes)]");
        let tool = request["tools"][0].to_string();
        assert!(!tool.contains("given.csv"), "{tool}");
    }
    // All that was read before is the same, but for them.
    let again = turn.items.into_iter().chain([Item::user("And now?")]).collect();
    agent.resume(again).wait().await;
    let last = upstream.requests().pop().unwrap();
    let said: Vec<&Value> = last["messages"].as_array().unwrap().iter().map(|message| &message["content"]).collect();
    assert_eq!((said[0], said[4]), (&json!("?"), &json!("And now?\n[Files now: /mnt/data/given.csv (3 bytes)]")));

    let upstream = ScriptedTransport::new(vec![Scripted::Python("1")]);
    let agent = builder(options(&upstream)).code_interpreter(CodeInterpreter::new(runtime(None))).build();
    assert_eq!(agent.run("?").await.ending, Ending::Sandbox("no room".into()));
    bench.stop().await;
}
