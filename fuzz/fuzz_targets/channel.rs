//! Frames as a hostile program may write them to the kernel channel: an error or a frame, never a panic, and nothing larger than it was.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(size) = aludel_sandbox::fuzzing::frame(bytes) {
        // Invalid pieces are escaped or replaced, which is bounded too.
        assert!(size <= bytes.len() * 4 + 64, "{size} of {}", bytes.len());
    }
});
