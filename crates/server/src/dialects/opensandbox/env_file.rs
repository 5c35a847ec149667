//! Variables that clients keep in a file of the sandbox, for every command and session after it.

use std::collections::BTreeMap;

use aludel_engine::sandboxes::ClientSandbox;
use aludel_engine::sandboxes::files::FilesError;
use aludel_engine::{Error, SandboxError};

use crate::client_sandboxes::refusal::{refused, refused_file};
use crate::error::ApiError;

/// The variable that names the file. `commands.set_env` of the SDKs appends to the file it names.
const VARIABLE: &str = "EXECD_ENVS";
/// The file, unless the sandbox was made with another.
const PATH: &str = "/tmp/.execd_envs";
/// Bytes of the file that are read.
const MAX_BYTES: usize = 64 << 10;
/// Bytes of all values together. Later entries are left out; a command takes less.
const MAX_EXPANDED: usize = 2 << 20;

/// The variables of the file, and the one that names it.
pub(super) async fn read(sandbox: &ClientSandbox) -> Result<BTreeMap<String, String>, ApiError> {
    let known = &sandbox.spec().environment;
    let path = known.get(VARIABLE).filter(|path| path.starts_with('/')).map_or(PATH, String::as_str);
    let files = match sandbox.files().await {
        Ok(files) => files,
        // Then no client has kept any.
        Err(Error::Sandbox(SandboxError::NotSupported(_))) => return Ok(BTreeMap::new()),
        Err(error) => return Err(refused(error)),
    };
    let mut text = Vec::new();
    match files.open(path, 0).await {
        Ok(mut file) => {
            while text.len() < MAX_BYTES {
                let chunk = file.read().await.map_err(refused_file)?;
                if chunk.is_empty() {
                    break;
                }
                text.extend_from_slice(&chunk);
            }
            text.truncate(MAX_BYTES);
        }
        // None was kept so far, or it is no file.
        Err(FilesError::Refused { .. }) => {}
        Err(error) => return Err(refused_file(error)),
    }
    let mut variables = parse(&String::from_utf8_lossy(&text).replace('\0', ""), known);
    variables.insert(VARIABLE.to_owned(), path.to_owned());
    Ok(variables)
}

/// The entries of a file: a line `NAME=value` each. A value without quotes is trimmed; one in double quotes knows the escapes `\n`, `\r`,
/// `\t`, `\\` and `\"`; in both, `$NAME` and `${NAME}` stand for variables of the sandbox. A value in single quotes is taken as it is, over
/// several lines if need be. Empty lines, comments after `#` and malformed entries are left out.
fn parse(text: &str, known: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    let (mut rest, mut bytes) = (text, 0);
    while !rest.is_empty() && bytes < MAX_EXPANDED {
        let (found, below) = entry(rest, known);
        bytes += found.as_ref().map_or(0, |(_, value)| value.len());
        variables.extend(found);
        rest = below;
    }
    variables
}

/// The entry at the beginning of a text, if there is one, and the text below it.
fn entry<'a>(text: &'a str, known: &BTreeMap<String, String>) -> (Option<(String, String)>, &'a str) {
    let (line, below) = first_line(text);
    // In its line, since a program may write a file of many lines without one.
    let name = line.split_once('=').map(|(name, _)| name).filter(|name| is_name(name.trim()));
    let Some((name, value)) = name.and_then(|name| Some((name, text.get(name.len() + 1..)?))) else {
        return (None, below);
    };
    let named = |value: String| (name.trim().to_owned(), value);
    if let Some(quoted) = value.trim_start_matches([' ', '\t']).strip_prefix('\'') {
        let Some((literal, behind)) = quoted.split_once('\'') else { return (None, below) };
        let (behind, below) = first_line(behind);
        return (behind.trim().is_empty().then(|| named(literal.to_owned())), below);
    }
    let value = first_line(value).0.trim();
    let value = value.strip_prefix('"').map_or_else(|| Some(value.to_owned()), unescaped);
    (value.and_then(|value| expanded(&value, known)).map(named), below)
}

fn first_line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}

fn is_name(name: &str) -> bool {
    let is_letter = |character: char| character.is_ascii_alphabetic() || character == '_';
    name.starts_with(is_letter) && name.chars().all(|character| is_letter(character) || character.is_ascii_digit())
}

/// The text up to the closing quote, without escapes; `None` unless the quote is the last character.
fn unescaped(quoted: &str) -> Option<String> {
    let mut value = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => return characters.next().is_none().then_some(value),
            '\\' => match characters.next()? {
                'n' => value.push('\n'),
                'r' => value.push('\r'),
                't' => value.push('\t'),
                same @ ('\\' | '"') => value.push(same),
                other => value.extend(['\\', other]),
            },
            character => value.push(character),
        }
    }
}

/// A value with the sandbox's variables in place of their names; `None` if it gets too long. An unknown variable is empty.
fn expanded(value: &str, known: &BTreeMap<String, String>) -> Option<String> {
    let mut pieces = value.split('$');
    let mut all = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let braced = piece.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let (name, after) = braced.unwrap_or_else(|| {
            let end = piece.find(|next: char| !next.is_ascii_alphanumeric() && next != '_').unwrap_or(piece.len());
            piece.split_at(end)
        });
        if all.len() > MAX_BYTES {
            return None;
        }
        if is_name(name) {
            all.push_str(known.get(name).map_or("", String::as_str));
            all.push_str(after);
        } else {
            all.push('$');
            all.push_str(piece);
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_the_sdks_write_them() {
        let known = BTreeMap::from([("BASE".to_owned(), "/opt".to_owned())]);
        let text = concat!(
            "# a comment\n\nPLAIN = a b \nLITERAL='$BASE \"x\"\nsecond line'\n",
            "QUOTED=\"it's\\t$BASE/\\\"${BASE}\\\"\\n\"\nUNKNOWN=[$NOTHING] $1\nEMPTY=\n",
            "no entry\n1BAD=x\nOPEN=\"x\nTRAILING='x' y\nUNCLOSED='x\nLAST=z",
        );
        let entries: Vec<_> = parse(text, &known).into_iter().collect();
        let expected = [
            ("EMPTY", ""),
            ("LAST", "z"),
            ("LITERAL", "$BASE \"x\"\nsecond line"),
            ("PLAIN", "a b"),
            ("QUOTED", "it's\t/opt/\"/opt\"\n"),
            ("UNKNOWN", "[] $1"),
        ];
        assert_eq!(entries, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_value_that_grows_without_end_is_left_out() {
        let known = BTreeMap::from([("A".to_owned(), "x".repeat(60 << 10))]);
        assert_eq!(expanded("$A", &known).map(|value| value.len()), Some(60 << 10));
        let variables = parse(&format!("B={}\nC=c\n", "$A".repeat(MAX_BYTES / 2)), &known);
        assert_eq!(variables.into_iter().collect::<Vec<_>>(), [("C".to_owned(), "c".to_owned())]);
    }

    #[test]
    fn many_values_that_grow_are_bounded_together() {
        let known = BTreeMap::from([("A".to_owned(), "x".repeat(60 << 10))]);
        let text: String = (0..9000).map(|number| format!("B{number}=$A\n")).collect();
        let bytes: usize = parse(&text, &known).values().map(String::len).sum();
        assert!((MAX_EXPANDED..MAX_EXPANDED + (64 << 10)).contains(&bytes), "{bytes}");
    }

    #[test]
    fn any_text_ends() {
        for text in ["=", "\n=\n'", "A='", "A='\n'", "A=\"\\", "${", "A=${", "A=$", "\u{e4}=$\u{e4}", "A='x'=\n\n\n"] {
            parse(text, &BTreeMap::new());
        }
    }
}
