//! The programs of `tests/rules`: disguised ones that must not slip through, and ordinary ones that nobody is to be asked about.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use aludel_rules::{Decision, Known, Rules};
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    policy: String,
    #[serde(default, rename = "program")]
    programs: Vec<Program>,
}

#[derive(Deserialize)]
struct Program {
    name: String,
    /// Programs that ran before in the same interpreter.
    #[serde(default)]
    before: Vec<String>,
    code: String,
    decision: Decision,
}

fn run(file: &str) -> (usize, Vec<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/rules").join(file);
    let file: File = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let rules = Rules::parse(&file.policy).unwrap();
    let mut wrong = Vec::new();
    for program in &file.programs {
        let mut known = Known::default();
        for before in &program.before {
            rules.judge_after(&mut known, before);
        }
        let judgement = rules.judge_after(&mut known, &program.code);
        let reasons: Vec<String> = judgement.reasons.iter().map(ToString::to_string).collect();
        if judgement.decision != program.decision {
            wrong.push(format!("{}: {:?} {reasons:#?}", program.name, judgement.decision));
        }
        if (judgement.decision == Decision::Allow) != reasons.is_empty() {
            wrong.push(format!("{}: {:?} with {} reasons", program.name, judgement.decision, reasons.len()));
        }
    }
    (file.programs.len(), wrong)
}

#[test]
fn disguises_do_not_slip_through() {
    let (count, wrong) = run("disguised.toml");
    assert!(count >= 80, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn ordinary_programs_are_not_asked_about() {
    let (count, wrong) = run("ordinary.toml");
    assert!(count >= 30, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn programs_that_nest_deeply_or_are_long_harm_nobody() {
    let rules = Rules::parse("[[rule]]\ndo = 'refuse'\nuses = ['processes']").unwrap();
    for code in [
        "(".repeat(100_000),
        "[".repeat(60_000) + &"]".repeat(60_000),
        "-".repeat(100_000) + "1",
        "not ".repeat(50_000) + "1",
        "1".to_owned() + &"+1".repeat(100_000),
        "x".to_owned() + &".a".repeat(100_000),
        "f".to_owned() + &"()".repeat(100_000),
        "if 1:\n".to_owned() + " if 1:\n".repeat(10_000).as_str(),
        "lambda: ".repeat(30_000) + "1",
        "a=".repeat(100_000) + "1",
        "x = 1\n".repeat(40_000),
        "x = 1\n".repeat(400_000),
        "\u{0}\u{feff}\u{202e}".to_owned(),
        "exec(".repeat(20_000),
    ] {
        let judgement = rules.judge(&code);
        assert_ne!(judgement.decision, Decision::Refuse);
    }
    // As deeply as Python itself can read, what it does is seen.
    let code = "1".to_owned() + &"+1".repeat(900) + "\nimport subprocess";
    assert_eq!(rules.judge(&code).decision, Decision::Refuse);
}
