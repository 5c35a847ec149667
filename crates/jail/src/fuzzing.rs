//! The fuzz target `policy` of `fuzz/`, and the replay of its corpus. Not part of any other build.

use std::sync::LazyLock;

use crate::lockdown::Filters;
use crate::message::Profile;
use crate::syscalls::permits;

const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0001;
const UNKNOWN: u32 = 0x0005_0026;
const NOTIFY: u32 = 0x7fc0_0000;
const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
const DONE: u32 = 0x0005_0000;
const FLOCK: u32 = if cfg!(target_arch = "x86_64") { 73 } else { 32 };
const UNLOCKING: [u32; 2] = [8, 12];
const ADD_WATCH: u32 = if cfg!(target_arch = "x86_64") { 254 } else { 27 };
const CLONE3: u64 = 435;
const FLUSHES: [u32; 2] = if cfg!(target_arch = "x86_64") { [74, 75] } else { [82, 83] };

static FILTERS: LazyLock<[Vec<u8>; 5]> = LazyLock::new(|| Filters::compile().expect("the filters compile").0);

/// Runs the compiled seccomp filters on a system call, in an interpreter of its own: the verdict is the list's, and the filter ends.
pub fn policy(data: &[u8]) {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        let end = data.len().min(at * 8 + 8);
        if let Some(part) = data.get(at * 8..end) {
            bytes[..part.len()].copy_from_slice(part);
        }
        u64::from_le_bytes(bytes)
    };
    // Mostly numbers of existing calls, sometimes any number.
    let number = if data.first().is_some_and(|byte| byte % 8 == 0) { word(0) as u32 } else { word(0) as u32 % 512 };
    let arguments = [word(1), word(2), word(3), word(4), word(5), word(6)];
    let mut call = Vec::from(number.to_le_bytes());
    call.extend(ARCHITECTURE.to_le_bytes());
    call.extend([0; 8]);
    arguments.iter().for_each(|argument| call.extend(argument.to_le_bytes()));

    let [silent, reporting, silent_services, reporting_services, observing] = &*FILTERS;
    let is_lock = number == FLOCK && !UNLOCKING.contains(&(arguments[1] as u32));
    let verdict = |profile, refusal| match number {
        _ if u64::from(number) == CLONE3 => UNKNOWN,
        _ if (is_lock || number == ADD_WATCH) && refusal == NOTIFY => NOTIFY,
        _ if FLUSHES.contains(&number) => DONE,
        _ if permits(profile, number.into(), arguments) => ALLOW,
        _ => refusal,
    };
    for (profile, silent, reporting) in
        [(Profile::Data, silent, reporting), (Profile::Services, silent_services, reporting_services)]
    {
        assert_eq!(run(silent, &call), verdict(profile, REFUSE), "{profile:?} {number} {arguments:x?}");
        assert_eq!(run(reporting, &call), verdict(profile, NOTIFY), "{profile:?} {number} {arguments:x?}");
    }
    assert!(matches!(run(observing, &call), ALLOW | NOTIFY));
    // Calls of another architecture are always refused.
    call[4..8].copy_from_slice(&0x4000_0003_u32.to_le_bytes());
    for filter in [silent, reporting, silent_services, reporting_services] {
        assert_eq!(run(filter, &call), UNKNOWN);
    }
}

/// Classic BPF as far as filters of system calls use it.
fn run(program: &[u8], data: &[u8]) -> u32 {
    let instructions: Vec<&[u8]> = program.chunks_exact(8).collect();
    let (mut accumulator, mut at) = (0_u32, 0);
    loop {
        let instruction = instructions[at];
        let code = u16::from_le_bytes([instruction[0], instruction[1]]);
        let (jt, jf) = (usize::from(instruction[2]), usize::from(instruction[3]));
        let k = u32::from_le_bytes([instruction[4], instruction[5], instruction[6], instruction[7]]);
        let branch = |taken: bool| 1 + if taken { jt } else { jf };
        at += match code {
            0x20 => {
                let at = k as usize;
                accumulator = u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
                1
            }
            0x54 => {
                accumulator &= k;
                1
            }
            0x05 => 1 + k as usize,
            0x15 => branch(accumulator == k),
            0x25 => branch(accumulator > k),
            0x35 => branch(accumulator >= k),
            0x45 => branch(accumulator & k != 0),
            0x06 => return k,
            other => panic!("an instruction {other:#x}"),
        };
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn kept_inputs_pass() {
        super::replay::replay("policy", super::policy);
    }
}
