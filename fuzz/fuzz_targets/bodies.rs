#![no_main]

use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(request) = aludel_server::fuzzing::JsonBody::read(bytes) else { return };
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    request.send();
    let taken = MEMORY.peak_usage().saturating_sub(before);
    assert!(taken <= request.counted(), "{taken} bytes were taken, and {} counted", request.counted());
});
