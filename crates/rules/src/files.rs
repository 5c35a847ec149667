//! Files and addresses of the network that a program names to what opens them.

use crate::act::Act;
use crate::dotted::last;
use crate::lists::LISTS;
use crate::meaning::{Meaning, Meanings};
use crate::reader::Reader;

impl Reader<'_> {
    /// Notes files outside and addresses that a function is given.
    pub(crate) fn files_and_addresses(&mut self, callee: &Meanings, argument: &Meanings, at: usize) {
        let openers: Vec<&Meaning> = callee.iter().filter(|function| may_open(function)).collect();
        let is_of = |list: &[String]| openers.iter().any(|function| begins(function, list));
        let (is_opener, is_fetcher) = (is_of(&LISTS.file_openers), is_of(&LISTS.address_fetchers));
        let is_known = openers.iter().any(|function| !matches!(function, Meaning::Member { of: None, .. }));
        for meaning in argument {
            let (Meaning::Text(text) | Meaning::Beginning(text)) = meaning else { continue };
            if is_known && is_outside(text, is_opener) || is_fetcher && text.starts_with("file:") {
                self.note(at, Act::Hostfile(text.clone()));
            }
            if is_fetcher && is_address(text) {
                self.note(at, Act::Address(text.clone()));
            }
        }
    }
}

/// Returns true if a call may open its argument: of functions of modules, and of methods of such a name.
fn may_open(function: &Meaning) -> bool {
    let is_opening = match function {
        Meaning::Member { of: Some(_), path } => {
            LISTS.opening_methods.iter().any(|beginning| last(path).starts_with(beginning))
        }
        _ => function.is_named(),
    };
    is_opening && !begins(function, &LISTS.text_readers)
}

/// Returns true if the name of a function begins as one of a list.
fn begins(function: &Meaning, list: &[String]) -> bool {
    function.origin().is_some_and(|name| list.iter().any(|beginning| name.starts_with(beginning)))
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
