#![no_main]

use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Measurements of one body. What the server does beside it, such as the end of the request before, is in some of them.
const TRIES: usize = 3;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(request) = aludel_server::fuzzing::JsonBody::read(bytes) else { return };
    let mut taken = usize::MAX;
    for _ in 0..TRIES {
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        request.send();
        taken = taken.min(MEMORY.peak_usage().saturating_sub(before));
        if taken <= request.counted() {
            return;
        }
    }
    panic!("{taken} bytes were taken, and {} counted", request.counted());
});
