//! Colour, only on terminals, and not if NO_COLOR is set (<https://no-color.org>).

use std::io::IsTerminal;
use std::path::Path;
use std::sync::OnceLock;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// Bytes of a path that a link encodes.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns true if both streams are a terminal and colour is not switched off.
pub(crate) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        std::io::stdout().is_terminal() && std::io::stderr().is_terminal() && !set("NO_COLOR") && !dumb
    })
}

fn painted(code: &str, text: &str) -> String {
    if is_on() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
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

/// Paints text that need not be read.
pub(crate) fn faint(text: &str) -> String {
    painted("2", text)
}

/// Code.
pub(crate) fn code(text: &str) -> String {
    painted("36", text)
}

/// The path of a file, as a link on terminals that support links.
pub(crate) fn link(path: &Path) -> String {
    let shown = path.display().to_string();
    let Some(target) = std::path::absolute(path).ok().filter(|_| is_on()) else { return shown };
    let url = percent_encode(target.as_os_str().as_encoded_bytes(), ENCODED);
    format!("\u{1b}]8;;file://{url}\u{1b}\\{shown}\u{1b}]8;;\u{1b}\\")
}
