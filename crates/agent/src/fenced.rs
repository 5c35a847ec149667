//! Models without function calling: a fenced block of the kernel's language in the answer is the call.
//!
//! The conversation itself keeps calls and outputs; they are converted to and from text only for such a model.

use aludel_sandbox::KernelSpec;

use crate::excerpt;
use crate::item::{Call, Item};
use crate::program_call;

/// Returns the additional instructions for such a model.
pub(crate) fn instructions(kernel: &KernelSpec) -> String {
    let (title, fence) = (&kernel.title, kernel.fence());
    format!(
        "To run {title}, end your message with exactly one fenced block that starts with ```{fence} and ends with ```, \
         and write nothing after it. You then get its output. When you need nothing run, answer without such a block."
    )
}

/// The longest line that opens a block.
const MAX_OPENING: usize = 60;

/// The conversation for such a model: calls are blocks in its own messages, outputs are messages of the user.
pub(crate) fn as_text(items: &[Item], fence: &str) -> Vec<Item> {
    let mut seen: Vec<Item> = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Item::Call(call) => {
                let block = block_of(call, fence);
                match seen.last_mut() {
                    Some(Item::Assistant(text)) => *text = format!("{}\n{block}", text.trim_end()),
                    _ => seen.push(Item::Assistant(block)),
                }
            }
            Item::Output(output) => seen.push(Item::User(output.parts.clone())),
            Item::User(_) | Item::Assistant(_) | Item::Reasoning(_) => seen.push(item.clone()),
        }
    }
    seen
}

fn block_of(call: &Call, fence: &str) -> String {
    match program_call::code_of(&call.arguments) {
        Ok(code) => excerpt::fenced(fence, &code),
        Err(_) => excerpt::fenced("json", &call.arguments),
    }
}

/// A piece of such a model's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FencedPiece {
    /// Text around programs.
    Text(String),
    /// A program begins.
    Opened,
    /// The next characters of the program.
    Code(String),
}

/// Finds the first program in text that comes in fragments, and ignores the rest.
#[derive(Debug)]
pub(crate) struct Scanner {
    /// The words that open a program.
    fences: Vec<String>,
    state: State,
    /// The beginning of a line that may become a fence.
    withheld: WithheldText,
    code: String,
    pieces: Vec<FencedPiece>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Outside,
    /// In a block of something else, opened by this many backticks.
    Other(usize),
    /// In the program, opened by this many backticks.
    Program(usize),
    /// After the program.
    Closed,
}

#[derive(Debug)]
enum WithheldText {
    Line(String),
    /// This line is none.
    Nothing,
}

impl Default for WithheldText {
    fn default() -> Self {
        Self::Line(String::new())
    }
}

impl Scanner {
    /// Looks for blocks whose info string is one of these words.
    pub(crate) fn new(fences: Vec<String>) -> Self {
        Self {
            fences,
            state: State::default(),
            withheld: WithheldText::default(),
            code: String::new(),
            pieces: Vec::new(),
        }
    }

    /// Takes the next fragment.
    pub(crate) fn push(&mut self, text: &str) -> Vec<FencedPiece> {
        for character in text.chars() {
            if self.state == State::Closed {
                break;
            }
            match &mut self.withheld {
                WithheldText::Line(line) => {
                    line.push(character);
                    if character == '\n' {
                        self.end_line();
                    } else if !may_be_fence(line, self.state) {
                        let line = std::mem::take(line);
                        self.withheld = WithheldText::Nothing;
                        self.emit(&line);
                    }
                }
                WithheldText::Nothing => {
                    self.emit(character.encode_utf8(&mut [0; 4]));
                    if character == '\n' {
                        self.withheld = WithheldText::default();
                    }
                }
            }
        }
        std::mem::take(&mut self.pieces)
    }

    /// The end of the text: what was held back is sent.
    pub(crate) fn finish(&mut self) -> Vec<FencedPiece> {
        self.end_line();
        std::mem::take(&mut self.pieces)
    }

    /// Returns true once the program's closing fence was read.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The program so far, if there is one.
    pub(crate) fn program(&self) -> Option<String> {
        matches!(self.state, State::Program(_) | State::Closed).then(|| self.code.clone())
    }

    fn end_line(&mut self) {
        let WithheldText::Line(line) = std::mem::take(&mut self.withheld) else { return };
        let (ticks, rest) = ticks_of(&line);
        match self.state {
            State::Outside if ticks >= 3 => {
                let language = rest.trim().to_ascii_lowercase();
                if self.fences.contains(&language) {
                    self.state = State::Program(ticks);
                    self.pieces.push(FencedPiece::Opened);
                    return;
                }
                self.state = State::Other(ticks);
            }
            State::Other(open) if ticks >= open && rest.trim().is_empty() => self.state = State::Outside,
            State::Program(open) if ticks >= open && rest.trim().is_empty() => {
                self.state = State::Closed;
                return;
            }
            State::Outside | State::Other(_) | State::Program(_) | State::Closed => {}
        }
        self.emit(&line);
    }

    fn emit(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let is_code = matches!(self.state, State::Program(_));
        if is_code {
            self.code.push_str(text);
        }
        match (self.pieces.last_mut(), is_code) {
            (Some(FencedPiece::Text(last)), false) | (Some(FencedPiece::Code(last)), true) => last.push_str(text),
            (_, false) => self.pieces.push(FencedPiece::Text(text.to_owned())),
            (_, true) => self.pieces.push(FencedPiece::Code(text.to_owned())),
        }
    }
}

/// Returns true if a line with this beginning may become a fence.
fn may_be_fence(line: &str, state: State) -> bool {
    let (ticks, rest) = ticks_of(line);
    let may_open = ticks >= 3 && !rest.contains('`') && line.len() <= MAX_OPENING;
    rest.is_empty() || (ticks >= 3 && rest.trim().is_empty()) || (state == State::Outside && may_open)
}

/// The number of backticks at the beginning of a line, and the rest of the line.
fn ticks_of(line: &str) -> (usize, &str) {
    let line = line.trim_start();
    let rest = line.trim_start_matches('`');
    (line.len() - rest.len(), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(fragments: &[&str]) -> (String, Option<String>, bool) {
        let mut scanner = Scanner::new(KernelSpec::python("").fences);
        let mut pieces: Vec<FencedPiece> = fragments.iter().flat_map(|fragment| scanner.push(fragment)).collect();
        pieces.extend(scanner.finish());
        let mut said = String::new();
        let mut code = None;
        for piece in pieces {
            match piece {
                FencedPiece::Text(text) => said.push_str(&text),
                FencedPiece::Opened => assert_eq!(code.replace(String::new()), None, "only one program starts"),
                FencedPiece::Code(text) => code.as_mut().unwrap().push_str(&text),
            }
        }
        assert_eq!(code, scanner.program());
        (said, code, scanner.is_closed())
    }

    #[test]
    fn the_first_python_block_is_the_call_at_every_split() {
        for (text, said, code, closed) in [
            ("See:\n```python\nprint(1)\n```\ninvented", "See:\n", Some("print(1)\n"), true),
            ("See:\n```python\nprint(1)\n```", "See:\n", Some("print(1)\n"), true),
            ("```\nprint(1)\n```\n", "```\nprint(1)\n```\n", None, false),
            ("```python\nprint(1)", "", Some("print(1)"), false),
            ("```bash\nls\n```\n```py\na\n\nb\n```\n", "```bash\nls\n```\n", Some("a\n\nb\n"), true),
            ("````python\nx = '''\n```\n'''\n````", "", Some("x = '''\n```\n'''\n"), true),
            ("  ```Python \r\n  f(`x`)\n  ```\n", "", Some("  f(`x`)\n"), true),
            ("```python\n# ```\n```", "", Some("# ```\n"), true),
            ("Use `x`, ``y`` and ```z```.\n", "Use `x`, ``y`` and ```z```.\n", None, false),
            ("```x``` inline\n", "```x``` inline\n", None, false),
            ("é漢🎉 no code", "é漢🎉 no code", None, false),
            ("", "", None, false),
        ] {
            let expected = (said.to_owned(), code.map(str::to_owned), closed);
            for split in text.char_indices().map(|(at, _)| at).chain([text.len()]) {
                let (left, right) = text.split_at(split);
                assert_eq!(scan(&[left, right]), expected, "{text:?} at {split}");
            }
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            assert_eq!(scan(&characters), expected, "{text:?}");
        }
    }

    #[test]
    fn a_program_that_holds_a_fence_gets_a_longer_one() {
        let call = Call { id: "c".into(), name: "python".into(), arguments: r#"{"code":"x = '```'"}"#.into() };
        let seen = as_text(&[Item::Assistant("So:".into()), Item::Call(call)], "python");
        assert_eq!(seen, [Item::Assistant("So:\n````python\nx = '```'\n````".into())]);
    }
}
