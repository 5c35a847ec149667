//! `aludel run` at a server that runs, as the built program.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Child;

use common::{Said, aludel, audit_log, data, runs, said, signal, wait_until};
use serde_json::{Value, json};

/// A server that ends with the test.
struct Server(Child);

impl Server {
    fn start(data: &Path) -> Self {
        let mut child = aludel(data).args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on"), "{line}");
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Runs a program at the server of a data directory, if there is one and it takes the program.
fn run(data: &Path, arguments: &[&str]) -> Said {
    said(aludel(data).args(["run", "-v", "--data"]).arg(data).args(arguments))
}

const DECLINED: &str = "the server does not run the program, so it gets a sandbox of its own: ";

/// The JSON lines without times, and with text in one piece however it was read.
fn lines(said: &Said) -> Vec<Value> {
    let mut lines: Vec<Value> = Vec::new();
    for mut line in said.lines() {
        line.as_object_mut().unwrap().remove("elapsed_ms");
        match lines.last_mut() {
            Some(last) if last["type"] == line["type"] && last["text"].is_string() => {
                last["text"] = json!(format!("{}{}", last["text"].as_str().unwrap(), line["text"].as_str().unwrap()));
            }
            _ => lines.push(line),
        }
    }
    lines
}

/// Starts a program that prints `on` when it has got somewhere, and waits for that.
fn started(data: &Path, code: &str) -> Child {
    let mut child = aludel(data).args(["run", "--data"]).arg(data).args(["-c", code]).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    child
}

#[tokio::test]
async fn a_program_at_a_server_is_the_same_and_in_the_audit_log_and_ends_with_its_client() {
    let data = data();
    let data = data.path();
    let mut server = Server::start(data);
    std::fs::write(data.join("in.csv"), "a\n1\n").unwrap();
    let all = "import sys\nprint(open('in.csv').read())\nsys.stdout.flush()\nprint('e', file=sys.stderr)\n\
               open('gone', 'w').write('x')\nimport os\nos.makedirs('d')\nopen('d/out', 'w').write('y' * 3000000)\nos.remove('gone')\n\
               from IPython.display import Image, display\ndisplay(Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + b'0' * 99))\n1/0";
    let program = "import os, sys\nprint(sys.argv, os.environ['A'], sys.stdin.read())\n1/0";
    std::fs::write(data.join("p.py"), program).unwrap();
    let cell = |code: &str| json!({ "cell_type": "code", "id": "a", "metadata": {}, "source": code, "outputs": [] });
    let cells = ["x = open('first', 'w').write('x')\nx", "open('second', 'w').write('y')\nx + 1", "1/0", "2"].map(cell);
    let notebook = json!({ "cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5 });
    std::fs::write(data.join("n.ipynb"), notebook.to_string()).unwrap();
    let mut at_server = 0;
    for (arguments, status) in [
        (vec!["--json", "-c", all, "--file", "in.csv", "--out", "OUT"], 1),
        (vec!["--json", "-c", "1+1"], 0),
        (vec!["--json", "n.ipynb", "--out", "OUT"], 1),
        (vec!["--json", "--env", "A=a", "p.py", "in.csv", "--flag"], 1),
        (vec!["--json", "--timeout", "300ms", "-c", "import time\ntime.sleep(60)"], 3),
        (vec!["--json", "-c", "import os\nos._exit(3)"], 1),
    ] {
        let one = |more: &[&str], out: &str| {
            let arguments: Vec<_> = arguments.iter().map(|text| if *text == "OUT" { out } else { *text }).collect();
            run(data, &[more, arguments.as_slice()].concat())
        };
        let (warm, cold) = (one(&[], "made"), one(&["--no-server"], "made-alone"));
        at_server += if arguments.contains(&"n.ipynb") { 3 } else { 1 };
        assert_eq!((warm.status, cold.status), (Some(status), Some(status)), "{warm:#?} {cold:#?}");
        let cold = cold.stdout.replace("made-alone", "made");
        assert_eq!(lines(&warm), lines(&Said { stdout: cold, status: None, stderr: String::new() }));
        assert!(!warm.stderr.contains(DECLINED), "{warm:#?}");
    }
    assert_eq!(std::fs::read(data.join("made/d/out")).unwrap(), vec![b'y'; 3_000_000]);
    assert!(data.join("made/first").exists() && data.join("made/second").exists());
    let [warm, cold] =
        ["made", "made-alone"].map(|out| std::fs::read_to_string(data.join(out).join("n.ipynb")).unwrap());
    assert_eq!(warm, cold);
    let log = audit_log(data).await;
    assert_eq!(log.iter().filter(|[event, ..]| event == "started").count(), at_server, "{log:?}");
    assert_eq!(log.iter().filter(|[event, ..]| event == "ended").count(), at_server, "{log:?}");

    let input = std::fs::File::open(data.join("in.csv")).unwrap();
    let read = said(aludel(data).args(["run", "-v", "--data", ".", "--env", "A=a", "p.py", "x"]).stdin(input));
    assert_eq!(read.stdout, "['p.py', 'x'] a a\n1\n\n");
    assert!(read.stderr.contains("p.py\", line 3") && !read.stderr.contains(DECLINED), "{read:#?}");

    let more = run(data, &["-c", "1+1", "--memory", "4g"]);
    assert!(more.stdout == "2\n" && more.stderr.contains(&format!("{DECLINED}it allows less memory")), "{more:#?}");

    let child = started(data, "import time\nprint('on', flush=True)\ntime.sleep(60)");
    signal(&child, "INT");
    let said = Said::from(&child.wait_with_output().unwrap());
    assert!(said.status == Some(130) && said.stderr.contains("interrupted"), "{said:#?}");

    let marker = format!("{}.5", 77_000_000 + u64::from(std::process::id()));
    let sleeps = format!(
        "import subprocess\nprint('on', flush=True)\nwhile 1:\n  try: subprocess.run(['sleep', '{marker}'])\n  except: pass"
    );
    let mut child = started(data, &sleeps);
    wait_until(|| runs(&marker), "the control: it runs");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(|| !runs(&marker), "the sandbox outlives its client");

    let child = started(data, &sleeps);
    server.0.kill().unwrap();
    let said = Said::from(&child.wait_with_output().unwrap());
    assert!(said.status == Some(4) && said.stderr.contains("the server ended"), "{said:#?}");
    // The dead server's socket is in nobody's way.
    assert_eq!(run(data, &["-c", "1+1"]).stdout, "2\n");
}

#[tokio::test]
async fn a_program_at_a_server_passes_its_gate() {
    let data = data();
    let data = data.path();
    std::fs::write(data.join("aludel.toml"), "[approval]\nmode = \"rules\"\ntimeout = \"1s\"\n").unwrap();
    let _server = Server::start(data);
    let refused = run(data, &["--json", "-c", "import socket\nsocket.socket()"]);
    assert_eq!((refused.status, refused.types()), (Some(1), vec!["ended".to_owned()]), "{refused:#?}");
    assert!(refused.lines()[0]["message"].as_str().unwrap().contains("not allowed to run"), "{refused:#?}");
    assert!(refused.stderr.contains("`aludel approvals approve "), "{refused:#?}");
    assert_eq!(run(data, &["--json", "-c", "1+1"]).lines().last().unwrap()["exit"], json!(0));
}

#[test]
fn a_server_without_a_socket_serves_all_others() {
    let (off, deep) = (data(), data());
    std::fs::write(off.path().join("aludel.toml"), "[server]\nsocket = false\n").unwrap();
    let long = deep.path().join("x".repeat(100));
    std::fs::create_dir(&long).unwrap();
    std::os::unix::fs::symlink(deep.path().join("templates"), long.join("templates")).unwrap();
    for (data, words) in [(off.path(), ""), (long.as_path(), "a socket's has 107 at most")] {
        let mut server = Server::start(data);
        assert!(!data.join("aludel.sock").exists());
        signal(&server.0, "TERM");
        let mut output = String::new();
        server.0.stderr.take().unwrap().read_to_string(&mut output).unwrap();
        assert!(output.contains(words), "{output}");
    }
}
