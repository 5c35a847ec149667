//! The target of the fuzzer `rules` in `fuzz/`, and the replay of what it kept. Not there in any other build.

use std::sync::LazyLock;

use crate::{Decision, Known, Rules};

static USUAL: LazyLock<Rules> = LazyLock::new(Rules::usual);
static STRICT: LazyLock<Rules> = LazyLock::new(|| {
    let policy = "default = 'allow'\nundecidable = 'refuse'\n[[rule]]\ndo = 'refuse'\nuses = ['network', 'processes', 'code', 'native', 'introspection', 'deletion', 'hostfiles']";
    Rules::parse(policy).expect("a policy")
});

/// Judges a program as a hostile model may write it, and another one after it in the same interpreter: the stricter
/// policy is never the milder one, and what comes after them is still seen.
pub fn rules(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (first, second) = text.split_once("\n---\n").unwrap_or((text, ""));
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
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn kept_inputs_pass() {
        super::replay::replay("rules", super::rules);
    }
}
