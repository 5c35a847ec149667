//! Streaming rendering of a model's Markdown for a terminal.
//!
//! Headings, emphasis, code, lists, quotes, rules and tables are styled, and a link to a file of the sandbox is reduced to its text.
//! Everything else stays as it was written. The input has no control characters except tabs, newlines and carriage returns.

mod table;

use self::table::MarkdownTable;
use crate::wrap::Wrap;

const BOLD: &str = "\u{1b}[1m";
const ITALIC: &str = "\u{1b}[3m";
const FAINT: &str = "\u{1b}[2m";
const CODE: &str = "\u{1b}[36m";
const PLAIN: &str = "\u{1b}[0m";
/// Characters of a line that are needed at most to recognize its kind.
const MAX_HEAD: usize = 12;
/// Columns of a rule.
const MAX_RULE: usize = 60;
/// Digits of an item's number.
const MAX_DIGITS: usize = 3;
/// Bytes of a row of a table, or a fence. A longer line is text.
const MAX_WHOLE: usize = 4 << 10;
/// Bytes of a link. A longer one is text.
const MAX_LINK: usize = 512;
/// Beginning of the address of a file that programs see.
const SANDBOX: &str = "sandbox:";

/// The state of the text so far that affects the rendering of the next characters.
#[derive(Debug)]
pub(crate) struct Markdown {
    /// Columns of the terminal.
    width: usize,
    wrap: Wrap,
    line: Line,
    /// True between the fences of a block of code.
    in_block: bool,
    bold: bool,
    italic: bool,
    code: bool,
    /// True in a heading, which is bold throughout.
    heading: bool,
    /// A mark that may be the first of two, and the character before it.
    mark: Option<(char, char)>,
    before: char,
    /// Text from a bracket on that may become a link.
    link: Option<String>,
    table: MarkdownTable,
}

/// The line that is being written.
#[derive(Debug)]
enum Line {
    /// Its beginning, which may still be anything.
    Head(String),
    /// It is shown as it comes.
    Text,
    /// It is kept until its end: a row of a table, or a fence.
    Whole(String),
}

impl Markdown {
    /// Text for a terminal with so many columns.
    pub(crate) fn new(width: usize) -> Self {
        Self {
            width,
            wrap: Wrap::new(width),
            line: Line::Head(String::new()),
            in_block: false,
            bold: false,
            italic: false,
            code: false,
            heading: false,
            mark: None,
            before: ' ',
            link: None,
            table: MarkdownTable::default(),
        }
    }

    /// The next piece of text, as far as it can be shown.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for character in text.chars() {
            self.take(character, &mut out);
        }
        out
    }

    /// Returns everything held back, and ends all styles. The next text begins on a new line.
    pub(crate) fn flush(&mut self) -> String {
        let mut out = String::new();
        match std::mem::replace(&mut self.line, Line::Text) {
            Line::Head(head) if head.is_empty() => self.end_table(&mut out),
            Line::Head(head) => self.begin(&head, &mut out),
            Line::Text => {}
            Line::Whole(line) => {
                self.whole(&line, &mut out);
                self.end_table(&mut out);
            }
        }
        self.end_marks(&mut out);
        self.wrap.end_line(&mut out);
        self.line = Line::Head(String::new());
        out
    }

    fn take(&mut self, character: char, out: &mut String) {
        match &mut self.line {
            Line::Head(_) | Line::Whole(_) if character == '\n' => {
                let (text, is_whole) = match std::mem::replace(&mut self.line, Line::Text) {
                    Line::Head(head) => (head, false),
                    Line::Whole(line) => (line, true),
                    Line::Text => (String::new(), false),
                };
                if is_whole {
                    self.whole(&text, out);
                } else {
                    self.begin(&text, out);
                    // It may be a row or a fence after all.
                    if let Line::Whole(line) = std::mem::replace(&mut self.line, Line::Text) {
                        self.whole(&line, out);
                    } else {
                        self.end_line(out);
                    }
                }
                self.line = Line::Head(String::new());
            }
            Line::Head(head) => {
                head.push(character);
                let is_known = |head: &str| {
                    let rest = head.trim_start_matches([' ', '>']);
                    !rest.is_empty() && !is_open(rest)
                };
                if is_known(head) || head.len() > MAX_HEAD {
                    let head = std::mem::take(head);
                    self.line = Line::Text;
                    self.begin(&head, out);
                }
            }
            Line::Whole(line) => {
                line.push(character);
                if line.len() > MAX_WHOLE {
                    let line = std::mem::take(line);
                    self.line = Line::Text;
                    self.end_table(out);
                    for character in line.chars() {
                        self.inline(character, out);
                    }
                }
            }
            Line::Text if character == '\n' => {
                self.end_line(out);
                self.line = Line::Head(String::new());
            }
            Line::Text => self.inline(character, out),
        }
    }

    /// Renders the beginning of a line, which shows the line's kind.
    fn begin(&mut self, head: &str, out: &mut String) {
        let text = head.trim_start_matches(' ');
        let indent = &head[..head.len() - text.len()];
        if text.starts_with("```") || (text.starts_with('|') && !self.in_block) {
            self.line = Line::Whole(head.to_owned());
            return;
        }
        self.end_table(out);
        if self.in_block {
            out.push_str(CODE);
            out.push_str(head);
            return;
        }
        let hashes = text.chars().take_while(|character| *character == '#').count();
        let mut rest = text;
        if (1..=6).contains(&hashes) && text[hashes..].starts_with(' ') {
            self.heading = true;
            self.wrap.paint(BOLD);
            rest = &text[hashes + 1..];
        } else if let Some(item) = ["- ", "* ", "+ "].iter().find_map(|mark| text.strip_prefix(mark)) {
            self.wrap.hang(&" ".repeat(indent.len() + 2));
            self.text(indent, out);
            self.text("• ", out);
            rest = item;
        } else if is_rule(text) {
            out.push_str(&format!("{FAINT}{}{PLAIN}", "─".repeat(self.width.min(MAX_RULE))));
            return;
        } else {
            let quoted = text.len() - text.trim_start_matches(['>', ' ']).len();
            let number = numbered(text);
            match (&text[..quoted], number) {
                ("", 0) => {}
                ("", number) => self.wrap.hang(&" ".repeat(indent.len() + number)),
                (marks, _) => self.wrap.hang(&format!("{indent}{marks}")),
            }
            self.text(indent, out);
        }
        self.before = ' ';
        for character in rest.chars() {
            self.inline(character, out);
        }
    }

    /// Renders a line that was held back.
    fn whole(&mut self, line: &str, out: &mut String) {
        if line.trim_start().starts_with("```") {
            self.end_table(out);
            self.in_block = !self.in_block;
            // Of a fence only the language is of interest to readers.
            let language = line.trim_start().trim_start_matches('`').trim();
            if self.in_block && !language.is_empty() {
                out.push_str(&format!("{FAINT}{language}{PLAIN}\n"));
            }
        } else if !self.table.add(line) {
            self.end_table(out);
            let _first = self.table.add(line);
        }
    }

    fn end_table(&mut self, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.table).render(self.width));
    }

    fn text(&mut self, text: &str, out: &mut String) {
        for character in text.chars() {
            self.wrap.push(character, out);
        }
    }

    fn end_line(&mut self, out: &mut String) {
        self.end_marks(out);
        self.wrap.end_line(out);
        out.push('\n');
    }

    /// Ends unclosed emphasis, which does not continue in the next line.
    fn end_marks(&mut self, out: &mut String) {
        for character in self.link.take().unwrap_or_default().chars() {
            self.letter(character, out);
        }
        if let Some((mark, before)) = self.mark.take() {
            let ends = self.italic && !before.is_whitespace();
            if !ends {
                self.wrap.push(mark, out);
            }
        }
        if self.bold || self.italic || self.code || self.heading || self.in_block {
            self.wrap.paint(PLAIN);
        }
        (self.bold, self.italic, self.code, self.heading) = (false, false, false, false);
        self.before = ' ';
    }

    fn inline(&mut self, character: char, out: &mut String) {
        if self.in_block {
            out.push(character);
            return;
        }
        match self.link.take() {
            Some(mut held) => {
                held.push(character);
                match MarkdownLink::read(&held) {
                    MarkdownLink::Open if held.len() <= MAX_LINK => self.link = Some(held),
                    MarkdownLink::Whole { words, target } => {
                        words.chars().for_each(|character| self.letter(character, out));
                        if !target.starts_with(SANDBOX) {
                            format!(" ({target})").chars().for_each(|character| self.letter(character, out));
                        }
                    }
                    MarkdownLink::Open | MarkdownLink::None => {
                        held.pop();
                        held.chars().for_each(|character| self.letter(character, out));
                        // It may begin another mark.
                        self.inline(character, out);
                    }
                }
            }
            None if character == '[' && !self.code => self.link = Some(character.to_string()),
            None => self.letter(character, out),
        }
    }

    /// Shows a character that is in no link.
    fn letter(&mut self, character: char, out: &mut String) {
        let before = std::mem::replace(&mut self.before, character);
        if let Some((mark, before_mark)) = self.mark.take() {
            if mark == character && !self.code {
                self.bold = !self.bold;
                self.paint();
                return;
            }
            // Emphasis begins before a word and ends after one; `2 * 3` and `a_b` have none.
            let begins = !self.italic && !before_mark.is_alphanumeric() && !character.is_whitespace();
            let ends = self.italic && !before_mark.is_whitespace() && !character.is_alphanumeric();
            if begins || ends {
                self.italic = !self.italic;
                self.paint();
            } else {
                self.wrap.push(mark, out);
            }
        }
        match character {
            '`' => {
                self.code = !self.code;
                self.paint();
            }
            '*' | '_' if !self.code => self.mark = Some((character, before)),
            _ => self.wrap.push(character, out),
        }
    }

    /// Sets the paint anew.
    fn paint(&mut self) {
        self.wrap.paint(PLAIN);
        for (is_on, paint) in [(self.bold || self.heading, BOLD), (self.italic, ITALIC), (self.code, CODE)] {
            if is_on {
                self.wrap.paint(paint);
            }
        }
    }
}

/// A text that begins with a bracket, as a link.
enum MarkdownLink<'t> {
    /// It may become one.
    Open,
    /// It is one.
    Whole { words: &'t str, target: &'t str },
    /// It is none.
    None,
}

impl<'t> MarkdownLink<'t> {
    fn read(text: &'t str) -> Self {
        let inner = &text[1..];
        let Some((words, rest)) = inner.split_once(']') else {
            return if inner.contains('[') { Self::None } else { Self::Open };
        };
        match (rest.strip_prefix('('), rest.is_empty()) {
            (_, true) => Self::Open,
            (Some(target), _) if target.contains(char::is_whitespace) || words.is_empty() => Self::None,
            (Some(target), _) => match target.strip_suffix(')') {
                Some(target) => Self::Whole { words, target },
                None => Self::Open,
            },
            (None, _) => Self::None,
        }
    }
}

/// Returns true if the beginning of a line may still become a mark.
fn is_open(text: &str) -> bool {
    let all = |mark: char| text.chars().all(|character| character == mark);
    let after = text.trim_start_matches(|character: char| character.is_ascii_digit());
    let is_number = (1..=MAX_DIGITS).contains(&(text.len() - after.len())) && matches!(after, "" | ".");
    all('#') && text.len() <= 6 || all('`') && text.len() < 3 || all('-') || matches!(text, "*" | "+") || is_number
}

/// Returns true if a line is a rule.
fn is_rule(text: &str) -> bool {
    (3..=MAX_HEAD).contains(&text.len()) && text.chars().all(|character| character == '-')
}

/// The length of an item's number with its space; 0 if there is none.
fn numbered(text: &str) -> usize {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let is_number = (1..=MAX_DIGITS).contains(&digits) && text[digits..].starts_with(". ");
    if is_number { digits + 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paint as words.
    fn readable(text: &str) -> String {
        [(BOLD, "<b>"), (ITALIC, "<i>"), (FAINT, "<f>"), (CODE, "<c>"), (PLAIN, "</>")]
            .iter()
            .fold(text.to_owned(), |text, (paint, word)| text.replace(paint, word))
    }

    fn shown(text: &str, width: usize) -> String {
        let mut markdown = Markdown::new(width);
        readable(&(markdown.push(text) + &markdown.flush()))
    }

    #[test]
    fn marks_are_painted_however_the_text_is_cut() {
        for (text, expected) in [
            ("plain\n", "plain\n"),
            ("# Title\nx", "<b>Title</>\nx"),
            ("#tag and ####### seven\n", "#tag and ####### seven\n"),
            ("a **bold** and *it* _it_ `code*` z\n", "a </><b>bold</> and </><i>it</> </><i>it</> </><c>code*</> z\n"),
            ("2 * 3 * 4, a_b_c, x**2\n", "2 * 3 * 4, a_b_c, x</><b>2</>\n"),
            ("**open\nnext\n", "</><b>open</>\nnext\n"),
            ("- a\n  * b\n1. c\n-no\n", "• a\n  • b\n1. c\n-no\n"),
            ("> quoted **b**\n", "> quoted </><b>b</>\n"),
            ("```python\nx = **y\n# no title\n```\nend\n", "<f>python</>\n<c>x = **y</>\n<c># no title</>\nend\n"),
            ("## A `b`\n", "<b>A </><b><c>b</><b></>\n"),
            ("ends in *", "ends in *"),
            ("see [the *table*](sandbox:/mnt/data/a.csv).\n", "see the </><i>table</>.\n"),
            ("- [a](https://b.c/d) e\n", "• a (https://b.c/d) e\n"),
            ("- [ ] [x]: a[0] [b [c](sandbox:d) [y](z w) [](e) [q\n", "• [ ] [x]: a[0] [b c [y](z w) [](e) [q\n"),
            ("`[a](b)` [ends", "</><c>[a](b)</> [ends"),
            ("all *of it*\nno *more *\n", "all </><i>of it</>\nno </><i>more *</>\n"),
            ("10. a\n2026. b\n3.5 c\n12", "10. a\n2026. b\n3.5 c\n12"),
            ("-", "-"),
            ("--\n--x\n", "--\n--x\n"),
            ("", ""),
        ] {
            assert_eq!(shown(text, 80), expected, "{text:?}");
            for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                let mut markdown = Markdown::new(80);
                let (first, second) = text.split_at(cut);
                let cut = markdown.push(first) + &markdown.push(second) + &markdown.flush();
                assert_eq!(readable(&cut), expected, "{first:?} {second:?}");
            }
        }
    }

    #[test]
    fn a_line_that_is_too_long_for_a_row_is_text() {
        let mut markdown = Markdown::new(80);
        let row = format!("| {}| b |\n", "a ".repeat(MAX_WHOLE));
        let shown = markdown.push(&row);
        assert!(shown.len() > MAX_WHOLE, "{} bytes were held back", row.len() - shown.len());
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(shown("one **two** three\n", 9), "one </><b>two</>\nthree\n");
        assert_eq!(shown("- one two three\nx\n", 8), "• one\n  two\n  three\nx\n");
        assert_eq!(shown("a verylongword b", 6), "a\nverylongword\nb");
        assert_eq!(shown("1. one two three\nx\n", 7), "1. one\n   two\n   three\nx\n");
        assert_eq!(shown("> one two\nx y\n", 6), "> one\n> two\nx y\n");
        assert_eq!(shown("a\n---\nb\n", 4), "a\n<f>────</>\nb\n");
        assert_eq!(shown("```\na long line of code\n```\n", 6), "<c>a long line of code</>\n");
    }

    #[test]
    fn a_table_has_columns_and_ends_with_its_last_row() {
        let table = "| a | wide |\n|--:|:--|\n| 10 | b |\n| 2 | **c** |\nend\n";
        assert_eq!(shown(table, 80), " a  wide\n──  ────\n10  b\n 2  c\nend\n");
        assert_eq!(shown("| no table\nx\n", 80), "| no table\nx\n");
    }
}
