//! Names of files that clients send.

use crate::Error;

/// Bytes of a whole path.
const MAX_PATH: usize = 512;
/// Bytes of one part of a path, the limit of file systems.
pub(super) const MAX_PART: usize = 255;
/// Directories within each other.
const MAX_PARTS: usize = 16;

/// Checks that a name is a plain relative path, which cannot leave a directory or mislead its reader.
pub fn check_name(name: &str) -> Result<(), Error> {
    let reason = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.len() > MAX_PATH {
        format!("it has {} bytes, and {MAX_PATH} are allowed", name.len())
    } else if name.chars().any(is_unseen) {
        "it holds control characters".to_owned()
    } else if name.contains('\\') {
        "it holds a backslash".to_owned()
    } else if name.starts_with('/') {
        "it is an absolute path".to_owned()
    } else if name.split('/').count() > MAX_PARTS {
        format!("it has more than {MAX_PARTS} parts")
    } else {
        match name.split('/').find(|part| matches!(*part, "" | "." | ".." | "__pycache__") || part.len() > MAX_PART) {
            None => return Ok(()),
            Some("") => "a part of it is empty".to_owned(),
            Some(part @ ("." | ".." | "__pycache__")) => format!("'{part}' is not allowed in it"),
            Some(part) => format!("a part of it has {} bytes, and {MAX_PART} are allowed", part.len()),
        }
    };
    Err(Error::InvalidName { shown: shortened(name), reason })
}

/// Returns true for control characters, and those that change the direction of the text around them.
fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A name as it can stand in a message.
pub(super) fn shortened(name: &str) -> String {
    name.chars().take(80).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_pass_and_hostile_ones_do_not() {
        for name in ["data.csv", "sub/dir/a b.txt", "Übersicht.xlsx", ".hidden", "..a", "表.csv"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "a".repeat(256);
        let longer = "a/".repeat(300) + "a";
        let deep = "a/".repeat(16) + "a";
        for (name, words) in [
            ("", "empty"),
            ("../../etc/passwd", "'..'"),
            ("a/../b", "'..'"),
            ("./a", "'.'"),
            ("/etc/passwd", "absolute"),
            ("a//b", "empty"),
            ("a/", "empty"),
            ("a\0b", "control"),
            ("a\nb", "control"),
            ("\u{1b}[2J", "control"),
            ("gpj.\u{202e}exe", "control"),
            ("C:\\x", "backslash"),
            ("__pycache__/x.pyc", "__pycache__"),
            (&long, "256 bytes"),
            (&longer, "bytes"),
            (&deep, "parts"),
        ] {
            let error = check_name(name).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\u{1b}'), "{name:?}: {error}");
        }
    }
}
