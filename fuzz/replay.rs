//! Replays what a fuzzer kept, in the unit tests of the crate that has its target.

use std::fs;
use std::path::Path;

/// Runs every kept input of a target through it.
pub(super) fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display())) {
        let path = entry.unwrap().path();
        // The last one that is told is the one that fails.
        println!("{}", path.display());
        run(&fs::read(path).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", corpus.display());
}
