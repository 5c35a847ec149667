//! Every setting: its section, name and default. One list, from which parsing, `aludel config` and error messages are made.

/// A setting outside of `[[model]]`.
pub(crate) struct Setting {
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    /// The value when nobody says otherwise; empty when it is worked out at start.
    pub(crate) default: &'static str,
}

const fn setting(section: &'static str, name: &'static str, default: &'static str) -> Setting {
    Setting { section, name, default }
}

/// All of them.
pub(crate) const SETTINGS: &[Setting] = &[
    setting("server", "data", ""),
    setting("server", "listen", "127.0.0.1:8080"),
    setting("sandbox", "backend", "auto"),
    setting("sandbox", "require", "default"),
    setting("sandbox", "memory", "1g"),
    setting("sandbox", "cpus", "2"),
    setting("sandbox", "processes", "128"),
    setting("sandbox", "timeout", "60s"),
    setting("sandbox", "disk", ""),
    setting("sandbox", "output", "8m"),
    setting("sandbox", "idle", "20m"),
    setting("sandbox", "pool", "4"),
];

/// The keys of a `[[model]]` section.
pub(crate) const MODEL_KEYS: &[&str] =
    &["name", "url", "api", "key", "upstream_name", "vision", "function_calling", "idle_timeout"];

impl Setting {
    /// `sandbox.memory`
    pub(crate) fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// `ALUDEL_SANDBOX_MEMORY`
    pub(crate) fn variable(&self) -> String {
        format!("ALUDEL_{}_{}", self.section.to_uppercase(), self.name.to_uppercase())
    }
}

/// The known name that is nearest to a mistyped one, if any is near.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_when_it_is_near() {
        assert_eq!(nearest("memroy", ["memory", "timeout"]), Some("memory"));
        assert_eq!(nearest("time-out", ["memory", "timeout"]), Some("timeout"));
        assert_eq!(nearest("colour", ["memory", "timeout"]), None);
    }
}
