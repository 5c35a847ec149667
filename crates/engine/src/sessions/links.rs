//! Links to files in a model's text: `sandbox:/mnt/data/…`.

/// The scheme of such links.
pub const LINK: &str = "sandbox:";

/// Bytes at the beginning of a text that are this path, as it is or with characters as `%XX`; `None` if they are not.
pub fn path_at(text: &str, path: &str) -> Option<usize> {
    let text = text.as_bytes();
    let mut end = 0;
    for byte in path.bytes() {
        let next = text.get(end)?;
        if *next == byte {
            end += 1;
        } else if *next == b'%' && code_at(text.get(end + 1..end + 3)?) == Some(byte) {
            end += 3;
        } else {
            return None;
        }
    }
    Some(end)
}

/// Returns true if a text has a link to this path.
pub(crate) fn has_link(text: &str, path: &str) -> bool {
    text.match_indices(LINK).any(|(at, _)| path_at(text.get(at + LINK.len()..).unwrap_or_default(), path).is_some())
}

fn code_at(digits: &[u8]) -> Option<u8> {
    let digits = str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_as_it_is_and_encoded() {
        for (text, path, end) in [
            ("/mnt/data/a.csv) and", "/mnt/data/a.csv", Some(15)),
            ("/mnt/data/my%20file.csv)", "/mnt/data/my file.csv", Some(23)),
            ("/mnt/data/%C3%bc x", "/mnt/data/ü x", Some(18)),
            ("/mnt/data/ü%20x", "/mnt/data/ü x", Some(16)),
            ("/mnt/data/100%.csv", "/mnt/data/100%.csv", Some(18)),
            ("/mnt/data/a%2", "/mnt/data/a ", None),
            ("/mnt/data/a%+20", "/mnt/data/a ", None),
            ("/mnt/data/a%é", "/mnt/data/a ", None),
            ("/mnt/data/a", "/mnt/data/a.csv", None),
        ] {
            assert_eq!(path_at(text, path), end, "{text}");
        }
        assert!(has_link("See [x](sandbox:/mnt/data/b) or [it](sandbox:/mnt/data/a%20b).", "/mnt/data/a b"));
        assert!(!has_link("/mnt/data/a", "/mnt/data/a"));
    }
}
