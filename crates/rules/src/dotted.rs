//! Dotted names: `os.path.join`.

pub(crate) fn first(name: &str) -> &str {
    name.split_once('.').map_or(name, |(first, _)| first)
}

pub(crate) fn last(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, last)| last)
}

/// Returns a name, then that of what holds it, and so on outwards.
pub(crate) fn outwards(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| Some(name.rsplit_once('.')?.0))
}

/// Returns a name without its first parts, one after the other, each also without its underscores: modules hold other modules, as in
/// `shutil.os.system` and `random._os.system`.
pub(crate) fn tails(name: &str) -> impl Iterator<Item = &str> {
    let starts = std::iter::once(0).chain(name.match_indices('.').map(|(at, _)| at + 1));
    starts.filter_map(|at| name.get(at..)).flat_map(|tail| {
        let public = tail.trim_start_matches('_');
        std::iter::once(tail).chain((public.len() < tail.len()).then_some(public))
    })
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
