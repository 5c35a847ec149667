//! Turns with a scripted model and scripted programs.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use aludel_agent::upstream::{FunctionTool, Sampling, ToolChoice, UpstreamError};
use aludel_agent::{
    ApprovalDecision, BareSandbox, Budget, Budgets, CodeInterpreter, CutOff, Ending, Event, Item, Runtime, Tool, Turn,
};
use aludel_sandbox::memory::{Memory, simple};
use aludel_sandbox::{Backend, Cell, ExecutionEvent, KernelSpec, Limits, Outcome, SandboxId, SandboxSpec};
use aludel_testkit::{Scripted, ScriptedTransport};
use common::{agent, bench, builder, follow, observations, options, plain};
use futures_util::StreamExt;

#[tokio::test(start_paused = true)]
async fn code_streams_runs_fails_is_fixed_and_answered() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![
        Scripted::Python("x = 'ünï😀'\nprint(1/0)"),
        Scripted::Python("print(len(x))"),
        Scripted::Text("It has 4 characters."),
    ]);
    let (events, turn) = follow(&agent(&upstream, &bench).build(), "How long?").await;
    assert_eq!((&turn.ending, turn.answer.as_str()), (&Ending::Answered, "It has 4 characters."));
    let written: String = events
        .iter()
        .filter_map(|event| match event {
            Event::CodeDelta { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(written, "x = 'ünï😀'\nprint(1/0)print(len(x))");
    assert!(
        events.iter().filter(|event| matches!(event, Event::CodeDelta { .. })).count() > 5,
        "the code comes in pieces"
    );
    let observations = observations(&turn);
    assert!(
        observations[0].contains("ZeroDivisionError") && observations[0].contains("Cell 1, line 2"),
        "{observations:?}"
    );
    assert!(observations[1].contains("[stdout]\n4\n"), "{observations:?}");
    assert_eq!(turn.usage.total(), 45);
    // The model saw the traceback, in the place where its call was.
    let third = &upstream.requests()[2];
    let roles: Vec<_> =
        third["messages"].as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool"]);
    assert_eq!(third["tools"][0]["function"]["name"], "python");
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn images_reach_a_model_that_sees() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![Scripted::Python("draw()"), Scripted::Text("A line.")]);
    agent(&upstream, &bench).build().run("Plot").await;
    let messages = upstream.requests()[1]["messages"].as_array().unwrap().clone();
    assert_eq!(messages.last().unwrap()["content"][1]["image_url"]["url"], "data:image/png;base64,iVBORw==");
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_calls_are_told_to_the_model() {
    let bench = bench().await;
    let calls = vec![
        ("python", "{\"code\": ".to_owned()),
        ("python", "{\"source\": \"1\"}".to_owned()),
        ("browser", "{}".to_owned()),
        ("python", "{\"code\": \"print('ran')\"}".to_owned()),
    ];
    let upstream = ScriptedTransport::new(vec![Scripted::Calls(calls), Scripted::Text("ok")]);
    let turn = agent(&upstream, &bench).build().run("Go").await;
    let observations = observations(&turn);
    for (observation, words) in
        observations.iter().zip(["not valid JSON", "no string `code`", "no tool `browser`", "ran"])
    {
        assert!(observation.contains(words), "{observations:#?}");
    }
    assert_eq!((observations.len(), &turn.ending), (4, &Ending::Answered));
    // Malformed arguments are valid JSON in the history.
    for call in upstream.requests()[1]["messages"][1]["tool_calls"].as_array().unwrap() {
        serde_json::from_str::<serde_json::Value>(call["function"]["arguments"].as_str().unwrap()).unwrap();
    }
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_same_failing_program_twice_is_remarked() {
    let bench = bench().await;
    let upstream =
        ScriptedTransport::new(vec![Scripted::Python("1/0"), Scripted::Python("1/0"), Scripted::Text("I give up")]);
    let turn = agent(&upstream, &bench).build().run("Go").await;
    let observations = observations(&turn);
    assert!(!observations[0].contains("same program") && observations[1].contains("same program"), "{observations:#?}");
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_budget_ends_the_turn_and_keeps_what_was_made() {
    let bench = bench().await;
    let programs = || {
        vec![
            Scripted::Python("open('kept.txt', 'w').write('x')"),
            Scripted::Python("print(2)"),
            Scripted::Python("print(3)"),
        ]
    };
    for (budgets, expected) in [
        (Budgets { rounds: 2, ..Budgets::default() }, Budget::Rounds(2)),
        (Budgets { tool_calls: 1, ..Budgets::default() }, Budget::ToolCalls(1)),
        (Budgets { tokens: 20, ..Budgets::default() }, Budget::Tokens(20)),
        (Budgets { input_tokens: 10, ..Budgets::default() }, Budget::InputTokens(10)),
        (Budgets { output_tokens: 5, ..Budgets::default() }, Budget::OutputTokens(5)),
    ] {
        let upstream = ScriptedTransport::new(programs());
        let turn = agent(&upstream, &bench).budgets(budgets).build().run("Go").await;
        assert_eq!(turn.ending, Ending::Budget(expected));
        assert_eq!(bench.read("kept.txt"), b"x");
        // Every call has an answer, so that the conversation can go on.
        let calls = turn.items.iter().filter(|item| matches!(item, Item::Call(_))).count();
        assert_eq!(observations(&turn).len(), calls);
    }
    let upstream = ScriptedTransport::new(vec![Scripted::Python("import time; time.sleep(60)")]);
    let budgets = Budgets { time: Duration::from_millis(600), ..Budgets::default() };
    let started = Instant::now();
    let turn = agent(&upstream, &bench).budgets(budgets).build().run("Go").await;
    assert_eq!(turn.ending, Ending::Budget(Budget::Time(Duration::from_millis(600))));
    assert!(started.elapsed() < Duration::from_secs(20), "nobody waits for its time limit");
    bench.stop().await;
}

#[tokio::test]
async fn the_most_tokens_of_an_answer_are_those_of_all_its_rounds() {
    let bench = bench().await;
    // Each round writes 5.
    for (most, asked, ending) in [
        (21, &[21, 16][..], Ending::CutOff(CutOff::Length)),
        (26, &[26, 21, 16], Ending::Answered),
        (6, &[6], Ending::CutOff(CutOff::Length)),
    ] {
        let script = vec![Scripted::Python("print(1)"), Scripted::Python("print(2)"), Scripted::Text("Done.")];
        let upstream = ScriptedTransport::new(script);
        let sampling = Sampling { max_output_tokens: Some(most), ..Sampling::default() };
        let turn = agent(&upstream, &bench).sampling(sampling).build().run("Go").await;
        assert_eq!(turn.ending, ending);
        let limits: Vec<u64> =
            upstream.requests().iter().map(|request| request["max_tokens"].as_u64().unwrap()).collect();
        assert_eq!(limits, asked);
        assert_eq!(observations(&turn).len(), asked.len().min(2), "what was called has run");
    }
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn approval_is_asked_with_the_exact_program_and_a_refusal_reaches_the_model() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![
        Scripted::Python("import os; os.remove('x')"),
        Scripted::Python("print('harmless')"),
        Scripted::Python("print('again')"),
        Scripted::Text("done"),
    ]);
    let asked = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let log = asked.clone();
    let interpreter = CodeInterpreter::new(bench.runtime.clone()).approve(move |request| {
        log.lock().push(request.code.clone());
        async move {
            if request.code.contains("remove") {
                ApprovalDecision::Deny { reason: "it deletes files".into() }
            } else {
                ApprovalDecision::AllowAll
            }
        }
    });
    let turn = builder(options(&upstream)).code_interpreter(interpreter).build().run("Go").await;
    let observations = observations(&turn);
    assert!(
        observations[0].contains("it deletes files")
            && observations[1].contains("harmless")
            && observations[2].contains("again")
    );
    // After "all", nobody is asked any more.
    assert_eq!(*asked.lock(), ["import os; os.remove('x')", "print('harmless')"]);
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_waits_for_its_approval_and_then_runs_exactly_as_it_was() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![
        Scripted::Python("open('ran', 'a').write('x'); print(6 * 7)"),
        Scripted::Text("It is 42."),
        Scripted::Text("As you wish."),
    ]);
    let interpreter = CodeInterpreter::new(bench.runtime.clone()).approve(|_| async { ApprovalDecision::Later });
    let agent = builder(options(&upstream)).code_interpreter(interpreter).build();
    let waiting = agent.run("Go").await;
    let Ending::AwaitsApproval { programs, client_tools } = &waiting.ending else { panic!("{waiting:#?}") };
    assert!(programs[0].arguments.contains("6 * 7") && client_tools.is_empty());
    assert!(bench.runtime.files().await.is_empty());

    let mut resumed = agent.resume(waiting.items.clone());
    let is_given = |event: &Event| matches!(event, Event::ApprovalGiven { .. });
    while !is_given(&resumed.next().await.unwrap()) {}
    // It starts once its reader goes on.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(bench.runtime.files().await.is_empty());
    let approved = resumed.wait().await;
    assert_eq!((approved.ending, approved.answer.as_str()), (Ending::Answered, "It is 42."));
    assert_eq!(bench.read("ran"), b"x");

    let mut refused = waiting.items;
    refused.push(Item::output(programs[0].id.clone(), "The user did not allow this."));
    let refused = agent.resume(refused).wait().await;
    assert_eq!(refused.answer, "As you wish.");
    assert_eq!(bench.read("ran"), b"x");
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cancelling_stops_the_program_and_the_session_lives() {
    let bench = bench().await;
    let upstream =
        ScriptedTransport::new(vec![Scripted::Python("print('on', flush=True)\nimport time\ntime.sleep(60)")]);
    let agent = agent(&upstream, &bench).build();
    let mut stream = agent.run_streamed("Go");
    let canceller = stream.canceller();
    let mut outcome = None;
    while let Some(event) = stream.next().await {
        match event {
            Event::Execution { event: ExecutionEvent::Stdout(_), .. } => canceller.cancel(),
            Event::Execution { event: ExecutionEvent::Finished(finished), .. } => outcome = Some(finished.outcome),
            _ => {}
        }
    }
    assert_eq!(outcome, Some(Outcome::Interrupted));
    assert_eq!(stream.turn().unwrap().ending, Ending::Cancelled);
    let mut execution = bench.runtime.execute(Cell::new("print('alive')")).await.unwrap();
    assert_eq!(execution.next().await, Some(ExecutionEvent::Stdout("alive\n".into())));
    drop(execution);
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn tools_of_the_caller_come_back_and_forced_choice_forces_once() {
    let bench = bench().await;
    let calls = vec![("python", "{\"code\": \"print(1)\"}".to_owned()), ("weather", "{\"city\": \"Bonn\"}".to_owned())];
    let upstream = ScriptedTransport::new(vec![Scripted::Calls(calls), Scripted::Text("Rain.")]);
    let weather = FunctionTool {
        name: "weather".into(),
        description: "Weather.".into(),
        parameters: serde_json::json!({"type": "object"}).into(),
        strict: None,
    };
    let agent = agent(&upstream, &bench).client_tool(weather).tool_choice(ToolChoice::Required).build();
    let turn = agent.run("Weather?").await;
    let Ending::ClientTools(calls) = &turn.ending else { panic!("{:?}", turn.ending) };
    assert_eq!((calls.len(), calls[0].name.as_str()), (1, "weather"));
    assert_eq!(observations(&turn).len(), 1, "ours ran, theirs is theirs to answer");
    let mut items = turn.items;
    items.push(Item::output(calls[0].id.clone(), "rain"));
    assert_eq!(agent.resume(items).wait().await.answer, "Rain.");
    assert_eq!(upstream.requests()[0]["tool_choice"], "required");
    bench.stop().await;
}

/// A function that doubles numbers below ten.
fn doubles(name: &str) -> Tool {
    #[derive(serde::Deserialize)]
    struct Number {
        number: u32,
    }
    let parameters = serde_json::json!({ "type": "object", "properties": { "number": { "type": "integer" } } });
    Tool::new(name, "Doubles a number.", parameters, async |Number { number }| match number {
        0..10 => Ok(2 * number),
        10 => Ok(std::future::pending().await),
        _ => Err("too large"),
    })
}

#[tokio::test(start_paused = true)]
async fn a_function_of_the_program_is_called_beside_the_interpreter() {
    let bench = bench().await;
    let call = |number: &str| ("double", format!("{{\"number\": {number}}}"));
    let calls = vec![("python", "{\"code\": \"print(1)\"}".to_owned()), call("4"), call("11"), call("\"x\"")];
    let upstream = ScriptedTransport::new(vec![Scripted::Calls(calls), Scripted::Text("Eight.")]);
    let turn = agent(&upstream, &bench).tool(doubles("double")).max_programs(1).build().run("Go").await;
    assert_eq!((&turn.ending, turn.answer.as_str()), (&Ending::Answered, "Eight."));
    let observations = observations(&turn);
    assert_eq!((&*observations[1], &*observations[2]), ("8", "The function failed: too large"));
    assert!(observations[0].contains("[stdout]\n1\n") && observations[3].contains("arguments do not fit"));
    let requests = upstream.requests();
    assert_eq!(requests[0]["tools"][1]["function"]["name"], "double");
    // It can still be called when no program may run any more.
    assert_eq!(requests[1]["tool_choice"], requests[0]["tool_choice"]);

    // A name of ours goes to the function; its calls are counted, and a turn does not wait for one for ever.
    let budgets = Budgets { tool_calls: 2, time: Duration::from_secs(5), ..Budgets::default() };
    let calls = |numbers: &[&str]| {
        let calls = numbers.iter().map(|number| ("python", call(number).1));
        ScriptedTransport::new(vec![Scripted::Calls(calls.collect())])
    };
    for (numbers, ending) in [
        (["1", "2", "3"], Ending::Budget(Budget::ToolCalls(2))),
        (["1", "10", "3"], Ending::Budget(Budget::Time(budgets.time))),
    ] {
        let upstream = calls(&numbers);
        let turn = agent(&upstream, &bench).tool(doubles("python")).budgets(budgets.clone()).build().run("Go").await;
        assert_eq!(turn.ending, ending);
        assert_eq!(upstream.requests()[0]["tools"][0]["function"]["name"], "python_sandbox");
    }
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_model_without_functions_uses_fenced_blocks() {
    let bench = bench().await;
    let upstream = ScriptedTransport::new(vec![
        Scripted::Text("Let me compute.\n```python\nprint(6 * 7)\n```"),
        Scripted::Text("It is 42."),
    ]);
    let agent = builder(plain(&upstream)).code_interpreter(CodeInterpreter::new(bench.runtime.clone())).build();
    let turn = agent.run("6 times 7?").await;
    assert_eq!(turn.answer, "It is 42.");
    let requests = upstream.requests();
    assert!(
        requests[0].get("tools").is_none()
            && requests[0]["messages"][0]["content"].as_str().unwrap().contains("```python")
    );
    assert!(requests[1]["messages"][3]["content"].as_str().unwrap().contains("[stdout]\n42"));
    bench.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_language_is_what_the_kernels_spec_says() {
    let shell = KernelSpec {
        language: "shell".into(),
        title: "Shell".into(),
        tool_name: "shell".into(),
        description: "Runs a shell.".into(),
        fences: ["sh", "bash"].map(str::to_owned).into(),
        ..KernelSpec::python("")
    };
    let memory = Memory::with_kernel(simple, shell);
    let sandbox = memory.create(SandboxId::unique(), SandboxSpec::new(Limits::default())).await.unwrap();
    let runtime = Arc::new(BareSandbox(sandbox));
    let upstream = ScriptedTransport::new(vec![
        Scripted::Text("```python\nnot ours\n```\n```bash\nprint('ran')\n```"),
        Scripted::Text("Done."),
    ]);
    let agent = builder(plain(&upstream)).code_interpreter(CodeInterpreter::new(runtime.clone())).build();
    let turn = agent.run("Run it.").await;
    assert_eq!(observations(&turn).len(), 1, "{turn:?}");
    let requests = upstream.requests();
    let instructions = requests[0]["messages"][0]["content"].as_str().unwrap();
    for part in ["To run Shell, ", "starts with ```sh and", "Runs a shell. The working directory"] {
        assert!(instructions.contains(part), "{part:?} in {instructions}");
    }
    assert!(requests[1]["messages"][2]["content"].as_str().unwrap().contains("```sh\nprint('ran')\n```"));

    let upstream = ScriptedTransport::new(vec![Scripted::Text("Nothing to run.")]);
    let agent = builder(options(&upstream)).code_interpreter(CodeInterpreter::new(runtime)).build();
    agent.run("Hello?").await;
    let requests = upstream.requests();
    let tool = &requests[0]["tools"][0]["function"];
    assert_eq!(tool["name"], "shell");
    assert_eq!(tool["parameters"]["properties"]["code"]["description"], "The Shell program to run.");
}

/// Asks once without any tool and returns how it ended.
async fn ending_of(script: Vec<Scripted>) -> Turn {
    let upstream = ScriptedTransport::new(script);
    builder(options(&upstream)).build().run("Hello?").await
}

#[tokio::test(start_paused = true)]
async fn each_failure_of_the_upstream_has_its_own_words() {
    use Scripted::{BadEvent, Drop, ErrorEvent, Garbage, Hang, Status};
    let json = "content-type: application/json\r\n";
    let said = r#"{"error": {"message": "Incorrect API key sk-very-secret", "type": "x"}}"#;
    for (script, words) in [
        (vec![Status(401, json, said)], "Check the key in env:TEST_KEY"),
        (
            vec![Status(404, json, r#"{"error": {"message": "no such model."}}"#)],
            "no such model. Check the model's name (`scripted`)",
        ),
        (vec![Status(429, "retry-after: 3600\r\n", "slow down")], "It asks to wait 3600 s"),
        (vec![Status(400, json, r#"{"error": "bad tools"}"#)], "rejected the request (400): bad tools"),
        (vec![Status(500, "", "oops"), Status(502, "", "oops"), Status(503, "", "oops")], "failed (503): oops"),
        (vec![Drop("The answer is"), Scripted::Text("never asked")], "ended the connection in the middle"),
        (vec![Garbage("<html>It works!</html>")], "does not answer like a Chat Completions API"),
        (vec![BadEvent], "no completion chunk"),
        (
            vec![ErrorEvent("overloaded"), ErrorEvent("overloaded"), ErrorEvent("overloaded")],
            "failed (500): overloaded",
        ),
        (vec![Hang], "sent nothing for 20 s"),
    ] {
        let turn = ending_of(script).await;
        let Ending::Upstream(error) = &turn.ending else { panic!("{words}: {:?}", turn.ending) };
        let text = error.to_string();
        assert!(text.contains(words), "no {words:?} in: {text}");
        assert!(!text.contains("sk-very-secret"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_said_before_a_failure_is_kept_and_not_asked_again() {
    let turn = ending_of(vec![Scripted::Drop("The answer is 42 and"), Scripted::Text("again")]).await;
    assert!(matches!(turn.ending, Ending::Upstream(UpstreamError::Dropped { .. })), "{:?}", turn.ending);
    assert!("The answer is 42 and".starts_with(&turn.answer) && !turn.answer.is_empty(), "{:?}", turn.answer);
}

#[tokio::test(start_paused = true)]
async fn a_busy_upstream_is_asked_again() {
    let turn = ending_of(vec![
        Scripted::Status(429, "retry-after: 0.1\r\n", "slow down"),
        Scripted::Status(500, "", "oops"),
        Scripted::Text("Here I am."),
    ])
    .await;
    assert_eq!((turn.ending, turn.answer.as_str()), (Ending::Answered, "Here I am."));
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_does_not_stream_is_understood() {
    let turn = ending_of(vec![Scripted::Whole("All at once.")]).await;
    assert_eq!((turn.ending, turn.answer.as_str(), turn.usage.total()), (Ending::Answered, "All at once.", 7));
}
