//! The filters that are made of the lists, as programs for Linux.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

use super::{ANSWERED, Allow, HAND_OVER, INIT_CALLS, SOCKET_TYPE, UNLOCKING, WATCHER_CALLS, When, is_answered, list};
use crate::message::Profile;

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// The most calls that are compared one after another. Linux runs the filter on every call number when it is installed, and on each call
/// whose arguments are checked, so comparing with all in turn is expensive.
const GROUP: usize = 6;

// Constants of linux/bpf_common.h and linux/seccomp.h; the architecture's number of linux/audit.h.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_NOT_BELOW: u16 = 0x35;
const RETURN: u16 = 0x06;
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
/// Place of the third argument's lower half: with `setpriority`, the priority.
const PRIORITY_OFFSET: u32 = 32;
/// The first number that is negative as an `int`.
const FIRST_NEGATIVE: u32 = 1 << 31;
const ANSWER: u32 = 0x0005_0000;
const REFUSE: u32 = ANSWER | libc::EPERM as u32;
/// The answer to calls of another architecture. They go to no listener, for which their numbers would mean other calls. To end the process
/// would have Linux write a line to the audit log each time.
const FOREIGN: u32 = ANSWER | libc::ENOSYS as u32;
const NOTIFY: u32 = 0x7fc0_0000;

/// The filter of a profile without a listener.
pub(crate) fn filter(profile: Profile) -> Result<BpfProgram, String> {
    compile(list(profile).copied())
}

/// The filter of a profile with a listener, to which it leaves what it refuses, the locks that `flock` takes, and watches of files.
pub(crate) fn reporting(profile: Profile) -> Result<BpfProgram, String> {
    let unlocking = When::OneOf(1, UNLOCKING);
    let own = list(profile).filter(|allow| allow.number != libc::SYS_inotify_add_watch);
    let refusing = compile(own.map(|allow| match allow.number {
        libc::SYS_flock => Allow { when: unlocking, ..*allow },
        _ => *allow,
    }))?;
    Ok(left_to_listener(refusing))
}

/// A filter that passes every call to a listener, except those of [`HAND_OVER`].
pub(crate) fn observing() -> Result<BpfProgram, String> {
    Ok(left_to_listener(allowing(HAND_OVER.iter().map(|number| (*number, Vec::new())).collect())?))
}

/// The filter of a sandbox's init.
pub(crate) fn of_init() -> Result<BpfProgram, String> {
    allowing(INIT_CALLS.map(|number| (number, Vec::new())).into())
}

/// The filter of a watcher.
pub(crate) fn of_watcher() -> Result<BpfProgram, String> {
    allowing(WATCHER_CALLS.map(|number| (number, Vec::new())).into())
}

/// The same filter, but what it refuses is left to a listener.
fn left_to_listener(mut filter: BpfProgram) -> BpfProgram {
    for instruction in &mut filter {
        if instruction.code == RETURN && instruction.k == REFUSE {
            instruction.k = NOTIFY;
        }
    }
    filter
}

/// A filter of these calls: it finds the call's group by halves.
fn compile(calls: impl Iterator<Item = Allow>) -> Result<BpfProgram, String> {
    let mut rules = Vec::new();
    for allow in calls {
        if !is_answered(allow.number) {
            rules.push((allow.number, allow.rules()?));
        }
    }
    rules.sort_unstable_by_key(|(number, _)| *number);
    let mut groups = Vec::new();
    for group in rules.chunks(GROUP) {
        let first = u32::try_from(group.first().map_or(0, |(number, _)| *number)).map_err(|error| error.to_string())?;
        groups.push((first, allowing(group.iter().cloned().collect())?));
    }
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE_OFFSET),
        instruction(IF_EQUAL, 1, 0, AUDIT_ARCH),
        instruction(RETURN, 0, 0, FOREIGN),
        instruction(LOAD, 0, 0, NUMBER_OFFSET),
    ];
    for (number, error) in ANSWERED {
        let number = u32::try_from(number).map_err(|error| error.to_string())?;
        program.push(instruction(IF_EQUAL, 0, 1, number));
        program.push(instruction(RETURN, 0, 0, ANSWER | error.unsigned_abs()));
    }
    program.extend(priority()?);
    program.extend(halves(&groups));
    Ok(program)
}

/// The answer to `setpriority`, which is not made: a process of lower priority that has a lock inside Linux would hold up everybody else
/// who wants it. A higher one is refused as by Linux.
fn priority() -> Result<BpfProgram, String> {
    let number = u32::try_from(libc::SYS_setpriority).map_err(|error| error.to_string())?;
    Ok(vec![
        instruction(IF_EQUAL, 0, 4, number),
        instruction(LOAD, 0, 0, PRIORITY_OFFSET),
        instruction(IF_NOT_BELOW, 0, 1, FIRST_NEGATIVE),
        instruction(RETURN, 0, 0, ANSWER | libc::EACCES.unsigned_abs()),
        instruction(RETURN, 0, 0, ANSWER),
    ])
}

/// A binary search for the last group whose first number is at most the loaded one. Every group ends with a verdict.
fn halves(groups: &[(u32, BpfProgram)]) -> BpfProgram {
    let (lower, upper) = groups.split_at(groups.len() / 2);
    let ([_, ..], [(first, _), ..]) = (lower, upper) else {
        return groups.iter().flat_map(|(_, group)| group.clone()).collect();
    };
    let (lower, upper) = (halves(lower), halves(upper));
    let skipped = u32::try_from(lower.len()).unwrap_or(u32::MAX);
    // A conditional jump reaches at most 255 instructions, an unconditional one any.
    let mut program = vec![instruction(IF_NOT_BELOW, 0, 1, *first), instruction(JUMP, 0, 0, skipped)];
    program.extend(lower);
    program.extend(upper);
    program
}

/// A filter that allows these calls under their rules and refuses all others.
fn allowing(rules: BTreeMap<i64, Vec<SeccompRule>>) -> Result<BpfProgram, String> {
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, ARCH).map_err(|error| error.to_string())?;
    filter.try_into().map_err(|error: seccompiler::BackendError| error.to_string())
}

impl Allow {
    /// The alternatives under which the call is allowed; empty if it is always allowed.
    fn rules(&self) -> Result<Vec<SeccompRule>, String> {
        let condition = |argument: u8, operator: Op, value: u64| {
            Condition::new(argument, Len::Dword, operator, value).map_err(|error| error.to_string())
        };
        let all = |conditions: Vec<Condition>| SeccompRule::new(conditions).map_err(|error| error.to_string());
        let one = |argument: u8, operator: Op, value: u64| all(vec![condition(argument, operator, value)?]);
        match self.when {
            When::Always => Ok(Vec::new()),
            When::OneOf(argument, values) => values.iter().map(|value| one(argument, Op::Eq, *value)).collect(),
            When::OneOfBut(argument, values, limited, flags, bits) => values
                .iter()
                .map(|value| {
                    let mut conditions = vec![condition(argument, Op::Eq, *value)?];
                    if *value == limited {
                        conditions.push(condition(flags, Op::MaskedEq(bits), 0)?);
                    }
                    all(conditions)
                })
                .collect(),
            When::Without(argument, bits) => Ok(vec![one(argument, Op::MaskedEq(bits), 0)?]),
            When::Masked(argument, mask, values) => {
                values.iter().map(|value| one(argument, Op::MaskedEq(mask), *value)).collect()
            }
            When::Not(argument, refused) => Ok(vec![one(argument, Op::Ne, refused)?]),
            When::NotBut(argument, refused, pointer) => {
                // The whole pointer: the lower half of many addresses is zero.
                let null = Condition::new(pointer, Len::Qword, Op::Eq, 0).map_err(|error| error.to_string())?;
                Ok(vec![one(argument, Op::Ne, refused)?, all(vec![null])?])
            }
            When::Socket(kinds) => {
                let kind = |(family, kind, protocol): &(libc::c_int, libc::c_int, libc::c_int)| {
                    all(vec![
                        condition(0, Op::Eq, *family as u64)?,
                        condition(1, Op::MaskedEq(SOCKET_TYPE), *kind as u64)?,
                        condition(2, Op::Eq, *protocol as u64)?,
                    ])
                };
                std::iter::once(one(0, Op::Eq, libc::AF_UNIX as u64)).chain(kinds.iter().map(kind)).collect()
            }
            When::Option(levels) => levels
                .iter()
                .flat_map(|(level, names)| names.iter().map(move |name| (*level as u64, *name)))
                .map(|(level, name)| all(vec![condition(1, Op::Eq, level)?, condition(2, Op::Eq, name)?]))
                .collect(),
        }
    }
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::super::{
        ADVICE, FCNTLS, FORBIDDEN_CLONE_FLAGS, FUTEX_COMMANDS, IOCTLS, MAP_HUGETLB, MFD_HUGETLB, MSG_OOB, NODE_TYPES,
        O_DIRECT, PRCTLS, SERVICE_IOCTLS, SERVICE_OPTIONS, SOCKET_OPTIONS, THREAD, numbers, permits,
    };
    use super::*;

    #[test]
    fn the_filter_fits_the_kernels_limit() {
        assert!(filter(Profile::Services).unwrap().len() < 4096);
    }

    /// The verdict of a filter, evaluated as Linux does.
    fn verdict(program: &BpfProgram, architecture: u32, number: i64, arguments: [u64; 6]) -> u32 {
        let mut data = (number as u32).to_ne_bytes().to_vec();
        data.extend(architecture.to_ne_bytes());
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let load = |offset: u32| u32::from_ne_bytes(data[offset as usize..][..4].try_into().unwrap());
        let (mut accumulator, mut place) = (0_u32, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[place];
            let choose = |holds| usize::from(if holds { jt } else { jf });
            place += 1;
            match code {
                LOAD => accumulator = load(k),
                JUMP => place += k as usize,
                IF_EQUAL => place += choose(accumulator == k),
                IF_NOT_BELOW => place += choose(accumulator >= k),
                0x25 => place += choose(accumulator > k),
                0x54 => accumulator &= k,
                RETURN => return k,
                other => panic!("an instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn the_filters_say_what_the_lists_say() {
        says_what_the_list_says(Profile::Data);
        says_what_the_list_says(Profile::Services);
    }

    fn says_what_the_list_says(profile: Profile) {
        const ALLOW: u32 = 0x7fff_0000;
        let (program, own, listed) = (filter(profile).unwrap(), AUDIT_ARCH, numbers(profile));
        let reporting = reporting(profile).unwrap();
        let mut values: Vec<u64> = (0..64).map(|bit| 1 << bit).chain([0, 3, 0x541b, u64::MAX]).collect();
        values.extend(
            [SERVICE_IOCTLS, IOCTLS, FCNTLS, SOCKET_OPTIONS, PRCTLS, NODE_TYPES, ADVICE, FUTEX_COMMANDS].concat(),
        );
        values.extend([FORBIDDEN_CLONE_FLAGS, THREAD, O_DIRECT, MSG_OOB, MAP_HUGETLB, MFD_HUGETLB]);
        values.extend(UNLOCKING);
        for number in (-2..1000).chain([0x4000_0000, 0x4000_0001]) {
            let answer = ANSWERED.iter().find(|(answered, _)| *answered == number).map(|(_, error)| *error as u32);
            // Arguments matter only for calls on the list.
            let count = if listed.contains(&number) { values.len() } else { 1 };
            for value in values.iter().take(count) {
                for place in 0..6 {
                    for others in [0, 1, u64::MAX] {
                        let mut arguments = [others; 6];
                        arguments[place] = *value;
                        let listed = if permits(profile, number, arguments) { ALLOW } else { REFUSE };
                        // A priority below the usual one is answered, a higher one refused.
                        let is_higher = (arguments[2] as u32).cast_signed() < 0;
                        let of_priority = if is_higher { libc::EACCES as u32 } else { 0 };
                        let answer = if number == libc::SYS_setpriority { Some(of_priority) } else { answer };
                        let expected = answer.map_or(listed, |error| ANSWER | error);
                        assert_eq!(verdict(&program, own, number, arguments), expected, "{number} {arguments:x?}");
                        let is_left = expected == REFUSE
                            || number == libc::SYS_inotify_add_watch
                            || number == libc::SYS_flock && !UNLOCKING.contains(&(arguments[1] & 0xffff_ffff));
                        let expected = if is_left { NOTIFY } else { expected };
                        assert_eq!(verdict(&reporting, own, number, arguments), expected, "{number} {arguments:x?}");
                    }
                }
            }
        }
        for (program, number) in
            [&program, &reporting].into_iter().flat_map(|program| (-2..1000).map(move |number| (program, number)))
        {
            for architecture in [own ^ 1, own ^ 0x4000_0000, 0x4000_0003, 0] {
                assert_eq!(verdict(program, architecture, number, [0; 6]), FOREIGN, "{number} of {architecture:x}");
            }
        }
    }

    #[test]
    fn services_have_sockets_of_tcp_and_udp_alone() {
        let program = filter(Profile::Services).unwrap();
        let allows = |number, arguments: [u64; 3]| {
            let [first, second, third] = arguments;
            let arguments = [first, second, third, 0, 0, 0];
            let allowed = verdict(&program, AUDIT_ARCH, number, arguments) == 0x7fff_0000;
            assert_eq!(allowed, permits(Profile::Services, number, arguments), "{number} {arguments:?}");
            allowed
        };
        let (inet, inet6, cloexec) = (libc::AF_INET as u64, libc::AF_INET6 as u64, libc::SOCK_CLOEXEC as u64);
        let (mut sockets, mut options) = (std::collections::BTreeSet::new(), 0);
        for family in 0..64 {
            for kind in (0..16).flat_map(|kind| [kind, kind | cloexec]) {
                for protocol in (0..20).chain([33, 132, 136, 255, 256, 262]) {
                    if allows(libc::SYS_socket, [family, kind, protocol]) && family != libc::AF_UNIX as u64 {
                        sockets.insert((family, kind & SOCKET_TYPE, protocol));
                    }
                }
            }
        }
        let expected = [(inet, 1, 0), (inet, 1, 6), (inet, 2, 0), (inet, 2, 17), (inet6, 1, 0), (inet6, 1, 6)];
        assert_eq!(sockets, expected.into());
        for level in 0..300 {
            for name in 0..300 {
                options += usize::from(allows(libc::SYS_setsockopt, [0, level, name]));
            }
        }
        assert_eq!(options, SERVICE_OPTIONS.iter().map(|(_, names)| names.len()).sum::<usize>());
    }

    #[test]
    fn init_may_take_locks_and_a_watcher_may_watch_and_both_may_end() {
        for (program, calls) in [(of_init().unwrap(), &INIT_CALLS[..]), (of_watcher().unwrap(), &WATCHER_CALLS)] {
            for number in 0..1000 {
                let expected = if calls.contains(&number) { 0x7fff_0000 } else { REFUSE };
                assert_eq!(verdict(&program, AUDIT_ARCH, number, [0; 6]), expected);
            }
        }
    }
}
