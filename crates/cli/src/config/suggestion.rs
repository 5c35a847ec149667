//! The word that was probably meant.

/// The word of `known` that is most similar to the written one, if any is similar enough.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_lowercase();
    known
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(&written, &word.to_lowercase()), word))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1))
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognized_and_other_words_are_not() {
        let known = ["memory", "timeout", "idle"];
        assert_eq!(nearest("memroy", known), Some("memory"));
        assert_eq!(nearest("Timeout", known), Some("timeout"));
        assert_eq!(nearest("idel", known), Some("idle"));
        assert_eq!(nearest("colour", known), None);
    }
}
