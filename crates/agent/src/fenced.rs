//! For models that cannot call functions: a fenced block of Python in the answer is the call.

/// What such a model is told besides its instructions.
pub(crate) const INSTRUCTIONS: &str = "To run Python, end your message with exactly one fenced block that starts with ```python and ends with ```. \
You then get its output. When you need nothing run, answer without such a block.";

/// The program in an answer: the last block marked as Python, when it is closed.
pub(crate) fn program(text: &str) -> Option<String> {
    let mut found = None;
    let mut block: Option<(usize, bool, String)> = None;
    for line in text.lines() {
        let ticks = line.trim_start().bytes().take_while(|byte| *byte == b'`').count();
        match &mut block {
            None if ticks >= 3 => {
                let language = line.trim_start().trim_start_matches('`').trim().to_ascii_lowercase();
                let is_python = matches!(language.as_str(), "python" | "py" | "python3");
                block = Some((ticks, is_python, String::new()));
            }
            None => {}
            Some((open, is_python, code)) if ticks >= *open && line.trim().bytes().all(|byte| byte == b'`') => {
                if *is_python {
                    found = Some(std::mem::take(code));
                }
                block = None;
            }
            Some((_, _, code)) => {
                code.push_str(line);
                code.push('\n');
            }
        }
    }
    found.filter(|code| !code.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_closed_python_block_is_the_call() {
        for (text, expected) in [
            ("Let me see:\n```python\nprint(1)\n```", Some("print(1)\n")),
            ("```\nprint(1)\n```", None),
            ("```python\nprint(1)", None),
            ("```bash\nls\n```\n```py\na\n\nb\n```\n", Some("a\n\nb\n")),
            ("````python\nx = '''\n```\n'''\n````", Some("x = '''\n```\n'''\n")),
            ("```python\n\n```", None),
            ("no code", None),
        ] {
            assert_eq!(program(text).as_deref(), expected, "{text}");
        }
    }
}
