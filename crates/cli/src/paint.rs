//! Colour, on terminals only, and not where NO_COLOR is set (<https://no-color.org>).

use std::io::IsTerminal;
use std::sync::OnceLock;

fn painted(code: &str, text: &str) -> String {
    static ON: OnceLock<bool> = OnceLock::new();
    let on = *ON.get_or_init(|| {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        std::io::stdout().is_terminal() && std::io::stderr().is_terminal() && !set("NO_COLOR") && !dumb
    });
    if on { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// A failure.
pub(crate) fn error(text: &str) -> String {
    painted("1;31", text)
}

/// Something to look at.
pub(crate) fn warning(text: &str) -> String {
    painted("33", text)
}

/// Something that is as it should be.
pub(crate) fn good(text: &str) -> String {
    painted("32", text)
}

/// A heading or a name.
pub(crate) fn strong(text: &str) -> String {
    painted("1", text)
}

/// What need not be read.
pub(crate) fn faint(text: &str) -> String {
    painted("2", text)
}

/// Code.
pub(crate) fn code(text: &str) -> String {
    painted("36", text)
}
