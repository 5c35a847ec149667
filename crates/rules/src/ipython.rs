//! IPython's transformation of a program before Python reads it.

use ruff_python_ast::{Expr, ModModule, Stmt};
use ruff_text_size::Ranged as _;

use crate::lists::LISTS;

/// Effect of a magic.
pub(crate) enum Magic<'a> {
    /// Nothing that rules speak of.
    Harmless,
    /// Runs a program.
    Program(&'a str),
    /// Anything.
    Open,
}

/// Reads a magic and its arguments.
pub(crate) fn magic(line: &str) -> Magic<'_> {
    let line = line.trim();
    let (name, rest) = first_word(line).unwrap_or((line, ""));
    let rest = rest.trim();
    let is_loaded = rest.is_empty() || LISTS.importing_magics_arguments.contains(rest);
    if LISTS.harmless_magics.contains(name) && is_plain(rest) && (is_loaded || !LISTS.importing_magics.contains(name)) {
        Magic::Harmless
    } else if LISTS.timing_magics.contains(name) {
        Magic::Program(without_options(rest))
    } else {
        Magic::Open
    }
}

/// Returns true if the arguments of a magic or of a question are taken as they stand: others are evaluated.
pub(crate) fn is_plain(arguments: &str) -> bool {
    arguments.chars().all(|one| one.is_ascii_alphanumeric() || " ._-*%".contains(one))
}

fn first_word(text: &str) -> Option<(&str, &str)> {
    text.split_once(char::is_whitespace)
}

/// The program after the options of a magic: `-n 10 -r1 f()`.
fn without_options(mut rest: &str) -> &str {
    while let Some((option, after)) = rest.strip_prefix('-').and_then(first_word)
        && option.bytes().all(|byte| byte.is_ascii_alphanumeric())
    {
        let number =
            first_word(after.trim_start()).filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()));
        rest = number.map_or(after, |(_, after)| after).trim_start();
    }
    rest
}

/// The magic that a program of one line is, though it looks like Python: `ls -a` and `sx +x|id`.
pub(crate) fn automatic(code: &str) -> Option<&str> {
    let mut lines = lines(code).filter(|line| !line.trim().is_empty());
    let (line, None) = (lines.next()?.trim(), lines.next()) else { return None };
    let end = line.find(|one: char| !(one.is_alphanumeric() || "_.*".contains(one))).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let is_used =
        name == "edit" || name == "ed" || !rest.trim().is_empty() && !rest.trim_start().starts_with(['=', ',']);
    (is_used && LISTS.automatic_magics.contains(name)).then_some(line)
}

/// Returns true if IPython would strip prompts from a program's string literals. In docstrings that changes nothing.
pub(crate) fn has_prompts(code: &str, module: &ModModule) -> bool {
    let mut read = None;
    let mut at = 0;
    for line in lines(code) {
        let (start, begins) = (at, line.trim_start());
        at += line.len();
        if [">>>", "In [", "[ins]", "[nav]", "...:"].iter().any(|prompt| begins.starts_with(prompt)) {
            let texts = read.get_or_insert_with(|| only_read(&module.body));
            if !texts.iter().any(|(from, to)| *from < start && start < *to) {
                return true;
            }
        }
    }
    false
}

/// Ranges of the texts that stand for themselves, as docstrings do.
fn only_read(body: &[Stmt]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for statement in body {
        match statement {
            Stmt::Expr(text) if matches!(&*text.value, Expr::StringLiteral(_)) => {
                found.push((text.start().to_usize(), text.end().to_usize()));
            }
            Stmt::FunctionDef(function) => found.extend(only_read(&function.body)),
            Stmt::ClassDef(class) => found.extend(only_read(&class.body)),
            _ => {}
        }
    }
    found
}

/// Lines as Python's `str.splitlines` sees them, with their ends.
fn lines(code: &str) -> impl Iterator<Item = &str> {
    code.split_inclusive(|one: char| {
        matches!(one, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    })
}
