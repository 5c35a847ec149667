//! Output and answers of a person at a terminal.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aludel_testkit::{Scripted, ScriptedUpstream};
use common::{aludel_in_session, audit_log, data, run};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A program at a terminal of its own.
struct Session {
    child: std::process::Child,
    terminal: File,
    seen: String,
}

impl Session {
    fn start(command: Command) -> Self {
        Self::start_in_columns(command, 0)
    }

    /// Starts it at a terminal of so many columns, 0 for one that tells no size.
    fn start_in_columns(mut command: Command, columns: u16) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let side: OwnedFd = File::options().read(true).write(true).open(name).unwrap().into();
        let other = || Stdio::from(side.try_clone().unwrap());
        let child = command.stdin(other()).stdout(other()).stderr(other()).spawn().unwrap();
        Self { child, terminal: terminal.into(), seen: String::new() }
    }

    /// Reads until these words are seen.
    #[track_caller]
    fn expect(&mut self, words: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut buffer = [0; 4096];
        while !self.seen.contains(words) {
            let mut terminal = [PollFd::new(&self.terminal, PollFlags::IN)];
            let ready = poll(&mut terminal, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap();
            assert!(Instant::now() < deadline, "no {words:?} in {}", self.seen);
            if ready == 0 {
                continue;
            }
            // EIO is how Linux says that nobody has the other side any more.
            let count = self.terminal.read(&mut buffer).unwrap_or(0);
            assert!(count > 0, "no {words:?} in {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    }

    fn type_in(&mut self, text: &str) {
        self.seen.clear();
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    /// Reads to the end.
    fn finish(mut self) -> (Option<i32>, String) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = self.terminal.read(&mut buffer) {
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        (self.child.wait().unwrap().code(), self.seen)
    }
}

const PROGRAM: &str = "print('a\\x1b]0;owned\\x07b\\x1b[2Jc\\u202ed', end='')";

#[test]
fn a_terminal_is_not_controlled_by_a_program_and_a_pipe_gets_all() {
    assert_eq!(run(&["run", "-c", PROGRAM]).stdout, "a\u{1b}]0;owned\u{7}b\u{1b}[2Jc\u{202e}d");
    let directory = tempfile::tempdir().unwrap();
    let mut command = aludel_in_session(directory.path(), &["--ctty"]);
    command.args(["run", "-c", PROGRAM]);
    let (status, seen) = Session::start(command).finish();
    assert_eq!((status, seen.as_str()), (Some(0), "abcd\r\n"));
}

#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() {
    let directory = tempfile::tempdir().unwrap();
    for (name, value, coloured) in [("TERM", "xterm", true), ("NO_COLOR", "1", false), ("TERM", "dumb", false)] {
        let mut command = aludel_in_session(directory.path(), &["--ctty"]);
        command.arg("doctor").env(name, value);
        let (_, seen) = Session::start(command).finish();
        assert_eq!(seen.contains("\u{1b}["), coloured, "{name}={value}: {seen}");
    }
    assert!(!run(&["doctor"]).stdout.contains('\u{1b}'));
}

/// Tells the widths for which libraries print. Modules that only look for pandas do not hinder it.
const WIDTHS: &str = "\
import importlib.util, os
importlib.util.find_spec('pandas')
import numpy, pandas
print('widths', os.environ.get('COLUMNS'), pandas.get_option('display.width'), numpy.get_printoptions()['linewidth'])
print(pandas.DataFrame([[f'cell {n}' for n in range(12)]]))";

#[test]
fn tables_are_as_wide_as_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    // At a terminal of so many columns, with and without a variable that says otherwise.
    for (columns, variable, width) in [(160, None, "160"), (40, None, "40"), (160, Some("60"), "60"), (0, None, "80")] {
        let mut command = aludel_in_session(directory.path(), &["--ctty"]);
        command.args(["run", "-c", WIDTHS]).env_remove("COLUMNS").envs(variable.map(|columns| ("COLUMNS", columns)));
        let (status, seen) = Session::start_in_columns(command, columns).finish();
        assert_eq!(status, Some(0), "{seen}");
        assert!(seen.contains(&format!("widths {width} {width} {width}")), "{columns} {variable:?}: {seen}");
        assert_eq!(seen.contains("..."), columns < 100 || variable.is_some(), "{seen}");
    }
    let own = run(&["run", "--env", "COLUMNS=9999", "-c", WIDTHS]).stdout;
    assert!(own.contains("widths 9999 500 500"), "{own}");
    let piped = run(&["run", "-c", WIDTHS]).stdout;
    assert!(piped.contains("widths None 80 75") && piped.contains("..."), "{piped}");
}

#[test]
fn a_program_asks_at_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let start = |program: &str| {
        let mut command = aludel_in_session(directory.path(), &["--ctty"]);
        command.args(["run", "-c", program]);
        Session::start(command)
    };
    let mut quiz = start("name = input('Name? ')\nprint('Hello', name, len(name))\nprint('again', input())");
    quiz.expect("Name? ");
    quiz.type_in("Zoë\n");
    quiz.expect("Hello Zoë 3");
    quiz.type_in("and again\n");
    let (status, seen) = quiz.finish();
    assert!(status == Some(0) && seen.contains("again and again\r\n"), "{seen}");

    // The end of the input, and an interrupt.
    let mut ending = start("try: input('? ')\nexcept EOFError as error: print('ended:', error)");
    ending.expect("? ");
    ending.type_in("\u{4}");
    let (status, seen) = ending.finish();
    assert!(status == Some(0) && seen.contains("ended: EOF when reading a line"), "{seen}");
    let mut interrupted = start("try: input('? ')\nexcept KeyboardInterrupt: print('interrupted')");
    interrupted.expect("? ");
    interrupted.type_in("\u{3}");
    let (_, seen) = interrupted.finish();
    assert!(seen.contains("interrupted"), "{seen}");

    let mut stopped = start("x = 42\nbreakpoint()\nprint('over')");
    stopped.expect("(Pdb) ");
    stopped.type_in("p x\n");
    stopped.expect("42");
    stopped.type_in("c\n");
    let (status, seen) = stopped.finish();
    assert!(status == Some(0) && seen.contains("over"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_reads_tables_no_narrower_than_elsewhere() {
    for (columns, width) in [(160, "160"), (40, "80")] {
        let script = vec![Scripted::Python(WIDTHS), Scripted::Text("Done.")];
        let upstream = ScriptedUpstream::start(script).await;
        let (directory, data) = (tempfile::tempdir().unwrap(), data());
        let mut command = aludel_in_session(directory.path(), &["--ctty"]);
        command.args(["ask", "Go", "--model", "m", "--url", &upstream.url()]).arg("--data").arg(data.path());
        command.env_remove("COLUMNS");
        let session = Session::start_in_columns(command, columns);
        let (status, seen) = tokio::task::spawn_blocking(move || session.finish()).await.unwrap();
        assert_eq!(status, Some(0), "{seen}");
        let sent = upstream.requests()[1]["messages"].to_string();
        assert!(sent.contains(&format!("widths {width} {width} {width}")), "{sent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_of_life_is_there_for_terminals_and_taken_away() {
    for (name, value, is_there) in [("TERM", "xterm", true), ("NO_COLOR", "1", false)] {
        let script = vec![Scripted::Python("import time; time.sleep(1); print('slept')"), Scripted::Text("Done.")];
        let upstream = ScriptedUpstream::start(script).await;
        let (directory, data) = (tempfile::tempdir().unwrap(), data());
        let mut command = aludel_in_session(directory.path(), &["--ctty"]);
        command.args(["ask", "Go", "--model", "m", "--url", &upstream.url()]).arg("--data").arg(data.path());
        command.env(name, value);
        let session = Session::start(command);
        let (status, seen) = tokio::task::spawn_blocking(move || session.finish()).await.unwrap();
        assert_eq!(status, Some(0), "{seen}");
        assert_eq!(seen.contains(" the program runs"), is_there, "{seen}");
        // Before the output, and at the end: between them it may be there once more.
        for seen in [seen.rsplit_once("slept").unwrap().0, &seen] {
            let after = seen.rsplit(" the program runs").next().unwrap();
            assert!(!is_there || after.contains("\r\u{1b}[K"), "{seen}");
        }
    }
}

fn ask(upstream: &ScriptedUpstream, directory: &std::path::Path, options: &[&str]) -> Command {
    let mut command = aludel_in_session(directory, options);
    command.args(["ask", "Go", "--approve", "--model", "m", "--url", &upstream.url()]).env("NO_COLOR", "1");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_over_each_program() {
    let upstream = ScriptedUpstream::start(vec![
        Scripted::Python("print('first', 1+1)  # \u{202e}txt"),
        Scripted::Python("print('second', 2+2)"),
        Scripted::Python("print('third', 3+3)"),
        Scripted::Python("print('fourth', 4+4)"),
        Scripted::Text("Done."),
    ])
    .await;
    let (directory, data) = (tempfile::tempdir().unwrap(), data());
    let mut command = ask(&upstream, directory.path(), &["--ctty"]);
    command.arg("--data").arg(data.path());
    let mut session = Session::start(command);
    let (status, seen) = tokio::task::spawn_blocking(move || {
        session.expect("Run this program?");
        assert!(session.seen.contains("print('first', 1+1)  # \\u{202e}txt"), "{}", session.seen);
        session.type_in("n use polars\n");
        session.expect("print('second', 2+2)");
        session.expect("Run this program?");
        session.type_in("perhaps\n");
        session.expect("Run this program?");
        session.type_in("y\n");
        session.expect("second 4");
        session.expect("Run this program?");
        session.type_in("a\n");
        session.finish()
    })
    .await
    .unwrap();
    assert_eq!(status, Some(0), "{seen}");
    assert!(seen.contains("third 6") && seen.contains("fourth 8") && seen.contains("Done."), "{seen}");
    assert!(!seen.contains("Run this program?"), "all were allowed: {seen}");
    let requests = upstream.requests();
    let sent = requests[1]["messages"].as_array().unwrap().last().unwrap()["content"].to_string();
    assert!(sent.contains("use polars") && !sent.contains("first 2"), "{sent}");
    let (asked, by) = ("asked", "the terminal");
    let every = "every program is asked about";
    let log = audit_log(data.path()).await;
    let log: Vec<_> =
        log.iter().filter(|entry| entry[0] != "ended").map(|entry| entry.each_ref().map(String::as_str)).collect();
    assert_eq!(
        log,
        [
            [asked, "", every],
            ["refused", by, "use polars"],
            [asked, "", every],
            ["approved", by, ""],
            ["started", by, ""],
            [asked, "", every],
            ["approved", by, "this and all that follow"],
            ["started", by, ""],
            ["approved", by, "all were allowed"],
            ["started", by, ""],
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_over_what_the_rules_leave_open() {
    let upstream = ScriptedUpstream::start(vec![
        Scripted::Python("print('plain', 1+1)"),
        Scripted::Python("import os\nos.remove('x')"),
        Scripted::Python("import os\ntry: os.remove('y')\nexcept OSError: print('tried', 2+2)"),
        Scripted::Python("import subprocess\nprint('never', 3+3)"),
        Scripted::Text("Done."),
    ])
    .await;
    let directory = tempfile::tempdir().unwrap();
    let rules = "[[rule]]\ndo = 'ask'\ncall = ['os.remove']\n[[rule]]\ndo = 'refuse'\nuses = ['processes']\n";
    std::fs::write(directory.path().join("rules.toml"), rules).unwrap();
    std::fs::write(directory.path().join("aludel.toml"), "[approval]\nmode = 'rules'\nrules = 'rules.toml'\n").unwrap();
    let mut command = aludel_in_session(directory.path(), &["--ctty"]);
    command.args(["ask", "Go", "--model", "m", "--url", &upstream.url()]).env("NO_COLOR", "1");
    let mut session = Session::start(command);
    let (status, seen) = tokio::task::spawn_blocking(move || {
        session.expect("plain 2");
        session.expect("line 2");
        session.expect("Run this program?");
        session.type_in("n keep it\n");
        session.expect("Run this program?");
        session.type_in("a\n");
        session.finish()
    })
    .await
    .unwrap();
    assert_eq!(status, Some(0), "{seen}");
    assert!(seen.contains("tried 4") && seen.contains("the rules refuse it") && !seen.contains("never 6"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_nothing_is_asked_and_nothing_runs() {
    let upstream = ScriptedUpstream::start(vec![Scripted::Python("open('made', 'w')")]).await;
    let directory = tempfile::tempdir().unwrap();
    let mut command = ask(&upstream, directory.path(), &[]);
    let said = tokio::task::spawn_blocking(move || common::said(&mut command)).await.unwrap();
    assert_eq!(said.status, Some(2), "{said:#?}");
    assert!(said.stderr.contains("--approve needs a terminal"), "{said:#?}");
    assert!(upstream.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_until_it_is_ended_and_beyond() {
    let upstream = ScriptedUpstream::start(vec![
        Scripted::Python("x = 6\nopen('made', 'w').write('1')"),
        Scripted::Text("Made."),
        Scripted::Python("print('x is', x * 7)\nopen('made', 'w').write('22')"),
        Scripted::Text("Second."),
        Scripted::Hang,
        Scripted::Text("Third."),
        Scripted::Text("Later."),
    ])
    .await;
    let (directory, data) = (tempfile::tempdir().unwrap(), data());
    std::fs::write(directory.path().join("in.csv"), "7").unwrap();
    let chat = |arguments: &[&str]| {
        let mut command = aludel_in_session(directory.path(), &["--ctty"]);
        command.args(["chat", "--model", "m", "--url", &upstream.url(), "--data"]).arg(data.path()).args(arguments);
        command.env("NO_COLOR", "1").env("TERM", "xterm");
        Session::start(command)
    };
    let mut first = chat(&[]);
    let made = directory.path().join("aludel-out/made");
    let requests = || upstream.requests();
    tokio::task::block_in_place(|| {
        let session = &mut first;
        session.expect("> ");
        session.type_in("make it\r");
        session.expect("file: aludel-out/made (1 bytes)");
        session.expect("> ");
        session.type_in("and now\r");
        session.expect("x is 42");
        session.expect("file: aludel-out/made (2 bytes)");
        assert_eq!(std::fs::read_to_string(&made).unwrap(), "22", "the newer one took its place");
        for (line, words) in [
            ("/file in.csv", "added: in.csv"),
            ("/files", "/mnt/data/in.csv (1 bytes)"),
            ("/code", "── program 2 ──"),
            ("/save saved", "file: saved/made"),
            ("/nothing", "there is no command /nothing"),
        ] {
            session.expect("> ");
            session.type_in(&format!("{line}\r"));
            session.expect(words);
        }
        session.expect("> ");
        session.type_in("hang\r");
        common::wait_until(|| requests().len() == 5, "the model was not asked");
        session.type_in("\u{3}");
        session.expect("Cancelled.");
        session.expect("> ");
        session.type_in("given up\u{3}");
        session.expect("> ");
        session.type_in("third\r");
        session.expect("Third.");
        session.expect("> ");
        session.type_in("\u{4}");
    });
    let (status, seen) = tokio::task::spawn_blocking(move || first.finish()).await.unwrap();
    assert_eq!(status, Some(0), "{seen}");
    let mut later = chat(&["--continue"]);
    let (status, seen) = tokio::task::spawn_blocking(move || {
        later.expect("> ");
        later.type_in("later\r");
        later.expect("Later.");
        later.expect("> ");
        later.type_in("/quit\r");
        later.finish()
    })
    .await
    .unwrap();
    assert_eq!(status, Some(0), "{seen}");
    let asked = upstream.requests().pop().unwrap();
    let texts: Vec<_> =
        asked["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user").collect();
    assert_eq!(texts.len(), 4, "the question without an answer was forgotten: {texts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_gets_markdown_painted_output_folded_and_links() {
    let program = "for n in range(100): print('row', n)\nopen('a b', 'w').close()";
    for is_plain in [false, true] {
        let script = vec![Scripted::Python(program), Scripted::Text("# Title\n\nIt is **bold**.")];
        let upstream = ScriptedUpstream::start(script).await;
        let directory = tempfile::tempdir().unwrap();
        let mut command = aludel_in_session(directory.path(), &["--ctty"]);
        command.args(["ask", "Go", "--model", "m", "--url", &upstream.url()]).env("TERM", "xterm");
        if is_plain {
            command.env("NO_COLOR", "1");
        }
        let session = Session::start(command);
        let (status, seen) = tokio::task::spawn_blocking(move || session.finish()).await.unwrap();
        assert_eq!(status, Some(0), "{seen}");
        assert!(seen.contains("row 19\r\n") && seen.contains("row 95\r\n"), "{seen}");
        assert_eq!(seen.contains("row 50\r\n"), is_plain, "{seen}");
        assert_eq!(seen.contains("… 75 lines (all of them with --verbose)"), !is_plain, "{seen}");
        assert_eq!(seen.contains("\u{1b}[1mTitle\u{1b}[0m\r\n"), !is_plain, "{seen}");
        assert_eq!(seen.contains("# Title") && seen.contains("**bold**"), is_plain, "{seen}");
        assert_eq!(
            seen.contains("/aludel-out/a%20b\u{1b}\\aludel-out/a b\u{1b}]8;;\u{1b}\\ (0 bytes)"),
            !is_plain,
            "{seen}"
        );
    }
}
