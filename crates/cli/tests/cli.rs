//! The built program, from the outside.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use aludel_testkit::{Scripted, ScriptedUpstream};
use serde_json::Value;

fn aludel(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aludel"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ALUDEL")) {
        command.env_remove(name);
    }
    command.current_dir(directory).env("ALUDEL_SERVER_DATA", aludel_testkit::data()).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    aludel(directory.path()).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes sure that the template is there, so that no test measures or prints its build.
fn prepared() {
    let output = run(&["template", "build"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn the_exit_status_tells_what_happened() {
    prepared();
    for (arguments, status, out, err) in [
        (vec!["run", "-c", "print('hi')\n6 * 7"], 0, "hi\n42\n", ""),
        (vec!["run", "-c", "1/0"], 1, "", "ZeroDivisionError"),
        (vec!["run", "-c", "import sys; sys.exit(5)"], 1, "", "SystemExit"),
        (vec!["run", "-c", "import os; os._exit(5)"], 1, "", "exit status 5"),
        (vec!["run"], 2, "", "Usage"),
        (vec!["run", "no-such-file.py"], 2, "", "no-such-file.py"),
        (vec!["run", "-c", "1", "--timeout", "soon"], 2, "", "no duration"),
        (vec!["run", "-c", "1", "--file", "nothing.csv"], 2, "", "nothing.csv"),
        (vec!["run", "-c", "while True: pass", "--timeout", "500ms"], 3, "", "stopped after 0.5 s"),
        (vec!["run", "-c", "x = bytearray(1 << 30)", "--memory", "200m"], 3, "", "Out of memory"),
        (vec!["run", "-c", "1", "--data", "/proc/nowhere"], 4, "", "/proc/nowhere"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}\n{}{}", stdout(&output), stderr(&output));
        assert!(
            stdout(&output).contains(out) && stderr(&output).contains(err),
            "{arguments:?}\n{}{}",
            stdout(&output),
            stderr(&output)
        );
    }
}

#[test]
fn programs_come_from_files_and_standard_input_and_files_go_in_and_out() {
    prepared();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("data.csv"), "a\n1\n2\n").unwrap();
    std::fs::write(at("sum.py"), "import pandas as pd, os\ndf = pd.read_csv('data.csv')\nos.mkdir('d')\ndf.to_csv('d/out.csv')\nprint(df.a.sum())\nimport matplotlib.pyplot as plt\nplt.plot(df.a); plt.show()").unwrap();
    let output =
        aludel(directory.path()).args(["run", "sum.py", "--file", "data.csv", "--out", "made"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("3\n"));
    assert!(std::fs::read_to_string(at("made/d/out.csv")).unwrap().contains('2'));
    assert!(std::fs::read(at("made/figure-1.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(!at("made/data.csv").exists(), "what went in was not made");

    let mut child =
        aludel(directory.path()).args(["run", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"print('from stdin')").unwrap();
    assert_eq!(stdout(&child.wait_with_output().unwrap()), "from stdin\n");
}

#[test]
fn json_has_one_event_a_line() {
    prepared();
    let output = run(&["run", "--json", "-c", "print('x')\nopen('f.txt', 'w').write('abc')"]);
    let events: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["stdout", "result", "finished"]);
    let finished = &events[2];
    assert_eq!(
        (finished["outcome"].as_str(), finished["files"][0]["path"].as_str(), finished["files"][0]["size"].as_u64()),
        (Some("completed"), Some("f.txt"), Some(3))
    );
}

#[test]
fn output_comes_while_the_program_runs_and_ctrl_c_stops_it() {
    prepared();
    let directory = tempfile::tempdir().unwrap();
    let mut child = aludel(directory.path())
        .args(["run", "-c", "print('first', flush=True)\nimport time\ntime.sleep(60)"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    assert_eq!(&first, b"first\n");
    let started = Instant::now();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        started.elapsed() < Duration::from_secs(10) && stderr(&output).contains("interrupted"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn killed_it_leaves_nothing_behind() {
    prepared();
    let data = tempfile::tempdir().unwrap();
    // The template is shared; only the instance's directory is this test's own.
    std::os::unix::fs::symlink(aludel_testkit::data().join("templates"), data.path().join("templates")).unwrap();
    let marker = format!("{}.3", 71_000 + std::process::id() % 1000);
    let code = format!("import subprocess\nprint('on', flush=True)\nsubprocess.run(['sleep', '{marker}'])");
    let mut child = aludel(data.path())
        .env("ALUDEL_SERVER_DATA", data.path())
        .args(["run", "-c", &code])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
    wait_until(|| processes_with(&marker) == 1, "the program did not start");
    let instance = std::fs::read_dir(data.path().join("run")).unwrap().next().unwrap().unwrap().path();
    let groups = std::fs::read_to_string(instance.join("cgroups")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(|| processes_with(&marker) == 0, "the program outlived aludel by 5 s");
    let next = aludel(data.path()).env("ALUDEL_SERVER_DATA", data.path()).args(["run", "-c", "1"]).status().unwrap();
    assert!(next.success());
    wait_until(|| !instance.exists() && groups.lines().all(|group| !Path::new(group).exists()), "something was left");
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&*data.path().to_string_lossy()));
}

fn wait_until(done: impl Fn() -> bool, words: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < deadline, "{words}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn processes_with(argument: &str) -> usize {
    let pids =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes()))
    })
    .count()
}

#[test]
fn doctor_and_config_tell_how_things_stand() {
    prepared();
    let output = run(&["doctor", "--json"]);
    assert!(output.status.success(), "{}", stdout(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let names: Vec<_> =
        report["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["kernel", "namespaces", "user ids", "control groups", "seccomp", "Landlock", "template"]);
    assert!(stdout(&run(&["doctor"])).contains("Sandboxes work here"));

    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("aludel.toml"), "[sandbox]\nmemory = \"2g\"\n").unwrap();
    let output = aludel(directory.path()).env("ALUDEL_SANDBOX_POOL", "9").arg("config").output().unwrap();
    let text = stdout(&output);
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("sandbox.memory").contains("2g") && line("sandbox.memory").contains("aludel.toml:2"), "{text}");
    assert!(line("sandbox.pool").contains("ALUDEL_SANDBOX_POOL"), "{text}");
    std::fs::write(directory.path().join("aludel.toml"), "[sandbox]\nmemroy = \"2g\"\n").unwrap();
    let output = aludel(directory.path()).arg("config").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("did you mean `memory`?"), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn ask_shows_the_work_and_keeps_it() {
    prepared();
    let upstream = ScriptedUpstream::start(vec![
        Scripted::Python(
            "import pandas as pd\ndf = pd.read_csv('data.csv')\ndf.describe().to_csv('stats.csv')\nprint(df.a.mean())",
        ),
        Scripted::Text("The mean is 1.5."),
    ])
    .await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("data.csv"), "a\n1\n2\n").unwrap();
    let output = aludel(directory.path())
        .args([
            "ask",
            "What is the mean?",
            "--file",
            "data.csv",
            "--url",
            &upstream.url(),
            "--model",
            "m",
            "--out",
            "out",
        ])
        .output()
        .unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    for part in ["df.a.mean()", "1.5\n", "The program ran to its end.", "Files: stats.csv", "The mean is 1.5."] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let out = directory.path().join("out");
    assert!(std::fs::read_to_string(out.join("stats.csv")).unwrap().contains("mean,1.5"));
    assert!(std::fs::read_to_string(out.join("transcript.md")).unwrap().contains("The mean is 1.5."));
    serde_json::from_slice::<Value>(&std::fs::read(out.join("transcript.ipynb")).unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_upstream_gets_plain_words_and_what_was_made_is_kept() {
    prepared();
    let upstream = ScriptedUpstream::start(vec![
        Scripted::Python("open('kept.txt', 'w').write('x')"),
        Scripted::Status(401, "content-type: application/json\r\n", r#"{"error": {"message": "bad key"}}"#),
    ])
    .await;
    let directory = tempfile::tempdir().unwrap();
    let output = aludel(directory.path())
        .args(["ask", "Go", "--url", &upstream.url(), "--model", "m", "--out", "out"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("refused the key (401): bad key"), "{}", stderr(&output));
    assert!(directory.path().join("out/kept.txt").exists());

    let output = run(&["ask", "Go", "--url", "http://127.0.0.1:1/v1", "--model", "m"]);
    assert!(
        stderr(&output).contains("cannot reach http://127.0.0.1:1/v1") && output.status.code() == Some(4),
        "{}",
        stderr(&output)
    );
    let output = run(&["ask", "Go", "--url", "localhost", "--model", "m"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let output = run(&["ask", "Go", "--model", "none-such"]);
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("there is no model `none-such`"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_demo_makes_a_report_from_dirty_data() {
    prepared();
    let directory = tempfile::tempdir().unwrap();
    let output = aludel(directory.path()).arg("demo").output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert!(text.contains("ValueError: time data") && text.contains("scripted"), "{text}");
    let out = directory.path().join("aludel-demo");
    assert!(std::fs::read(out.join("report.pdf")).unwrap().starts_with(b"%PDF"));
    assert!(std::fs::read(out.join("report.xlsx")).unwrap().starts_with(b"PK"));
    for chart in ["monthly.png", "pareto.png", "funnel.png", "figures/figure-3.png"] {
        assert!(std::fs::read(out.join(chart)).unwrap().starts_with(b"\x89PNG"), "{chart}");
    }
    assert_eq!(std::fs::read_to_string(out.join("sales_q1_2026.csv")).unwrap().lines().count(), 45_001);
    let notebook: Value = serde_json::from_slice(&std::fs::read(out.join("transcript.ipynb")).unwrap()).unwrap();
    let programs = notebook["cells"].as_array().unwrap().iter().filter(|cell| cell["cell_type"] == "code").count();
    assert_eq!(programs, 8);
}
