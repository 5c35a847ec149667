//! IPython's transformation of a program before Python reads it.

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
    let line = code.trim_matches(|one: char| one.is_whitespace() || one.is_control());
    let end = line.find(|one: char| !(one.is_alphanumeric() || "_.*".contains(one))).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let is_used =
        name == "edit" || name == "ed" || !rest.trim().is_empty() && !rest.trim_start().starts_with(['=', ',']);
    (is_used && !line.contains('\n') && LISTS.automatic_magics.contains(name)).then_some(line)
}
