//! The system calls a sandboxed program may make: an allow-list, one line each, with a program that needs it.
//!
//! Everything else answers EPERM; `clone3` answers ENOSYS, so that the C library falls back to `clone`, whose flags can be inspected.

mod engine;
mod filter;

pub use self::engine::{EngineProfile, SocketMemory};
pub(crate) use self::filter::{filter, observing, of_init, of_watcher, reporting};
use crate::message::Profile;

/// Allowed values of an argument.
#[derive(Debug, Clone, Copy)]
enum When {
    /// Any call.
    Always,
    /// Argument number `.0` is one of `.1`, compared as 32 bits.
    OneOf(u8, &'static [u64]),
    /// Argument number `.0` is one of `.1`; where it is `.2`, none of the bits `.4` is set in argument number `.3`.
    OneOfBut(u8, &'static [u64], u64, u8, u64),
    /// None of the bits `.1` is set in argument number `.0`.
    Without(u8, u64),
    /// The bits `.1` of argument number `.0` are exactly one of `.2`.
    Masked(u8, u64, &'static [u64]),
    /// Argument number `.0` is anything but `.1`, compared as 32 bits.
    Not(u8, u64),
    /// The same, or argument number `.2` is a null pointer.
    NotBut(u8, u64, u8),
    /// For UNIX sockets, or one of these combinations of family, type without flags, and protocol.
    Socket(&'static [(libc::c_int, libc::c_int, libc::c_int)]),
    /// The level, argument 1, and the option, argument 2, are one of these pairs.
    Option(&'static [(libc::c_int, &'static [u64])]),
}

/// One allowed system call.
#[derive(Debug, Clone, Copy)]
struct Allow {
    number: i64,
    name: &'static str,
    when: When,
}

macro_rules! allow {
    ($($name:ident $(: $when:expr)? , $why:literal;)*) => {
        &[$(Allow {
            number: paste_number!($name),
            name: stringify!($name),
            when: allow!(@when $($when)?),
        }),*]
    };
    (@when) => { When::Always };
    (@when $when:expr) => { $when };
}
macro_rules! paste_number {
    ($name:ident) => {
        libc::$name as i64
    };
}

/// Namespaces, a parent outside the sandbox, and being traced.
const FORBIDDEN_CLONE_FLAGS: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_PARENT
    | libc::CLONE_PTRACE) as u32 as u64;

/// Only threads of one process may share a descriptor table: file locks belong to the table, and would outlive the process that Linux names
/// for them.
const THREAD: u64 = (libc::CLONE_FILES | libc::CLONE_THREAD) as u64;

/// The flag that gives a thread a descriptor table of its own, and so locks that only their ranges tell from another thread's.
const CLOSE_RANGE_UNSHARE: u64 = 2;

/// Modes of a terminal, in the forms of the GNU C library before and since version 2.42, its size, blocking mode, bytes waiting,
/// close-on-exec, sharing of file blocks. Not TIOCSTI: it types into a terminal.
const IOCTLS: &[u64] = &[0x5401, 0x802c_542a, 0x5413, 0x540f, 0x541b, 0x5421, 0x5450, 0x5451, 0x4004_9409, 0x4020_940d];

/// Duplicating, close-on-exec, blocking mode, pipe sizes, seals, and the record locks that SQLite needs. No open-file-description locks,
/// leases, notifications or signals: they take memory of Linux that no control group counts.
const FCNTLS: &[u64] = &[0, 1, 2, 3, 4, 5, 6, 7, 1030, 1031, 1032, 1033, 1034];

/// Reuse, type, error, buffer sizes, keep-alive, credentials, timeouts, listening, protocol, domain. Not filters, which are programs for
/// Linux, nor descriptors of the peer, nor lingering: whoever closes such a socket last waits, and that may be the host, to which it was
/// passed.
const SOCKET_OPTIONS: &[u64] = &[2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 20, 21, 30, 38, 39];

/// TCP of both versions and UDP. Not UDP of version 6, whose fragments gave exploits (CVE-2026-53362), nor other protocols of these
/// families: ICMP, UDP-Lite, SCTP, MPTCP.
const SOCKETS: &[(libc::c_int, libc::c_int, libc::c_int)] = &[
    (libc::AF_INET, libc::SOCK_STREAM, 0),
    (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP),
    (libc::AF_INET, libc::SOCK_DGRAM, 0),
    (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDP),
    (libc::AF_INET6, libc::SOCK_STREAM, 0),
    (libc::AF_INET6, libc::SOCK_STREAM, libc::IPPROTO_TCP),
];
/// Of a socket's type, what is not a flag.
const SOCKET_TYPE: u64 = 0xf;

/// The options above and sharing of ports; no delay, keep-alive; one version of addresses only. No upper-layer protocols, repair, zero
/// copy, multicast or filters.
const SERVICE_OPTIONS: &[(libc::c_int, &[u64])] = &[
    (libc::SOL_SOCKET, &[2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 20, 21, 30, 38, 39]),
    (libc::IPPROTO_TCP, &[1, 4, 5, 6]),
    (libc::IPPROTO_IPV6, &[26]),
];

/// The ones above, and a shell's in a terminal: modes, break, flush, the controlling terminal, groups, window size, and pairs of terminals.
/// Not TIOCSTI, TIOCCONS, TIOCSETD, TIOCLINUX: typing into terminals, the console, line disciplines, the console's keyboard.
const SERVICE_IOCTLS: &[u64] = &[
    0x5401,
    0x5402,
    0x5403,
    0x5404,
    0x5409,
    0x540b,
    0x540e,
    0x540f,
    0x5410,
    0x5411,
    0x5413,
    0x5414,
    0x541b,
    0x5421,
    0x5422,
    0x5429,
    0x5441,
    0x5450,
    0x5451,
    0x4004_5431,
    0x8004_5430,
    0x4004_9409,
    0x4020_940d,
    0x802c_542a,
    0x402c_542b,
    0x402c_542c,
    0x402c_542d,
];

/// Names of threads, but not of memory, which no control group counts; the parent-death signal, no_new_privs, harmless reads.
const PRCTLS: &[u64] = &[1, 2, 3, 15, 16, 23, 38, 39, 40, 41, 42];

/// `mkfifo` and plain files, never devices.
const NODE_TYPES: &[u64] = &[0, libc::S_IFREG as u64, libc::S_IFIFO as u64, libc::S_IFSOCK as u64];

/// All advice about a program's own pages except merging (KSM) and poisoning. Not paging out or collapsing either: pages of a mapped file
/// are shared, and the owner of a file may do it to them; sandboxes without a user id of their own own the template. The last two are for
/// the guards of threads' stacks, in the GNU C library from version 2.42 on.
const ADVICE: &[u64] = &[0, 1, 2, 3, 4, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 22, 23, 102, 103];

/// Waiting, waking and requeueing, with either form of address and of clock. Not priority-inheriting locks: the C library takes them only
/// on request, and their code gave exploits (CVE-2014-3153, CVE-2021-3347).
const FUTEX_COMMANDS: &[u64] = &[0, 1, 3, 4, 5, 9, 10];
const FUTEX_COMMAND: u64 = !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u32 as u64;

/// Reads of the template that go to the host's disk, every time.
const O_DIRECT: u64 = libc::O_DIRECT as u64;
/// Urgent data of UNIX sockets: unused in practice, and its code gave exploits (CVE-2025-38236).
const MSG_OOB: u64 = libc::MSG_OOB as u64;
/// Huge pages, a pool that the host reserves for its own programs; not counted by control groups' memory limits.
const MAP_HUGETLB: u64 = libc::MAP_HUGETLB as u64;
const MFD_HUGETLB: u64 = libc::MFD_HUGETLB as u64;

/// The sandbox's init, for everyone inside.
const INIT: u64 = 1;

const COMMON: &[Allow] = allow! {
    SYS_read, "files, pipes";
    SYS_write, "files, pipes";
    SYS_readv, "C++ streams, asyncio";
    SYS_writev, "C++ streams, asyncio";
    SYS_pread64, "zip, parquet, SQLite";
    SYS_pwrite64, "SQLite, HDF5";
    SYS_openat: When::Without(2, O_DIRECT), "every open; not past the page cache, which reads from the host's disk";
    SYS_close, "every close";
    SYS_close_range: When::Without(2, CLOSE_RANGE_UNSHARE), "subprocess";
    SYS_fstat, "every open";
    SYS_newfstatat, "os.stat";
    SYS_statx, "coreutils";
    SYS_lseek, "every reader";
    SYS_faccessat2, "os.access, shells";
    SYS_dup, "subprocess, shells";
    SYS_dup3, "subprocess, shells";
    SYS_fcntl: When::OneOfBut(1, FCNTLS, libc::F_SETFL as u64, 2, O_DIRECT), "every open in Python";
    SYS_flock, "joblib, filelock";
    SYS_fsync, "SQLite; answered by a filter";
    SYS_fdatasync, "SQLite; answered by a filter";
    SYS_truncate, "os.truncate";
    SYS_ftruncate, "file.truncate, shared memory";
    SYS_fallocate, "os.posix_fallocate, HDF5";
    SYS_getdents64, "os.listdir";
    SYS_getcwd, "os.getcwd";
    SYS_chdir, "os.chdir";
    SYS_fchdir, "shutil, find";
    SYS_renameat, "os.rename on Arm";
    SYS_renameat2, "mv";
    SYS_mkdirat, "os.mkdir with dir_fd";
    SYS_unlinkat, "shutil.rmtree, rm";
    SYS_linkat, "os.link, ln";
    SYS_symlinkat, "os.symlink, ln";
    SYS_readlinkat, "os.path.realpath";
    SYS_fchmod, "shutil.copymode";
    SYS_fchmodat, "os.chmod, tempfile";
    SYS_mknodat: When::Masked(2, libc::S_IFMT as u64, NODE_TYPES), "os.mkfifo";
    SYS_umask, "tempfile, shells";
    SYS_utimensat, "shutil.copystat, touch, unzip";
    SYS_statfs, "shutil.disk_usage, pyarrow";
    SYS_fstatfs, "shared memory";
    SYS_copy_file_range, "shutil, cp";
    SYS_sendfile, "shutil.copyfile";
    SYS_getxattr, "ls -l, cp -a";
    SYS_lgetxattr, "ls -l, cp -a";
    SYS_fgetxattr, "cp -p, install, tar -p";
    SYS_listxattr, "shutil.copystat fails without it";
    SYS_llistxattr, "shutil.copystat fails without it";
    SYS_flistxattr, "mv, cp -a";
    SYS_setxattr, "cp -a, which goes on where it is not supported";
    SYS_lsetxattr, "cp -a";
    SYS_fsetxattr, "cp -p, install";
    SYS_removexattr, "chacl";
    SYS_lremovexattr, "rsync";
    SYS_fremovexattr, "cp -p of newer coreutils";
    SYS_fadvise64, "sort, cp, dd; to forget pages of the template would slow down the others";
    SYS_ioctl: When::OneOf(1, IOCTLS), "isatty, non-blocking pipes";
    SYS_mmap: When::Without(3, MAP_HUGETLB), "memory, libraries; no huge pages of the host's";
    SYS_munmap, "memory";
    SYS_mprotect, "libraries, thread stacks";
    SYS_mremap, "realloc";
    SYS_madvise: When::OneOf(2, ADVICE), "malloc, numpy";
    SYS_brk, "malloc";
    SYS_msync, "numpy.memmap";
    SYS_memfd_create: When::Without(1, MFD_HUGETLB), "multiprocessing, pyarrow";
    SYS_clone: When::Masked(0, FORBIDDEN_CLONE_FLAGS | THREAD, &[0, THREAD]), "threads, fork";
    SYS_clone3, "answered ENOSYS by the first filter";
    SYS_timer_create, "timeout, which uses an alarm where there is none";
    SYS_execve, "subprocess";
    SYS_exit, "threads";
    SYS_exit_group, "processes";
    SYS_wait4, "subprocess";
    SYS_waitid, "asyncio, concurrent.futures";
    SYS_kill: When::Not(0, INIT), "own process namespace only; not init, which may have the same user id";
    SYS_tgkill: When::Not(0, INIT), "raise, abort";
    SYS_getpid, "os.getpid";
    SYS_getppid, "os.getppid, joblib";
    SYS_gettid, "threading";
    SYS_getuid, "os.getuid";
    SYS_geteuid, "site";
    SYS_getgid, "os.getgid";
    SYS_getegid, "site";
    SYS_getgroups, "os.getgroups, shells";
    SYS_getpgid, "shells";
    SYS_setpgid, "shells, process groups";
    SYS_getsid, "shells";
    SYS_setsid, "subprocess start_new_session";
    SYS_set_tid_address, "thread library start";
    SYS_set_robust_list, "thread library start";
    SYS_rseq, "thread library start";
    SYS_prctl: When::OneOf(0, PRCTLS), "thread names";
    SYS_prlimit64: When::NotBut(1, libc::RLIMIT_CORE as u64, 2), "resource; only downwards; that of core dumps stays, see the lockdown";
    SYS_getrusage, "resource, time";
    SYS_sysinfo, "os.sysconf of memory";
    SYS_uname, "platform";
    SYS_getpriority, "nice";
    SYS_setpriority, "nice";
    SYS_sched_yield, "OpenMP, OpenBLAS";
    SYS_sched_getaffinity, "os.cpu_count, OpenMP";
    SYS_sched_setaffinity, "OpenMP, threadpoolctl";
    SYS_rt_sigaction, "signals";
    SYS_rt_sigprocmask, "signals";
    SYS_rt_sigreturn, "signals";
    SYS_rt_sigtimedwait, "signal.sigtimedwait";
    SYS_rt_sigsuspend, "shells";
    SYS_sigaltstack, "faulthandler, Rust libraries";
    SYS_restart_syscall, "Linux itself, after signals";
    SYS_setitimer, "signal.setitimer, signal.alarm";
    SYS_clock_nanosleep, "time.sleep";
    SYS_clock_gettime, "time, where the vDSO cannot";
    SYS_futex: When::Masked(1, FUTEX_COMMAND, FUTEX_COMMANDS), "locks; not those that inherit priorities";
    SYS_pselect6, "select, shells";
    SYS_epoll_create1, "selectors, asyncio";
    SYS_epoll_ctl, "selectors, asyncio";
    SYS_eventfd2, "event loops";
    SYS_pipe2, "subprocess";
    SYS_socket: When::OneOf(0, &[libc::AF_UNIX as u64]), "multiprocessing; no other family without network";
    SYS_socketpair: When::OneOf(0, &[libc::AF_UNIX as u64]), "asyncio, multiprocessing";
    SYS_bind, "multiprocessing managers";
    SYS_listen, "multiprocessing managers";
    SYS_accept4, "multiprocessing managers";
    SYS_connect, "multiprocessing managers";
    SYS_getsockname, "multiprocessing managers";
    SYS_getpeername, "multiprocessing managers";
    SYS_sendto: When::Without(3, MSG_OOB), "asyncio wake-up, kernel channel";
    SYS_recvfrom: When::Without(3, MSG_OOB), "asyncio wake-up, kernel channel";
    SYS_sendmsg: When::Without(2, MSG_OOB), "multiprocessing";
    SYS_recvmsg: When::Without(2, MSG_OOB), "multiprocessing";
    SYS_shutdown, "multiprocessing managers";
    SYS_setsockopt: When::OneOf(2, SOCKET_OPTIONS), "multiprocessing managers";
    SYS_getsockopt: When::OneOf(2, SOCKET_OPTIONS), "socket objects";
    SYS_getrandom, "random, hashes, uuid";
};

/// Calls that exist on x86-64 alone, older forms of the ones above that its C library still uses.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &[Allow] = allow! {
    SYS_open: When::Without(1, O_DIRECT), "the allocators of DuckDB and of Python 3.13 and newer, which read /proc";
    SYS_creat, "tar";
    SYS_pause, "signal.pause";
    SYS_stat, "pyarrow and others built for older C libraries";
    SYS_lstat, "HDF5 and PROJ, built for older C libraries";
    SYS_access, "loader, shells";
    SYS_dup2, "subprocess, shells";
    SYS_vfork, "subprocess";
    SYS_getpgrp, "shells";
    SYS_rename, "os.rename";
    SYS_mkdir, "os.mkdir";
    SYS_rmdir, "os.rmdir";
    SYS_link, "os.link";
    SYS_unlink, "os.remove";
    SYS_symlink, "os.symlink";
    SYS_readlink, "os.readlink";
    SYS_chmod, "os.chmod";
    SYS_alarm, "timeout scripts";
    SYS_poll, "subprocess, selectors";
    SYS_epoll_wait, "selectors, asyncio";
    SYS_arch_prctl, "thread-local storage at program start";
};

/// Calls that its C library makes where that of x86-64 has older forms.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &[Allow] = allow! {
    SYS_faccessat, "os.access, shells";
    SYS_ppoll, "subprocess, signal.pause";
    SYS_epoll_pwait, "selectors, asyncio";
};

/// The lines of the list for services that differ from those above, or come in addition.
const SERVICES: &[Allow] = allow! {
    SYS_socket: When::Socket(SOCKETS), "servers and their clients, on the sandbox's own loopback device";
    SYS_setsockopt: When::Option(SERVICE_OPTIONS), "servers";
    SYS_getsockopt: When::Option(SERVICE_OPTIONS), "servers, asyncio";
    SYS_ioctl: When::OneOf(1, SERVICE_IOCTLS), "shells in a terminal";
    SYS_accept, "git daemon, and other servers in C; the older form of accept4";
    SYS_inotify_init1, "watching files; charged to the sandbox's memory";
    SYS_inotify_add_watch, "watching files; of its own files only, where there is a listener";
    SYS_inotify_rm_watch, "watching files";
    SYS_sched_getparam, "the threads of ZeroMQ, which Jupyter's kernels speak";
    SYS_sched_getscheduler, "the threads of ZeroMQ";
    SYS_sched_setscheduler: When::OneOf(1, &[libc::SCHED_OTHER as u64]), "the threads of ZeroMQ, which ask for the usual policy";
};

/// Calls in addition that programs make on x86-64, where others make older forms.
#[cfg(target_arch = "x86_64")]
const SERVICES_ARCHITECTURE: &[Allow] = allow! {
    SYS_epoll_pwait, "Node, Go";
};

#[cfg(target_arch = "aarch64")]
const SERVICES_ARCHITECTURE: &[Allow] = allow! {};

/// The list of a profile.
fn list(profile: Profile) -> impl Iterator<Item = &'static Allow> {
    let services: [&[Allow]; 2] = match profile {
        Profile::Data => [&[], &[]],
        Profile::Services => [SERVICES, SERVICES_ARCHITECTURE],
    };
    let is_replaced = move |allow: &&Allow| services[0].iter().any(|other| other.number == allow.number);
    let common = COMMON.iter().chain(ARCHITECTURE).filter(move |allow| !is_replaced(allow));
    common.chain(services.into_iter().flatten())
}

/// Calls that are answered without being made, with the error number or 0. Programs can write only to memory; a flush of the template's
/// files would go to the host's disk. Of attributes of files, Linux keeps lists of access (ACLs) in no control group's count. Without
/// timers of this kind, `timeout` uses an alarm.
const ANSWERED: [(i64, i32); 11] = [
    (libc::SYS_clone3, libc::ENOSYS),
    (libc::SYS_timer_create, libc::ENOSYS),
    (libc::SYS_fsync, 0),
    (libc::SYS_fdatasync, 0),
    (libc::SYS_fadvise64, 0),
    (libc::SYS_setxattr, libc::ENOTSUP),
    (libc::SYS_lsetxattr, libc::ENOTSUP),
    (libc::SYS_fsetxattr, libc::ENOTSUP),
    (libc::SYS_removexattr, libc::ENOTSUP),
    (libc::SYS_lremovexattr, libc::ENOTSUP),
    (libc::SYS_fremovexattr, libc::ENOTSUP),
];

/// Calls of init, which takes locks for its programs until it is killed.
const INIT_CALLS: [i64; 8] = [
    libc::SYS_recvmsg,
    libc::SYS_pidfd_getfd,
    libc::SYS_flock,
    libc::SYS_sendmsg,
    libc::SYS_close,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit_group,
];

/// Calls of a watcher, which adds watches of files for its sandbox's programs.
const WATCHER_CALLS: [i64; 12] = [
    libc::SYS_recvmsg,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_vm_readv,
    libc::SYS_openat2,
    libc::SYS_read,
    libc::SYS_fstat,
    libc::SYS_inotify_add_watch,
    libc::SYS_sendmsg,
    libc::SYS_close,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit_group,
];

/// Operations of `flock` that give a lock back. With a listener, a program makes no others itself.
const UNLOCKING: &[u64] = &[libc::LOCK_UN as u64, (libc::LOCK_UN | libc::LOCK_NB) as u64];

/// Returns true for a call that the filter answers itself, whatever the rules say.
fn is_answered(number: i64) -> bool {
    number == libc::SYS_setpriority || ANSWERED.iter().any(|(answered, _)| *answered == number)
}

/// Calls that a process makes after the last step of the lockdown and before the warden has the listener.
const HAND_OVER: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ioctl,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_sendmsg,
];

/// Returns true if the list allows a call: the filter's rules, implemented independently.
pub fn permits(profile: Profile, number: i64, arguments: [u64; 6]) -> bool {
    let Some(allow) = list(profile).find(|allow| allow.number == number) else { return false };
    // The filter compares the lower half.
    let value = |argument: u8| arguments.get(usize::from(argument)).copied().unwrap_or_default() & 0xffff_ffff;
    let lower = |values: &[u64], value: u64| values.iter().any(|allowed| allowed & 0xffff_ffff == value);
    match allow.when {
        When::Always => true,
        When::OneOf(argument, values) => lower(values, value(argument)),
        When::OneOfBut(argument, values, limited, flags, bits) => {
            lower(values, value(argument)) && (value(argument) != limited || value(flags) & bits == 0)
        }
        When::Without(argument, bits) => value(argument) & bits & 0xffff_ffff == 0,
        When::Masked(argument, mask, values) => lower(values, value(argument) & mask),
        When::Not(argument, refused) => value(argument) != refused,
        When::NotBut(argument, refused, pointer) => {
            value(argument) != refused || arguments.get(usize::from(pointer)) == Some(&0)
        }
        When::Socket(kinds) => {
            let is = |number: libc::c_int, value: u64| number as u64 == value;
            is(libc::AF_UNIX, value(0))
                || kinds.iter().any(|(family, kind, protocol)| {
                    is(*family, value(0)) && is(*kind, value(1) & SOCKET_TYPE) && is(*protocol, value(2))
                })
        }
        When::Option(levels) => levels.iter().any(|(level, names)| *level as u64 == value(1) && lower(names, value(2))),
    }
}

/// Returns the number of system calls that a profile allows on this architecture.
pub(crate) fn allowed(profile: Profile) -> usize {
    list(profile).count()
}

/// The names of the allowed calls, except those that come before a listener can observe them and those that the filter answers itself.
pub fn names(profile: Profile) -> impl Iterator<Item = &'static str> {
    let observable = move |allow: &&Allow| !HAND_OVER.contains(&allow.number) && !is_answered(allow.number);
    list(profile).filter(observable).map(|allow| allow.name.trim_start_matches("SYS_"))
}

/// The numbers of the allowed calls, for tests and comparisons.
pub fn numbers(profile: Profile) -> Vec<i64> {
    list(profile).map(|allow| allow.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_short() {
        // SECURITY.md names the number.
        assert!(allowed(Profile::Data) <= 153, "{}", allowed(Profile::Data));
        assert!(allowed(Profile::Services) <= allowed(Profile::Data) + 8, "{}", allowed(Profile::Services));
    }

    #[test]
    fn no_call_stands_twice() {
        for profile in [Profile::Data, Profile::Services] {
            let distinct: std::collections::BTreeSet<i64> = numbers(profile).into_iter().collect();
            assert_eq!(distinct.len(), allowed(profile));
        }
    }
}
