//! Random names.

/// `N` random bytes as hexadecimal digits. Without randomness from the system, the process id, the clock and a counter make names unique.
pub(crate) fn hex<const N: usize>() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; N];
    if getrandom::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let parts = [now.as_nanos() as u64 ^ u64::from(std::process::id()), count].map(u64::to_le_bytes);
        for (byte, part) in bytes.iter_mut().zip(parts.as_flattened()) {
            *byte = *part;
        }
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
