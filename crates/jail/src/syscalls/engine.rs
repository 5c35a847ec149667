//! The lists in the format of container engines, `--security-opt seccomp=` of Docker's.

use serde::Serialize;

use super::{ANSWERED, Allow, When, list};
use crate::message::Profile;

/// Calls that a container runtime makes after it installs the filter and before it starts the program: those of Go's scheduler.
const RUNTIME: [&str; 2] = ["epoll_pwait", "nanosleep"];
/// Attributes that a container's first process sets for itself: undumpable, and parent of orphans.
const FIRST_PROCESS: [u64; 2] = [libc::PR_SET_DUMPABLE as u64, libc::PR_SET_CHILD_SUBREAPER as u64];
/// Socket options that enlarge buffers.
const BUFFER_OPTIONS: [libc::c_int; 2] = [libc::SO_SNDBUF, libc::SO_RCVBUF];
/// The type of UDP's sockets.
const DATAGRAM: EngineCondition = masked(1, super::SOCKET_TYPE, libc::SOCK_DGRAM as u64);
/// The bits of an argument that the lists compare. Container engines compare 64.
const LOWER: u64 = 0xffff_ffff;

/// The accounting of the memory of socket buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketMemory {
    /// It is part of the memory limit.
    Counted,
    /// It is not counted: buffers keep their small default size, and UDP is refused, because its buffers are large.
    Uncounted,
}

/// A profile of system calls, as engines read it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineProfile {
    default_action: &'static str,
    default_errno_ret: i32,
    syscalls: Vec<EngineRule>,
}

/// Verdict on some calls.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EngineRule {
    names: Vec<&'static str>,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno_ret: Option<i32>,
    args: Vec<EngineCondition>,
}

/// Condition of an argument. All conditions of a rule must hold. Each is about another argument, since runtimes treat two about the same
/// argument as alternatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct EngineCondition {
    index: u8,
    /// The mask, or the value where there is none.
    value: u64,
    value_two: u64,
    op: &'static str,
}

impl EngineProfile {
    /// The calls of a profile, and those that a container's runtime and its first process need.
    pub fn new(profile: Profile, sockets: SocketMemory) -> Self {
        let mut syscalls = vec![rule(RUNTIME.into(), Vec::new())];
        // In a sandbox for data there are only UNIX sockets, which are counted.
        let is_uncounted = sockets == SocketMemory::Uncounted && profile == Profile::Services;
        if is_uncounted {
            // Programs that ask for larger buffers go on without them.
            syscalls.extend(BUFFER_OPTIONS.map(|option| EngineRule {
                errno_ret: Some(0),
                action: "SCMP_ACT_ERRNO",
                ..rule(vec!["setsockopt"], buffer_option(option))
            }));
        }
        let answered = |number| ANSWERED.iter().find(|(answered, _)| *answered == number).map(|(_, error)| *error);
        let mut always = Vec::new();
        for allow in list(profile) {
            let name = allow.name.trim_start_matches("SYS_");
            match (answered(allow.number), allow.when) {
                (Some(error), _) => syscalls.push(EngineRule {
                    names: vec![name],
                    action: "SCMP_ACT_ERRNO",
                    errno_ret: Some(error),
                    args: Vec::new(),
                }),
                (None, When::Always) => always.push(name),
                (None, _) => {
                    let allowed = allow.conditions().into_iter().filter(|args| {
                        let is_datagram = name == "socket" && args.get(1).is_some_and(|kind| *kind == DATAGRAM);
                        let sets_buffer =
                            name == "setsockopt" && BUFFER_OPTIONS.iter().any(|option| *args == buffer_option(*option));
                        !(is_uncounted && (is_datagram || sets_buffer))
                    });
                    syscalls.extend(allowed.map(|args| rule(vec![name], args)));
                }
            }
        }
        syscalls.push(rule(always, Vec::new()));
        syscalls.extend(FIRST_PROCESS.map(|option| rule(vec!["prctl"], vec![lower(0, option)])));
        Self { default_action: "SCMP_ACT_ERRNO", default_errno_ret: libc::EPERM, syscalls }
    }
}

impl Allow {
    /// The alternatives under which the call is allowed; each holds if all its conditions do.
    fn conditions(&self) -> Vec<Vec<EngineCondition>> {
        let one_of = |index: u8, values: &[u64]| values.iter().map(|value| vec![lower(index, *value)]).collect();
        match self.when {
            When::Always => vec![Vec::new()],
            When::OneOf(index, values) => one_of(index, values),
            When::OneOfBut(index, values, limited, flags, bits) => {
                let without = |value| (value == limited).then(|| masked(flags, bits, 0));
                values.iter().map(|value| [lower(index, *value)].into_iter().chain(without(*value)).collect()).collect()
            }
            When::Without(index, bits) => vec![vec![masked(index, bits & LOWER, 0)]],
            When::Masked(index, mask, values) => {
                values.iter().map(|value| vec![masked(index, mask & LOWER, *value & LOWER)]).collect()
            }
            // A container's init is the program's own first process, which gets a signal from inside only if it handles it.
            When::Not(index, refused) => other_than(index, refused),
            When::NotBut(index, refused, pointer) => {
                let null = EngineCondition { index: pointer, value: 0, value_two: 0, op: "SCMP_CMP_EQ" };
                other_than(index, refused).into_iter().chain([vec![null]]).collect()
            }
            When::Socket(kinds) => {
                let kind = |(family, kind, protocol): &(libc::c_int, libc::c_int, libc::c_int)| {
                    vec![
                        lower(0, *family as u64),
                        masked(1, super::SOCKET_TYPE, *kind as u64),
                        lower(2, *protocol as u64),
                    ]
                };
                std::iter::once(vec![lower(0, libc::AF_UNIX as u64)]).chain(kinds.iter().map(kind)).collect()
            }
            When::Option(levels) => levels
                .iter()
                .flat_map(|(level, names)| names.iter().map(|name| vec![lower(1, *level as u64), lower(2, *name)]))
                .collect(),
        }
    }
}

/// Alternatives that together cover any value but one: each compares one bit that differs.
fn other_than(index: u8, refused: u64) -> Vec<Vec<EngineCondition>> {
    (0..32).map(|bit| 1 << bit).map(|bit: u64| vec![masked(index, bit, !refused & bit)]).collect()
}

fn lower(index: u8, value: u64) -> EngineCondition {
    masked(index, LOWER, value & LOWER)
}

const fn masked(index: u8, mask: u64, value: u64) -> EngineCondition {
    EngineCondition { index, value: mask, value_two: value, op: "SCMP_CMP_MASKED_EQ" }
}

/// The conditions under which a call sets this socket option, in the terms of the lists.
fn buffer_option(option: libc::c_int) -> Vec<EngineCondition> {
    vec![lower(1, libc::SOL_SOCKET as u64), lower(2, option as u64)]
}

fn rule(names: Vec<&'static str>, args: Vec<EngineCondition>) -> EngineRule {
    EngineRule { names, action: "SCMP_ACT_ALLOW", errno_ret: None, args }
}

#[cfg(test)]
mod tests {
    use super::super::{ADVICE, FCNTLS, FORBIDDEN_CLONE_FLAGS, INIT, SERVICE_IOCTLS, SOCKET_OPTIONS, THREAD, permits};
    use super::*;

    /// The verdict as a runtime's library computes it, on whole arguments.
    fn allows(profile: &EngineProfile, name: &str, arguments: [u64; 6]) -> bool {
        let holds = |condition: &EngineCondition| {
            let EngineCondition { index, value, value_two, op } = *condition;
            let argument = arguments[usize::from(index)];
            if op == "SCMP_CMP_EQ" { argument == value } else { argument & value == value_two }
        };
        let rules = profile.syscalls.iter().filter(|rule| rule.names.contains(&name));
        let mut allowing = rules.filter(|rule| rule.args.iter().all(holds));
        allowing.any(|rule| rule.action == "SCMP_ACT_ALLOW" || rule.errno_ret == Some(0))
    }

    #[test]
    fn an_engine_hears_what_the_lists_say() {
        for profile in [Profile::Data, Profile::Services] {
            let engine = EngineProfile::new(profile, SocketMemory::Counted);
            let mut values: Vec<u64> =
                (0..64).map(|bit| 1 << bit).chain([0, 3, 0x541b, u64::MAX, 1 << 32 | INIT]).collect();
            values.extend([FORBIDDEN_CLONE_FLAGS, THREAD, 1 << 32 | u64::from(libc::RLIMIT_CORE)]);
            values.extend([SERVICE_IOCTLS, FCNTLS, SOCKET_OPTIONS, ADVICE].concat());
            for allow in list(profile) {
                let name = allow.name.trim_start_matches("SYS_");
                let fails = ANSWERED.iter().any(|(answered, error)| *answered == allow.number && *error != 0);
                for value in &values {
                    for (place, others) in (0..6).flat_map(|place| [0, 1, u64::MAX].map(|others| (place, others))) {
                        let mut arguments = [others; 6];
                        arguments[place] = *value;
                        let own = name == "prctl" && FIRST_PROCESS.contains(&(arguments[0] & LOWER));
                        let listed = own || RUNTIME.contains(&name) || permits(profile, allow.number, arguments);
                        assert_eq!(allows(&engine, name, arguments), listed && !fails, "{name} {arguments:x?}");
                    }
                }
            }
            for name in ["unshare", "mount", "ptrace", "io_uring_setup", "keyctl", "mq_open", "bpf", "timer_create"] {
                assert!(!allows(&engine, name, [0; 6]), "{name}");
            }
        }
    }

    #[test]
    fn sockets_that_nobody_counts_stay_small() {
        let [counted, uncounted] = [SocketMemory::Counted, SocketMemory::Uncounted]
            .map(|sockets| EngineProfile::new(Profile::Services, sockets));
        let (inet, level) = (libc::AF_INET as u64, libc::SOL_SOCKET as u64);
        for (call, arguments) in [
            ("socket", [inet, libc::SOCK_DGRAM as u64, 0, 0, 0, 0]),
            ("socket", [inet, (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64, libc::IPPROTO_UDP as u64, 0, 0, 0]),
        ] {
            assert!(allows(&counted, call, arguments) && !allows(&uncounted, call, arguments), "{call} {arguments:?}");
        }
        for option in BUFFER_OPTIONS {
            let arguments = [3, level, option as u64, 0, 4, 0];
            assert!(allows(&counted, "setsockopt", arguments));
            let rules = uncounted.syscalls.iter().filter(|rule| rule.names.contains(&"setsockopt"));
            let of_option = rules.filter(|rule| rule.args == buffer_option(option)).map(|rule| rule.errno_ret);
            assert_eq!(of_option.collect::<Vec<_>>(), [Some(0)], "it is answered and not done");
        }
        for profile in [&counted, &uncounted] {
            assert!(allows(profile, "socket", [inet, libc::SOCK_STREAM as u64, 0, 0, 0, 0]));
            assert!(allows(profile, "setsockopt", [3, level, libc::SO_REUSEADDR as u64, 0, 4, 0]));
            assert!(allows(profile, "socket", [libc::AF_UNIX as u64, libc::SOCK_DGRAM as u64, 0, 0, 0, 0]));
        }
    }

    #[test]
    fn no_rule_has_two_conditions_of_one_argument() {
        for rule in EngineProfile::new(Profile::Services, SocketMemory::Counted).syscalls {
            let distinct: std::collections::BTreeSet<u8> = rule.args.iter().map(|condition| condition.index).collect();
            assert_eq!(distinct.len(), rule.args.len(), "{rule:?}");
        }
    }
}
