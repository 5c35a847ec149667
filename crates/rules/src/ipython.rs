//! IPython's transformation of a program before Python reads it.

use ruff_python_ast::IpyEscapeKind;

use crate::lists::LISTS;

/// The program that a magic or a question runs, which is empty if it does nothing that rules speak of. None if it may do anything.
pub(crate) fn program(kind: IpyEscapeKind, line: &str) -> Option<&str> {
    match kind {
        // Anything else in it is evaluated.
        IpyEscapeKind::Help | IpyEscapeKind::Help2 => {
            line.chars().all(|one| one.is_ascii_alphanumeric() || " ._-*%".contains(one)).then_some("")
        }
        IpyEscapeKind::Magic | IpyEscapeKind::Magic2 if LISTS.harmless_magics.contains(line.trim()) => Some(""),
        IpyEscapeKind::Magic | IpyEscapeKind::Magic2 => {
            let (name, mut program) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
            // Options and their numbers: `-n 10 -r1 f()`.
            let is_option = |word: &str| word.starts_with(|one: char| one == '-' || one.is_ascii_digit());
            let is_plain = |word: &str| word.chars().skip(1).all(|one| one.is_ascii_alphanumeric());
            while let Some((_, rest)) = program.split_once(' ').filter(|(word, _)| is_option(word) && is_plain(word)) {
                program = rest;
            }
            LISTS.timing_magics.contains(name).then_some(program)
        }
        _ => None,
    }
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
