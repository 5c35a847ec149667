//! `aludel ask`, against a model that follows a script over real HTTP.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use aludel_testkit::{Scripted, ScriptedUpstream};
use common::{Said, aludel, audit_log, data, left, said, signal, wait_until};
use serde_json::json;

fn ask(upstream: &ScriptedUpstream, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = aludel(directory);
    command.args(["ask", "Go", "--model", "m", "--url", &upstream.url()]).args(arguments);
    command
}

/// Runs it without holding up the scripted model.
async fn said_meanwhile(mut command: Command) -> Said {
    tokio::task::spawn_blocking(move || said(&mut command)).await.unwrap()
}

const MEAN: &str = "import pandas as pd\ndf = pd.read_csv('data.csv')\ndf.describe().to_csv('stats.csv')\n\
                    import matplotlib.pyplot as plt\nplt.plot(df.a); plt.show()\nprint(df.a.mean())";

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_goes_to_stdout_the_work_to_stderr_and_files_are_kept() {
    let upstream = ScriptedUpstream::start(vec![Scripted::Python(MEAN), Scripted::Text("The mean is 1.5.")]).await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("data.csv"), "a\n1\n2\n").unwrap();
    let said = said_meanwhile(ask(&upstream, directory.path(), &["--file", "data.csv", "--out", "out"])).await;
    assert_eq!((said.status, said.stdout.as_str()), (Some(0), "The mean is 1.5.\n"), "{said:#?}");
    let work =
        ["asking m at http", MEAN, "1.5\n", "The program ran to its end.", "Files: stats.csv", "file: out/stats.csv"];
    for part in work {
        assert!(said.stderr.contains(part), "no {part:?} in {said:#?}");
    }
    let out = directory.path().join("out");
    assert!(std::fs::read_to_string(out.join("stats.csv")).unwrap().contains("mean,1.5"));
    assert!(std::fs::read(out.join("figures/figure-1.png")).unwrap().starts_with(b"\x89PNG"));
    let transcript = std::fs::read_to_string(out.join("transcript.md")).unwrap();
    assert!(transcript.contains("The mean is 1.5.") && transcript.contains("(figures/figure-1.png)"));
    serde_json::from_slice::<serde_json::Value>(&std::fs::read(out.join("transcript.ipynb")).unwrap()).unwrap();
    assert!(!out.join("data.csv").exists(), "what went in was not made");
    let (tool, question) =
        (upstream.requests()[0]["tools"].to_string(), upstream.requests()[0]["messages"].to_string());
    assert!(tool.contains("pandas") && question.contains("/mnt/data/data.csv"), "{tool} {question}");
    // Another question leaves the figure, and its transcript shows its own.
    let upstream = ScriptedUpstream::start(vec![Scripted::Python(MEAN), Scripted::Text("As before.")]).await;
    let said = said_meanwhile(ask(&upstream, directory.path(), &["--file", "data.csv", "--out", "out"])).await;
    assert!(said.stderr.contains("out/figures/figure-2.png"), "{said:#?}");
    assert!(out.join("figures/figure-1.png").exists() && out.join("figures/figure-2.png").exists());
    let transcript = std::fs::read_to_string(out.join("transcript.md")).unwrap();
    assert!(transcript.contains("(figures/figure-2.png)") && !transcript.contains("figure-1"), "{transcript}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_made_where_nothing_came_of_it() {
    let upstream = ScriptedUpstream::start(vec![Scripted::Whole("Hello.")]).await;
    let directory = tempfile::tempdir().unwrap();
    let said = said_meanwhile(ask(&upstream, directory.path(), &[])).await;
    assert_eq!((said.status, said.stdout.as_str()), (Some(0), "Hello.\n"), "{said:#?}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_upstream_gets_plain_words_and_what_was_made_is_kept() {
    let json = "content-type: application/json\r\n";
    for (fault, words) in [
        (Scripted::Status(401, json, r#"{"error": {"message": "bad key"}}"#), "refused the key (401): bad key"),
        (
            Scripted::Status(404, json, r#"{"error": {"message": "no m"}}"#),
            "answered 404: no m. Check the model's name",
        ),
        (Scripted::Status(400, "", "no tools here"), "rejected the request (400): no tools here"),
        (Scripted::Status(429, "retry-after: 3600\r\n", "slow down"), "over its rate limit or quota (429)"),
        (Scripted::Drop("Half of it"), "ended the connection in the middle of its answer"),
        (Scripted::Garbage("<html>hello</html>"), "does not answer like a Chat Completions API"),
        (Scripted::BadEvent, "does not answer like a Chat Completions API"),
        (Scripted::ErrorEvent("overloaded"), "failed (500): overloaded"),
        (Scripted::Hang, "sent nothing for 2 s"),
    ] {
        let upstream =
            ScriptedUpstream::start(vec![Scripted::Python("open('kept.txt', 'w').write('x')"), fault.clone()]).await;
        let directory = tempfile::tempdir().unwrap();
        let mut command = ask(&upstream, directory.path(), &[]);
        if matches!(fault, Scripted::Hang) {
            command.env("ALUDEL_MODEL_IDLE_TIMEOUT", "2s");
        }
        let said = said_meanwhile(command).await;
        assert_eq!(said.status, Some(4), "{fault:?}: {said:#?}");
        assert!(said.stderr.contains(words), "{fault:?}: {said:#?}");
        assert!(directory.path().join("aludel-out/kept.txt").exists(), "{fault:?}: {said:#?}");
    }
}

#[test]
fn what_cannot_be_asked_is_said_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let configured = "[[model]]\nname = 'a'\nurl = 'http://127.0.0.1:1/v1'\nkey = 'env:NO_SUCH_KEY'\n";
    std::fs::write(directory.path().join("aludel.toml"), configured).unwrap();
    std::fs::write(directory.path().join("taken"), "a file").unwrap();
    for (arguments, status, words) in [
        (vec!["ask", " "], 2, "the question is empty"),
        (vec!["ask", "--file", "taken"], 2, "no question was given"),
        (vec!["ask", "--file", "taken", "aludel.toml"], 2, "no question was given"),
        (vec!["ask", "--model", "b", "--file", "taken", "Go"], 2, "the model `b` is not configured"),
        (vec!["ask", "--file", "taken", " "], 2, "the question is empty"),
        (vec!["ask", "Go", "--model", "demo", "--out", "taken"], 2, "--out taken: "),
        (vec!["ask", "Go", "--model", "demo", "--out", "taken/below"], 2, "--out taken/below: "),
        (
            vec!["ask", "Go"],
            2,
            "the key of the model `a` (aludel.toml:4): the environment variable NO_SUCH_KEY is not set",
        ),
        (vec!["ask", "Go", "--model", "b"], 2, "the model `b` is not configured; there are: a, demo"),
        (vec!["ask", "Go", "--url", "localhost"], 2, "--url: model.url = \"localhost\" does not begin with http"),
        (vec!["ask", "Go", "--model", "b", "--url", "http://"], 2, "--url: the url"),
        (vec!["ask", "Go", "--key", "sk-secret"], 2, "--key: model.key must be env:NAME or file:PATH"),
        (vec!["ask", "Go", "--url", "http://127.0.0.1:1/v1"], 4, "cannot reach http://127.0.0.1:1/v1"),
        // A key that one model needs is no matter of the others.
        (vec!["run", "-c", "1"], 0, ""),
    ] {
        let said = said(aludel(directory.path()).args(&arguments));
        assert_eq!(said.status, Some(status), "{arguments:?}: {said:#?}");
        assert!(said.stderr.contains(words) && !said.stderr.contains("sk-secret"), "{arguments:?}: {said:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_tells_the_whole_turn() {
    let upstream =
        ScriptedUpstream::start(vec![Scripted::Python("open('f', 'w').write('x')\nprint(1)"), Scripted::Text("One.")])
            .await;
    let directory = tempfile::tempdir().unwrap();
    let said = said_meanwhile(ask(&upstream, directory.path(), &["--json"])).await;
    let types = [
        "round",
        "code_delta",
        "usage",
        "code",
        "stdout",
        "finished",
        "observation",
        "round",
        "text",
        "usage",
        "ended",
    ];
    let mut expected: Vec<_> = types.to_vec();
    let mut got = said.types();
    // In which order usage and the complete code are told is the agent's business.
    expected.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, expected, "{said:#?}");
    let lines = said.lines();
    let code = lines.iter().find(|line| line["type"] == "code").unwrap();
    let stdout = lines.iter().find(|line| line["type"] == "stdout").unwrap();
    assert!(code["code"].as_str().unwrap().ends_with("print(1)") && code["call"] == stdout["call"]);
    let ended = lines.last().unwrap();
    assert_eq!((&ended["exit"], &ended["ending"], &ended["answer"]), (&json!(0), &json!("answered"), &json!("One.")));
    assert_eq!(ended["files"][0]["saved"], "aludel-out/f");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_program_is_in_the_audit_log_and_nothing_else_is_left() {
    let script = [Scripted::Python("open('f', 'w').write('x')"), Scripted::Python("1/0"), Scripted::Text("One.")];
    let upstream = ScriptedUpstream::start(script.to_vec()).await;
    let data = data();
    // A name that only its owner reads may be an odd one.
    std::fs::write(data.path().join("a\\b\u{200e}.csv"), "1").unwrap();
    let data_option = data.path().to_str().unwrap();
    let asked = ask(&upstream, data.path(), &["--file", "a\\b\u{200e}.csv", "--data", data_option]);
    let said = said_meanwhile(asked).await;
    assert_eq!(said.status, Some(0), "{said:#?}");
    let log = audit_log(data.path()).await;
    let logged: Vec<_> = log.iter().map(|entry| entry.each_ref().map(String::as_str)).collect();
    let [first, second] = ["The program ran to its end.", "ZeroDivisionError"];
    assert_eq!(logged.iter().map(|entry| entry[0]).collect::<Vec<_>>(), ["started", "ended", "started", "ended"]);
    assert!(logged[1][2].contains(first) && logged[3][2].contains(second), "{logged:?}");
    assert_eq!(left(data.path()).await, [1, 2], "what was handed over and what was made, for --continue");
    assert_eq!(std::fs::metadata(data.path().join("state")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_question_goes_on_with_the_conversation_and_its_files() {
    let data = data();
    let option = ["--data", data.path().to_str().unwrap()];
    std::fs::write(data.path().join("in.csv"), "7").unwrap();
    let asked = async |script: &[Scripted], arguments: &[&str]| {
        let upstream = ScriptedUpstream::start(script.to_vec()).await;
        let said = said_meanwhile(ask(&upstream, data.path(), &[&option, arguments].concat())).await;
        (said, upstream.requests())
    };
    let (said, requests) = asked(&[], &["--continue"]).await;
    assert!(said.status == Some(2) && said.stderr.contains("no question was asked before"), "{said:#?}");
    assert!(requests.is_empty());

    let make = "open('made', 'w').write('8')\nprint('m' * 3)";
    let (said, _) = asked(&[Scripted::Python(make), Scripted::Text("Made.")], &["--file", "in.csv"]).await;
    assert_eq!(said.status, Some(0), "{said:#?}");
    let look = "print(open('in.csv').read() + open('made').read())\nopen('more', 'w').close()";
    let (said, requests) = asked(&[Scripted::Python(look), Scripted::Text("Looked.")], &["--continue"]).await;
    assert!(said.status == Some(0) && said.stderr.contains("78\n"), "{said:#?}");
    let logged: Vec<_> = requests[0]["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(logged, ["system", "user", "assistant", "tool", "assistant", "user"], "{requests:#?}");
    assert!(requests[0]["messages"][3]["content"].to_string().contains("mmm"), "{requests:#?}");
    assert_eq!(left(data.path()).await, [1, 3]);
    // It failed, and the conversation is as it was.
    let (said, _) = asked(&[Scripted::Status(400, "", "no")], &["--continue"]).await;
    assert_eq!(said.status, Some(4), "{said:#?}");
    let (said, requests) = asked(&[Scripted::Whole("Third.")], &["--continue"]).await;
    assert_eq!((said.status, requests[0]["messages"].as_array().unwrap().len()), (Some(0), 10), "{requests:#?}");
    // Another one takes its place.
    assert_eq!(asked(&[Scripted::Whole("Hello.")], &[]).await.0.status, Some(0));
    assert_eq!(left(data.path()).await, [1, 0]);
    let kept = data.path().join("state/conversation.json");
    assert_eq!(std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::write(&kept, r#"{"session": "cntr_gone", "process": 1, "items": []}"#).unwrap();
    let (said, _) = asked(&[], &["--continue"]).await;
    assert!(said.status == Some(2) && said.stderr.contains("the last conversation is gone"), "{said:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_place_for_the_audit_log_nothing_runs_and_it_is_said_what_to_do() {
    let upstream = ScriptedUpstream::start(Vec::new()).await;
    let data = data();
    std::fs::write(data.path().join("state"), "in the way").unwrap();
    let data_option = data.path().to_str().unwrap().to_owned();
    let said = said_meanwhile(ask(&upstream, data.path(), &["--data", &data_option])).await;
    assert_eq!(said.status, Some(4), "{said:#?}");
    for words in ["with the audit log, needs room and must be writable", "--data DIR names another", &data_option] {
        assert!(said.stderr.contains(words), "no {words:?} in {said:#?}");
    }
    assert!(upstream.requests().is_empty());
    let mut run = aludel(data.path());
    run.args(["run", "-c", "print(1)", "--data", &data_option]);
    assert_eq!(said_meanwhile(run).await.stdout, "1\n", "what keeps nothing needs no place for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_the_turn_and_what_was_made_is_kept() {
    let slow = "open('kept', 'w').write('x')\nprint('on', flush=True)\nimport time\ntime.sleep(60)";
    for script in [vec![Scripted::Python(slow)], vec![Scripted::Python("open('kept', 'w').write('x')"), Scripted::Hang]]
    {
        let rounds = script.len();
        let upstream = ScriptedUpstream::start(script).await;
        let directory = tempfile::tempdir().unwrap();
        let mut child = ask(&upstream, directory.path(), &[]).spawn().unwrap();
        let said = tokio::task::spawn_blocking(move || {
            // The program runs, or has run and the model is silent.
            let mut shown = BufReader::new(child.stderr.take().unwrap());
            let mut work = String::new();
            while rounds == 1 && work.lines().next_back().is_none_or(|line| line.trim() != "on") {
                assert!(shown.read_line(&mut work).unwrap() > 0, "{work}");
            }
            wait_until(|| upstream.requests().len() == rounds, "the model was not asked");
            let start = Instant::now();
            signal(&child, "INT");
            shown.read_to_string(&mut work).unwrap();
            let mut said = Said::from(&child.wait_with_output().unwrap());
            assert!(start.elapsed() < Duration::from_secs(25), "nobody waits for the program or the model");
            said.stderr = work;
            said
        });
        let said = said.await.unwrap();
        assert_eq!(said.status, Some(130), "{said:#?}");
        assert!(said.stderr.contains("Cancelled."), "{said:#?}");
        assert!(directory.path().join("aludel-out/kept").exists(), "{said:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_ctrl_c_does_not_wait_and_leaves_nothing_open() {
    let stubborn =
        "import time\nprint('on', flush=True)\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass";
    let upstream = ScriptedUpstream::start(vec![Scripted::Python(stubborn)]).await;
    let data = data();
    let mut command = ask(&upstream, data.path(), &["--data", data.path().to_str().unwrap()]);
    let said = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        let mut shown = BufReader::new(child.stderr.take().unwrap());
        let mut work = String::new();
        while work.lines().next_back().is_none_or(|line| line.trim() != "on") {
            assert!(shown.read_line(&mut work).unwrap() > 0, "{work}");
        }
        signal(&child, "INT");
        std::thread::sleep(Duration::from_millis(200));
        signal(&child, "INT");
        Said::from(&child.wait_with_output().unwrap())
    });
    assert_eq!(said.await.unwrap().status, Some(130));
    assert_eq!(left(data.path()).await, [0, 0]);
    let outcomes: Vec<String> = audit_log(data.path()).await.into_iter().map(|[_, _, outcome]| outcome).collect();
    assert_eq!(outcomes, ["", "The turn ended before it was known how this went."]);
    let store = aludel_store::Store::open_beside(&data.path().join("state")).await.unwrap();
    assert_eq!(store.take_over_turns(i64::MAX, i64::MAX, 9).await.unwrap(), [], "its row has ended");
}
