//! Dotted names: `os.path.join`.

/// Bytes and parts of a dotted name; no longer one is followed.
const MAX_PATH: (usize, usize) = (300, 16);

pub(crate) fn first(name: &str) -> &str {
    name.split_once('.').map_or(name, |(first, _)| first)
}

pub(crate) fn last(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, last)| last)
}

/// A dotted name with one more part, if it is not too long.
pub(crate) fn below(path: &str, name: &str) -> Option<String> {
    let parts = path.split('.').count() + 1;
    (path.len() + name.len() < MAX_PATH.0 && parts <= MAX_PATH.1).then(|| format!("{path}.{name}"))
}

/// Returns a name, then that of what holds it, and so on outwards.
pub(crate) fn outwards(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| Some(name.rsplit_once('.')?.0))
}

/// Returns true if a dotted name fits a pattern: the name itself, one below it, or one that begins like it before a `*`.
pub(crate) fn fits(name: &str, pattern: &str) -> bool {
    if let Some(beginning) = pattern.strip_suffix('*') {
        return name.starts_with(beginning) || Some(name) == beginning.strip_suffix('.');
    }
    name == pattern || name.strip_prefix(pattern).is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_is_below_them() {
        for (name, pattern) in [
            ("os", "os"),
            ("os.path", "os"),
            ("os.execv", "os.exec*"),
            ("shutil.rmtree", "shutil.*"),
            ("shutil", "shutil.*"),
        ] {
            assert!(fits(name, pattern), "{name} {pattern}");
        }
        for (name, pattern) in [("osx", "os"), ("os", "os.path"), ("posix.execv", "os.exec*")] {
            assert!(!fits(name, pattern), "{name} {pattern}");
        }
    }
}
