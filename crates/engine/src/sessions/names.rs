//! Names of files that clients send.

use std::collections::HashSet;

use crate::Error;

/// Bytes of a whole path.
const MAX_PATH: usize = 512;
/// Bytes of one part of a path, the limit of file systems.
const MAX_PART: usize = 255;
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

/// Checks that no file is where another needs a directory.
pub(super) fn check_directories<'a>(path: &str, others: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    let is_within = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    for other in others {
        let reason = if is_within(path, other) {
            format!("`{}` is a file and no directory", shortened(other))
        } else if is_within(other, path) {
            "it is a directory".to_owned()
        } else {
            continue;
        };
        return Err(Error::FileRefused { path: shortened(path), reason });
    }
    Ok(())
}

/// The name itself or, if it is taken, the name with a number before its extension.
pub fn free_name(name: &str, taken: &HashSet<String>) -> String {
    names_like(name).find(|name| !taken.contains(name)).unwrap_or_default()
}

/// A name, and the same with a number before its ending, from 2. The number takes the place of what would be too long.
pub(super) fn names_like(name: &str) -> impl Iterator<Item = String> {
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = name[start..].rfind('.').filter(|dot| *dot > 0).map_or(name.len(), |dot| start + dot);
    let (stem, ending) = name.split_at(dot);
    let numbered = (2..).map(move |number| {
        let number = format!("-{number}");
        let room = MAX_PART.saturating_sub(number.len() + ending.len());
        let length = stem.floor_char_boundary(stem.len().min(start + room));
        format!("{}{number}{ending}", stem.get(..length).unwrap_or(stem))
    });
    std::iter::once(name.to_owned()).chain(numbered)
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

    #[test]
    fn a_second_file_of_a_name_gets_a_number() {
        let taken: HashSet<String> = ["a.csv", "a-2.csv", "d.d/x", "archive.tar.gz", ".env"].map(str::to_owned).into();
        for (name, free) in [
            ("b.csv", "b.csv"),
            ("a.csv", "a-3.csv"),
            ("d.d/x", "d.d/x-2"),
            ("archive.tar.gz", "archive.tar-2.gz"),
            (".env", ".env-2"),
        ] {
            assert_eq!(free_name(name, &taken), free);
        }
        let long = format!("d/{}.csv", "ü".repeat(125));
        let second = free_name(&long, &HashSet::from([long.clone()]));
        assert_eq!(second, format!("d/{}-2.csv", "ü".repeat(124)));
    }
}
