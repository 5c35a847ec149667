//! The programs of `tests/rules`: disguised ones that must not slip through, and ordinary ones that nobody is to be asked about.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::time::Duration;

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

fn read(file: &str) -> (Rules, Vec<Program>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/rules").join(file);
    let file: File = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    (Rules::parse(&file.policy).unwrap(), file.programs)
}

fn run(file: &str) -> (usize, Vec<String>) {
    let (rules, programs) = read(file);
    let mut wrong = Vec::new();
    for program in &programs {
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
    (programs.len(), wrong)
}

#[test]
fn disguises_do_not_slip_through() {
    let (count, wrong) = run("disguised.toml");
    assert!(count >= 350, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn ordinary_programs_are_not_asked_about() {
    let (count, wrong) = run("ordinary.toml");
    assert!(count >= 127, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Most of them are allowed one after the other, too, where names have other meanings from programs before.
#[test]
fn ordinary_programs_share_an_interpreter() {
    let (rules, programs) = read("ordinary.toml");
    let mut known = Known::default();
    let asked = programs.iter().filter(|one| rules.judge_after(&mut known, &one.code).decision != Decision::Allow);
    assert!(asked.count() <= 17);
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

#[test]
fn a_program_on_which_the_parser_panics_is_not_read_and_not_allowed() {
    let rules = Rules::parse("[[rule]]\ndo = 'refuse'\nuses = ['processes']").unwrap();
    let judgement = rules.judge("f(a]\n?.x\nimport os\nos.system('id')");
    assert_eq!((judgement.decision, &*judgement.reasons[0].what), (Decision::Ask, "the program cannot be read"));
}

/// Small programs that make much: judged soon.
#[test]
fn programs_that_make_much_of_little_are_judged_soon() {
    let rules = Rules::usual();
    let lines = |line: &dyn Fn(usize) -> String, count: usize| (0..count).map(line).collect::<String>();
    for code in [
        "x = 'a' * 10**12\n".repeat(1000),
        "x = 'aaaaaaaa'\n".to_owned() + &"x = x + x\n".repeat(20_000),
        "x = 'aaaaaaaaaaaaaaaa'\n".to_owned() + &"x = x.replace('a', 'aaaaaaaaaaaaaaaa')\n".repeat(5000),
        "x = 'abcdefgh'\n".to_owned() + &"x = f'{x}{x}{x}{x}'\n".repeat(10_000),
        lines(&|i| format!("x = 'a{i}'\ny = 'b{i}'\nz = x + y\n"), 7000),
        lines(&|i| format!("a{i} = a{}\n", i + 1), 14_000),
        lines(&|i| format!("from a{i} import *\nx{i}\n"), 8000),
        lines(&|i| format!("import m{i}\nf(m{i})\nx.y{i}\n"), 7000),
        lines(&|i| format!("x.a{i}.b{i}\n"), 14_000),
        lines(&|i| format!("import os\nos.a{i}{}\n", ".b".repeat(14)), 5000),
        lines(&|i| format!("os.a{i}{}\n", ".b".repeat(140)), 800),
        lines(&|i| format!("x = '{i}{}'\n", "a".repeat(1000)), 20) + &"x\n".repeat(100_000),
        lines(&|i| format!("q = 'a > {i}'\n"), 16) + &"t.query(q)\n".repeat(20_000),
        "f'{".repeat(90) + "x" + &"}'".repeat(90),
        format!("for x[{}] in [{}]: pass", "f(x), ".repeat(20_000), "1, ".repeat(30_000)),
        "[0 for x[".repeat(90) + "0" + &"] in [1, 2, 3]]".repeat(90),
        "[a for a in [".repeat(150) + "1" + &"]]".repeat(150),
        "9".repeat(250_000),
        "exec('exec(\"1\")')\n".repeat(14_000),
        "%time x\n".repeat(30_000),
    ] {
        let before = processor_time();
        rules.judge(&code);
        let taken = processor_time() - before;
        // Some hundredths of a second in a program that is compiled for speed; ages, where each level doubles it.
        assert!(taken < Duration::from_secs(60), "{} {taken:?}", &code[..40]);
    }
}

/// Processor time that this thread has taken, however busy the machine is.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn after_what_could_not_be_read_nothing_is_simply_allowed() {
    for (undecidable, after) in [("ask", Decision::Ask), ("refuse", Decision::Allow)] {
        let policy = format!("default = 'allow'\nundecidable = '{undecidable}'\n[[rule]]\ndo = 'ask'\nuses = ['code']");
        let rules = Rules::parse(&policy).unwrap();
        for unread in
            ["x = 1\n".repeat(100_000), "(".repeat(5000), "def f(): return 1\n".to_owned() + &"x\n".repeat(200_000)]
        {
            let mut known = Known::default();
            assert_eq!(rules.judge_after(&mut known, "x = 1").decision, Decision::Allow);
            assert_ne!(rules.judge_after(&mut known, &unread).decision, Decision::Allow);
            // A program that was refused did not run.
            assert_eq!(rules.judge_after(&mut known, "print(x)").decision, after, "{undecidable}");
        }
    }
}

#[test]
fn what_an_interpreter_remembers_is_bounded() {
    let rules = Rules::usual();
    let mut known = Known::default();
    let mut decision = Decision::Allow;
    for round in 0..200 {
        let code: String = (0..200).map(|i| format!("name_{round}_{i} = '{}'\n", "a".repeat(500))).collect();
        decision = rules.judge_after(&mut known, &code).decision;
    }
    assert_eq!(decision, Decision::Ask);
}

/// Programs whose reading would take minutes.
#[test]
fn a_program_takes_as_much_effort_as_it_may() {
    let texts: String = (0..16).map(|more| format!("x = \"{}\"\n", "~".repeat(1000 + more))).collect();
    let long: String = (0..16).map(|more| format!("y = \"{}\"\n", "b".repeat(1000 + more))).collect();
    let stars: String = (0..32).map(|number| format!("from m{number} import *\n")).collect();
    let names: String = (0..20_000).map(|number| format!("n{number}\n")).collect();
    let rules = read("disguised.toml").0;
    for code in [
        format!("import sympy\n{texts}sympy.sympify({})", "x,".repeat(100_000)),
        format!("import sympy\n{long}sympy.sympify({})", "y,".repeat(100_000)),
        format!("import sympy\nsympy.sympify('{}')", "a~".repeat(100_000)),
        format!("{long}{}", "x = y\n".repeat(40_000)),
        format!("{stars}{names}"),
    ] {
        let began = std::time::Instant::now();
        let judgement = rules.judge(&code);
        println!("{} bytes: {:?} after {:?}", code.len(), judgement.decision, began.elapsed());
        assert_ne!(judgement.decision, Decision::Allow);
        // Without a bound the first takes more than an hour.
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
}
