//! Files and addresses of the network that a program names to what opens them.

use crate::act::Act;
use crate::dotted::last;
use crate::lists::LISTS;
use crate::meaning::Meaning;
use crate::reader::Reader;

impl Reader<'_> {
    /// Notes files outside and addresses that a function is given.
    pub(crate) fn outside(&mut self, function: &Meaning, argument: &Meaning) {
        let Some(name) = function.origin() else { return };
        let is_of = |list: &[String]| list.iter().any(|beginning| name.starts_with(beginning));
        let is_method = matches!(function, Meaning::Result(_));
        let opens = |beginning: &String| last(name).starts_with(beginning);
        if is_of(&LISTS.text_readers) || is_method && !LISTS.opening_methods.iter().any(opens) {
            return;
        }
        let (is_opener, is_fetcher) = (is_of(&LISTS.file_openers), is_of(&LISTS.address_fetchers));
        for text in argument.texts() {
            if is_outside(text, is_opener) || is_fetcher && text.starts_with("file:") {
                self.note(Act::Hostfile(text.clone()));
            }
            if is_fetcher && is_address(text) {
                self.note(Act::Address(text.clone()));
            }
        }
    }
}

/// Returns true if a text is an address, and none of a file.
fn is_address(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    !scheme.is_empty() && scheme != "file" && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
}

/// Returns true if a text names a file outside. A function that opens nothing may be given texts that only look like one.
fn is_outside(text: &str, is_opener: bool) -> bool {
    let is_in = |own: &String| text.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_absolute = text.strip_prefix('/').is_some_and(|path| {
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        (LISTS.system_directories.contains(first) || is_opener) && !LISTS.own_paths.iter().any(is_in)
    });
    let is_home = text == "~" || text.starts_with("~/") || text.starts_with("~root");
    let is_above = text.split('/').any(|part| part == "..");
    is_absolute || (is_home && is_opener) || (is_above && (is_opener || text.starts_with('/')))
}
