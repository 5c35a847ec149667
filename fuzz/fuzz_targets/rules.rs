#![no_main]

use std::panic::{set_hook, take_hook};

// A program on which the parser of Python panics is one that cannot be read: that thread ends, and no other.
libfuzzer_sys::fuzz_target!(
    init: {
        let abort = take_hook();
        set_hook(Box::new(move |panic| {
            if !panic.location().is_some_and(|at| at.file().contains("ruff_python_parser")) {
                abort(panic);
            }
        }));
    },
    |bytes: &[u8]| aludel_rules::fuzzing::rules(bytes)
);
