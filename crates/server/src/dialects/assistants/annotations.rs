//! Files that a text names.

use aludel_engine::sessions::{LINK, path_at};
use aludel_wire::assistants::{Annotation, FilePath};

/// A file that a text names.
pub(super) struct LinkedFile {
    /// Its path.
    pub(super) path: String,
    /// Its id in the Files API.
    pub(super) file_id: String,
}

/// The places in a text that name these files, in order.
pub(super) fn annotations(value: &str, linked: &[LinkedFile]) -> Vec<Annotation> {
    let mut found = Vec::new();
    for (byte, _) in value.match_indices(LINK) {
        let at = byte + LINK.len();
        for LinkedFile { path, file_id } in linked {
            let end = value.get(at..).and_then(|rest| path_at(rest, path)).map(|length| at + length);
            let Some((words, rest)) = end.and_then(|end| Some((value.get(byte..end)?, value.get(end..)?))) else {
                continue;
            };
            if !goes_on(rest) {
                found.push((byte, words, file_id));
            }
        }
    }
    // Counted incrementally, from one link to the next.
    let (mut counted, mut start_index) = (0, 0);
    let annotation = |(byte, words, file_id): (usize, &str, &String)| {
        start_index += value.get(counted..byte).unwrap_or_default().chars().count();
        counted = byte;
        Annotation::FilePath {
            index: None,
            text: words.to_owned(),
            start_index,
            end_index: start_index + words.chars().count(),
            file_path: FilePath { file_id: file_id.clone() },
        }
    };
    found.into_iter().map(annotation).collect()
}

/// The same as they stand in a stream.
pub(super) fn numbered(annotations: &[Annotation]) -> Vec<Annotation> {
    let numbered = annotations.iter().cloned().enumerate().map(|(number, annotation)| {
        let Annotation::FilePath { text, start_index, end_index, file_path, .. } = annotation;
        Annotation::FilePath { index: Some(number), text, start_index, end_index, file_path }
    });
    numbered.collect()
}

/// Returns true if the name of a file continues with this text. A dot may be the end of a sentence.
fn goes_on(rest: &str) -> bool {
    let is_of_a_name = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '/');
    rest.strip_prefix('.').unwrap_or(rest).starts_with(is_of_a_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_by_its_whole_path_in_characters() {
        let linked = |path: &str| LinkedFile { path: path.into(), file_id: path.into() };
        let text = "Für dich: [a](sandbox:/mnt/data/a), sandbox:/mnt/data/a_b und sandbox:/mnt/data/a.csv, sandbox:/mnt/data/a.";
        let found = annotations(text, &[linked("/mnt/data/a_b"), linked("/mnt/data/a")]);
        let letters: Vec<char> = text.chars().collect();
        let mut named = Vec::new();
        for Annotation::FilePath { index, text, start_index, end_index, file_path } in found {
            assert_eq!(letters[start_index..end_index].iter().collect::<String>(), text);
            assert_eq!((index, format!("sandbox:{}", file_path.file_id)), (None, text));
            named.push(file_path.file_id);
        }
        assert_eq!(named, ["/mnt/data/a", "/mnt/data/a_b", "/mnt/data/a"]);

        let text = "[it](sandbox:/mnt/data/my%20%C3%BC.csv)";
        let [Annotation::FilePath { text, start_index, end_index, .. }] =
            &annotations(text, &[linked("/mnt/data/my ü.csv")])[..]
        else {
            panic!("no link");
        };
        assert_eq!((text.as_str(), *start_index, *end_index), ("sandbox:/mnt/data/my%20%C3%BC.csv", 5, 38));
    }
}
