//! The memory of the process itself; alone in its file, since it is of the whole process.
#![cfg(target_env = "gnu")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

const MB: usize = 1 << 20;

/// Bytes of memory that the process has, in MB.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() / MB
}

#[test]
fn freed_memory_is_given_back_whatever_is_kept_beside_it() {
    aludel_jail::give_back_large_memory();
    // Freeing large memory has glibc keep as much from then on, unless it is told otherwise.
    drop(vec![1_u8; 16 * MB]);
    let before = resident();
    let mut kept = Vec::new();
    let large: Vec<Vec<u8>> = (0..16)
        .map(|_| {
            let large = vec![1_u8; 8 * MB];
            kept.push(vec![1_u8; 100]);
            large
        })
        .collect();
    assert!(resident() > before + 100);
    drop(large);
    let after = resident();
    assert!(after < before + 20, "{before} MB became {after} MB");
    assert_eq!(kept.len(), 16);

    let small: Vec<Vec<u8>> = (0..64 << 10).map(|_| vec![1_u8; 2 << 10]).collect();
    let above = vec![1_u8; 2 << 10];
    drop(small);
    assert!(resident() > after + 100);
    aludel_jail::give_back_freed_memory();
    let after = resident();
    assert!(after < before + 20, "{before} MB became {after} MB");
    assert_eq!(above.len(), 2 << 10);
}
