#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| aludel_rules::fuzzing::rules(bytes));
