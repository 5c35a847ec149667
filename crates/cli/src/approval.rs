//! Asking the person at the terminal before a program runs.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IsTerminal, Write};

use aludel_agent::ApprovalDecision;
use aludel_engine::approvals;
use aludel_ignore::Ignore;
use rustix::termios::{QueueSelector, tcflush};

use crate::{color, terminal};

/// The question. The program itself was shown just before, exactly as it will be run.
const QUESTION: &str = "Run this program? y = yes, a = yes to all, n [reason] = no: ";

/// Returns true if there is a terminal to ask at.
pub(crate) fn can_be_asked() -> bool {
    Tty::open().is_some()
}

/// The terminal of the gate's questions. `are_unseen` is true if programs were not shown before.
pub(crate) fn terminal(are_unseen: bool) -> approvals::TerminalApprover {
    approvals::TerminalApprover::new(move |program, reasons| ask(are_unseen.then_some(program.code), reasons))
}

/// Asks at the terminal. Without one, the answer is no. `unseen` is the program, if it was not shown yet; `reasons` are the reasons for the
/// question.
///
/// A thread reads the answer, because reading from a terminal cannot be cancelled. If the turn ends meanwhile, the thread is left waiting
/// and ends with the process.
async fn ask(unseen: Option<String>, reasons: Vec<String>) -> ApprovalDecision {
    // Lets the events so far, the program among them, be shown first.
    tokio::task::yield_now().await;
    let (sender, answer) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        sender
            .send(ask_at(Tty::open(), unseen.as_deref(), &reasons))
            .ignore("the receiver is gone if the turn was cancelled");
    });
    answer.await.unwrap_or_else(|_| deny("the question could not be asked"))
}

/// The two directions of a terminal.
struct Tty {
    input: Box<dyn BufRead>,
    output: Box<dyn Write>,
}

impl Tty {
    /// The controlling terminal, even if stdin is something else, or stdin if that is a terminal.
    fn open() -> Option<Self> {
        let opened = OpenOptions::new().read(true).write(true).open("/dev/tty");
        if let Ok((input, output)) = opened.and_then(|tty: File| Ok((tty.try_clone()?, tty))) {
            // Input from before the program was shown is not an answer to it.
            tcflush(&output, QueueSelector::IFlush).ignore("a terminal that is gone gives no answer");
            return Some(Self { input: Box::new(BufReader::new(input)), output: Box::new(output) });
        }
        let stdin = io::stdin();
        stdin.is_terminal().then(|| Self { input: Box::new(stdin.lock()), output: Box::new(io::stderr()) })
    }
}

fn ask_at(terminal: Option<Tty>, unseen: Option<&str>, reasons: &[String]) -> ApprovalDecision {
    let Some(Tty { mut input, mut output }) = terminal else {
        let reasons = terminal::excerpt(&reasons.join("; "), 200);
        let reasons = if reasons.is_empty() { reasons } else { format!(" ({reasons})") };
        return deny(&format!("nobody could be asked{reasons}: there is no terminal"));
    };
    let shown = unseen.map(|code| format!("{}\n", color::code(&terminal::reveal(code)))).unwrap_or_default();
    let reasons: String = reasons.iter().map(|reason| format!("{}\n", terminal::excerpt(reason, 200))).collect();
    let mut question = format!("{shown}{reasons}{}", color::strong(QUESTION));
    loop {
        let mut line = String::new();
        let asked = output.write_all(question.as_bytes()).and_then(|()| output.flush());
        question = color::strong(QUESTION);
        match asked.and_then(|()| input.read_line(&mut line)) {
            Ok(1..) => {}
            Ok(0) => return deny("the terminal was closed without an answer"),
            Err(error) => return deny(&format!("the terminal could not be read: {error}")),
        }
        if let Some(approval) = understand(&line) {
            return approval;
        }
    }
}

/// Parses an answer; `None` if the line is not one.
fn understand(line: &str) -> Option<ApprovalDecision> {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match (word.to_ascii_lowercase().as_str(), rest.trim()) {
        ("y" | "yes", "") => Some(ApprovalDecision::Allow),
        ("a" | "all" | "always", "") => Some(ApprovalDecision::AllowAll),
        ("n" | "no", "") => Some(deny("the user declined")),
        ("n" | "no", reason) => Some(deny(reason)),
        _ => None,
    }
}

fn deny(reason: &str) -> ApprovalDecision {
    ApprovalDecision::Deny { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_answer_counts() {
        assert_eq!(understand("y\n"), Some(ApprovalDecision::Allow));
        assert_eq!(understand(" Yes "), Some(ApprovalDecision::Allow));
        assert_eq!(understand("a\n"), Some(ApprovalDecision::AllowAll));
        assert_eq!(understand("n use polars instead\n"), Some(deny("use polars instead")));
        assert_eq!(understand("no"), Some(deny("the user declined")));
        for line in ["\n", "maybe", "yes please", "yn", "sure"] {
            assert_eq!(understand(line), None, "{line}");
        }
    }

    #[test]
    fn it_asks_until_it_is_answered() {
        let terminal =
            |input: &'static str| Some(Tty { input: Box::new(input.as_bytes()), output: Box::new(io::sink()) });
        assert_eq!(ask_at(terminal("what?\n\ny\n"), None, &[]), ApprovalDecision::Allow);
        assert_eq!(
            ask_at(terminal("what?\n"), Some("1"), &["line 1 opens a network".into()]),
            deny("the terminal was closed without an answer")
        );
        assert_eq!(ask_at(None, None, &[]), deny("nobody could be asked: there is no terminal"));
        let why = ["line 1 opens a network".into(), "line 2".into()];
        assert_eq!(
            ask_at(None, None, &why),
            deny("nobody could be asked (line 1 opens a network; line 2): there is no terminal")
        );
    }
}
