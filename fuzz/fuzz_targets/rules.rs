//! Programs as a hostile model may write them, and another one after them in the same interpreter: they are judged in bounded time, the
//! stricter policy is never the milder one, and what comes after them is still seen.
#![no_main]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use aludel_rules::{Decision, Known, Rules};

static USUAL: LazyLock<Rules> = LazyLock::new(Rules::usual);
static STRICT: LazyLock<Rules> = LazyLock::new(|| {
    let policy = "default = 'allow'\nundecidable = 'refuse'\n[[rule]]\ndo = 'refuse'\nuses = ['network', 'processes', 'code', 'native', 'introspection', 'deletion', 'hostfiles']";
    Rules::parse(policy).unwrap()
});

/// Far more than judging takes, also on a machine that does other things.
const LONG: Duration = Duration::from_secs(5);

libfuzzer_sys::fuzz_target!(|text: &str| {
    let (first, second) = text.split_once("\n---\n").unwrap_or((text, ""));
    let began = Instant::now();
    let (mut known, mut strictly) = (Known::default(), Known::default());
    for program in [first, second] {
        let usual = USUAL.judge_after(&mut known, program);
        let strict = STRICT.judge_after(&mut strictly, program);
        assert_eq!(usual.decision == Decision::Allow, usual.reasons.is_empty(), "{program:?}");
        assert!(strict.decision == Decision::Refuse || usual.decision == Decision::Allow, "{program:?}");
    }
    // Whatever ran before, this is what it is.
    for plain in ["import os as o_\no_.system('id')", "__import__('os').system('id')", "import subprocess"] {
        assert_ne!(USUAL.judge_after(&mut known.clone(), plain).decision, Decision::Allow, "{text:?}");
    }
    // A program is seen, whatever stands after it.
    if STRICT.judge(first).decision == Decision::Allow {
        let more = format!("import os\n{first}\n");
        assert_ne!(USUAL.judge(&format!("{more}os.system('id')\n")).decision, Decision::Allow, "{text:?}");
    }
    assert!(began.elapsed() < LONG, "{text:?}");
});
