//! System calls without a safe wrapper. Every block says why it is needed and why it is sound.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;

use rustix::process::{Pid, Signal};

/// Bytes of the numbers that processes share: a page of any architecture.
const SHARED_BYTES: usize = 64 << 10;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Linux's `struct clone_args`, first version.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// Side of a fork.
pub(crate) enum Fork {
    /// In the child.
    Child,
    /// In the parent, with the child's pid.
    Parent(Pid),
}

/// Forks with namespace flags. The calling process must have exactly one thread, which the warden and its children guarantee.
pub(crate) fn fork(flags: libc::c_int) -> io::Result<Fork> {
    // With CLONE_PARENT Linux takes the exit signal of the caller and refuses another.
    let exit_signal = if flags & libc::CLONE_PARENT != 0 { 0 } else { libc::SIGCHLD };
    let args = CloneArgs { flags: flags as u64, exit_signal: exit_signal as u64, ..CloneArgs::default() };
    // JUSTIFICATION: glibc's fork takes no namespace flags. SAFETY: without CLONE_VM the child gets a copy of the address space and
    // continues here on its own copy of the stack; the process is single-threaded, so no lock is held by a thread that vanishes.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) })?;
    match Pid::from_raw(pid as i32) {
        None => Ok(Fork::Child),
        Some(pid) => Ok(Fork::Parent(pid)),
    }
}

/// Moves the calling process out of the namespaces named by `flags` into new ones.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // JUSTIFICATION: rustix marks this unsafe because of CLONE_FILES in threads. SAFETY: single-threaded, and only CLONE_NEW* are passed.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Sends a signal to the group that the process behind `pidfd` leads; Linux before 6.9 refuses.
pub(crate) fn signal_group(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;
    let (fd, number, nothing) = (pidfd.as_raw_fd(), signal.as_raw(), std::ptr::null::<libc::siginfo_t>());
    // JUSTIFICATION: the safe wrapper has no flags. SAFETY: the null pointer stands for the usual details of a signal; the descriptor is
    // open by its type.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, number, nothing, PIDFD_SIGNAL_PROCESS_GROUP) })
        .map(drop)
}

/// Joins the namespaces named by `flags` of the process behind `pidfd`.
pub(crate) fn setns(pidfd: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<()> {
    // JUSTIFICATION: the safe wrapper's flag type lacks the user namespace. SAFETY: no pointers; the descriptor is open by its type.
    check(unsafe { libc::setns(pidfd.as_raw_fd(), flags) }.into()).map(drop)
}

/// Linux's `struct mount_attr`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets attributes (`MOUNT_ATTR_*`) on the mount behind `tree` and, recursively, on what is mounted below it.
pub(crate) fn mount_setattr(tree: BorrowedFd<'_>, attr_set: u64) -> io::Result<()> {
    let attr = MountAttr { attr_set, ..MountAttr::default() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // JUSTIFICATION: not wrapped by rustix. SAFETY: the path is a valid empty C string, `attr` is live and its size is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Starts the loopback device of the calling process's network namespace.
pub(crate) fn raise_loopback() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let request = libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    // JUSTIFICATION: not wrapped. SAFETY: `request` lives for the call, which only reads it; the name ends with a zero.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) }.into()).map(drop)
}

/// Blocks SIGCHLD and returns a descriptor that becomes readable when a child ends.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    // JUSTIFICATION: signalfd and sigprocmask are not wrapped. SAFETY: `set` is initialised by sigemptyset before it is read; the
    // returned descriptor is fresh and owned by nobody else.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into())?;
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Resets the signals of a child process, whatever its parents and [`child_signals`] did: none is blocked or ignored.
pub(crate) fn reset_signals() -> io::Result<()> {
    // JUSTIFICATION: as above. SAFETY: `set` is initialised before use; SIG_DFL installs no handler, and is refused where it cannot be set.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        check(libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()).into())?;
        for number in 1..=libc::SIGRTMAX() {
            libc::signal(number, libc::SIG_DFL);
        }
    }
    Ok(())
}

/// Lets Linux reap children by itself: pid 1 of a sandbox has no use for their status.
pub(crate) fn ignore_children() {
    // JUSTIFICATION: not wrapped. SAFETY: SIG_IGN installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Makes a write to a socket whose other end is closed fail with an error instead of ending the process.
pub(crate) fn ignore_broken_pipes() {
    // JUSTIFICATION: not wrapped. SAFETY: SIG_IGN installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: RawFd) -> io::Result<()> {
    // JUSTIFICATION: std cannot close descriptors it does not own. SAFETY: callers are about to exec or to pause for ever, and use no
    // owned descriptor from `first` on afterwards.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }).map(drop)
}

/// Three numbers, at first 0, that this process shares with its forks.
pub(crate) fn shared_numbers() -> io::Result<&'static [AtomicU64; 3]> {
    let (read_and_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // JUSTIFICATION: rustix's wrapper is unsafe as well. SAFETY: Linux chooses a place that nothing else uses.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), SHARED_BYTES, read_and_write, shared, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // JUSTIFICATION: no safe code makes a reference of an address. SAFETY: the page is aligned, zeroed, large enough for three numbers that
    // are valid as zeros, and never unmapped; other processes access it atomically, too.
    Ok(unsafe { &*page.cast::<[AtomicU64; 3]>() })
}

/// Keeps the numbers out of the forks to come.
pub(crate) fn keep_from_forks(numbers: &'static [AtomicU64; 3]) -> io::Result<()> {
    let page = std::ptr::from_ref(numbers).cast_mut().cast::<libc::c_void>();
    // JUSTIFICATION: rustix's wrapper is unsafe as well. SAFETY: the page is that of `shared_numbers`, and this process keeps it.
    check(unsafe { libc::madvise(page, SHARED_BYTES, libc::MADV_DONTFORK) }.into()).map(drop)
}

/// Closes every descriptor but this one.
pub(crate) fn close_all_but(fd: BorrowedFd<'_>) -> io::Result<()> {
    let kept = fd.as_raw_fd();
    if kept > 0 {
        // JUSTIFICATION: as in `close_from`. SAFETY: callers are a fresh fork that uses no other owned descriptor afterwards.
        check(unsafe { libc::syscall(libc::SYS_close_range, 0, kept - 1, 0) })?;
    }
    close_from(kept + 1)
}

/// Marks every descriptor from `first` on as closed by exec.
pub(crate) fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // JUSTIFICATION: not wrapped. SAFETY: nothing is closed, only marked.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// Duplicates `fd` to the given number, to survive exec there.
pub(crate) fn place(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    if fd.as_raw_fd() == number {
        return rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).map_err(Into::into);
    }
    // JUSTIFICATION: std has no way to choose the number. SAFETY: the caller is about to exec; whatever held `number` is not used again.
    check(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

/// Ends the process at once, without running destructors or exit handlers of the copied address space.
pub(crate) fn exit(code: i32) -> ! {
    // JUSTIFICATION: std's exit runs handlers of a copied address space. SAFETY: no arguments but the code.
    unsafe { libc::_exit(code) }
}

/// Replaces the process.
pub(crate) fn exec(program: &CStr, arguments: &[&CStr], environment: &[&CStr]) -> io::Error {
    let pointers = |list: &[&CStr]| -> Vec<*const libc::c_char> {
        list.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // JUSTIFICATION: std's Command forks first. SAFETY: both arrays are null-terminated and point to live C strings.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Adds every capability of the process to its inheritable and ambient sets, so that exec keeps them for a user other than root.
pub(crate) fn keep_capabilities_on_exec() -> io::Result<()> {
    const PR_CAP_AMBIENT: libc::c_int = 47;
    const PR_CAP_AMBIENT_RAISE: libc::c_ulong = 2;
    let mut sets = rustix::thread::capabilities(None)?;
    sets.inheritable = sets.permitted;
    rustix::thread::set_capabilities(None, sets)?;
    for capability in 0..=last_capability() {
        if sets.permitted.bits() & (1 << capability) != 0 {
            // JUSTIFICATION: rustix knows only the capabilities of its own list. SAFETY: integers only.
            check(unsafe { libc::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) }.into())?;
        }
    }
    Ok(())
}

/// The highest capability that this Linux knows.
pub(crate) fn last_capability() -> libc::c_ulong {
    (0..64)
        .take_while(|capability: &libc::c_ulong| {
            // JUSTIFICATION: /proc may not be mounted here. SAFETY: integers only; an unknown capability answers EINVAL.
            unsafe { libc::prctl(libc::PR_CAPBSET_READ, *capability, 0, 0, 0) >= 0 }
        })
        .last()
        .unwrap_or(40)
}

/// The argument of `seccomp` for these instructions, which must outlive it.
pub(crate) fn filter_program(instructions: &[u8]) -> io::Result<libc::sock_fprog> {
    Ok(libc::sock_fprog {
        len: u16::try_from(instructions.len() / size_of::<libc::sock_filter>()).map_err(io::Error::other)?,
        filter: instructions.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    })
}

/// Filters the process's system calls from here on.
pub(crate) fn install_filter(instructions: &[u8]) -> io::Result<()> {
    let program = filter_program(instructions)?;
    // JUSTIFICATION: not wrapped. SAFETY: `program` and the instructions it points to live for the call, and Linux copies them
    // without minding their alignment.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) }).map(drop)
}

/// Linux's `struct seccomp_notif`: a system call, and the thread that makes it.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Notification {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    flags: u32,
    pub(crate) number: i32,
    architecture: u32,
    instruction: u64,
    pub(crate) arguments: [u64; 6],
}

/// Linux's `struct seccomp_notif_resp`.
#[repr(C)]
struct SeccompResponse {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// Returns true if Linux supports listeners of seccomp filters.
pub(crate) fn can_listen() -> bool {
    const SECCOMP_GET_ACTION_AVAIL: libc::c_uint = 2;
    const SECCOMP_RET_USER_NOTIF: u32 = 0x7fc0_0000;
    let action = SECCOMP_RET_USER_NOTIF;
    // JUSTIFICATION: not wrapped. SAFETY: `action` lives for the call, which only reads it.
    check(unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) }).is_ok()
}

/// Answer to a system call that its filter left to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallAnswer {
    /// Linux makes the call. Memory behind pointers can have changed since it was looked at.
    Proceeds,
    /// It was made, and returns this.
    Returns(i32),
    /// It fails with this error number.
    Fails(i32),
}

/// Takes one system call from a listener; `None` if its caller is gone. Blocks when there is no call.
pub(crate) fn receive_call(listener: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
    const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong = 0xc050_2100;
    const { assert!(size_of::<Notification>() == 0x50) };
    let mut call = Notification::default();
    // JUSTIFICATION: not wrapped. SAFETY: `call` is zeroed, as Linux demands, and has the size that the request's number says.
    let received = unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut call) };
    match check(received.into()) {
        Ok(_) => Ok(Some(call)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Answers the call of this number; does nothing if its caller is gone.
pub(crate) fn answer_call(listener: BorrowedFd<'_>, id: u64, answer: CallAnswer) -> io::Result<()> {
    const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;
    const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong = 0xc018_2101;
    const { assert!(size_of::<SeccompResponse>() == 0x18) };
    let (value, error, flags) = match answer {
        CallAnswer::Proceeds => (0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE),
        CallAnswer::Returns(value) => (value.into(), 0, 0),
        CallAnswer::Fails(error) => (0, -error, 0),
    };
    let response = SeccompResponse { id, value, error, flags };
    // JUSTIFICATION: not wrapped. SAFETY: `response` lives for the call, which only reads it.
    let sent = unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND as _, &raw const response) };
    match check(sent.into()) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns true if the caller of the call of this number still waits for the answer.
pub(crate) fn is_call_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    const SECCOMP_IOCTL_NOTIF_ID_VALID: libc::c_ulong = 0x4008_2102;
    // JUSTIFICATION: not wrapped. SAFETY: `id` lives for the call, which only reads it.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_ID_VALID as _, &raw const id) }.into()).is_ok()
}

/// Returns the exit status of the process behind `pidfd`, even of one that was no child of the caller. `None` before Linux 6.15, which
/// shows it.
pub(crate) fn exit_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    /// Linux's `struct pidfd_info`, first version.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        status: i32,
    }
    const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    const { assert!(size_of::<Info>() == 0x40) };
    let mut info = Info { mask: PIDFD_INFO_EXIT, ..Info::default() };
    // JUSTIFICATION: not wrapped. SAFETY: `info` has the size that the request's number says; Linux writes no more than that.
    let asked = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO as _, &raw mut info) };
    (check(asked.into()).is_ok() && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.status)
}

/// Reads memory of a process, from this address of its own. Reading less than was asked for is no error.
pub(crate) fn read_memory(process: Pid, address: usize, into: &mut [u8]) -> io::Result<usize> {
    let ours = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let theirs = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: into.len() };
    let process = process.as_raw_nonzero().get();
    // JUSTIFICATION: not wrapped. SAFETY: Linux writes only to `into`, which lives for the call, and no more than its length; the other
    // address is the other process's, and an error where there is nothing.
    let read = unsafe { libc::process_vm_readv(process, &raw const ours, 1, &raw const theirs, 1, 0) };
    check(read as libc::c_long).map(|count| count as usize)
}

/// Has Linux check this thread's access to files by another user and group, and nothing else.
pub(crate) fn access_files_as(user: u32, group: u32) -> io::Result<()> {
    // JUSTIFICATION: not wrapped. SAFETY: integers only. Neither call can fail; each returns the id before, and changes nothing for one
    // that does not exist.
    let now = unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
        [libc::setfsgid(libc::gid_t::MAX), libc::setfsuid(libc::uid_t::MAX)]
    };
    let wanted = [group, user].map(u32::cast_signed);
    if now == wanted { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// A descriptor of a process that has run the lockdown, by the number that the lockdown gave it.
pub(crate) fn descriptor(number: RawFd) -> BorrowedFd<'static> {
    // JUSTIFICATION: the lockdown chooses numbers, by `dup3`. SAFETY: it has put a descriptor there, which nothing closes before the exec.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Takes ownership of a descriptor that a system call of the lockdown returned.
pub(crate) fn take(number: RawFd) -> OwnedFd {
    // JUSTIFICATION: the lockdown is data, and so is what it returns. SAFETY: the descriptor is new and nobody else's.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Runs one raw system call with integer arguments.
pub(crate) fn raw(number: i64, arguments: [i64; 6]) -> io::Result<i64> {
    let [a, b, c, d, e, f] = arguments;
    // JUSTIFICATION: the lockdown is data (see `lockdown`). SAFETY: the callers are in `lockdown`, which keeps every buffer that an
    // argument points to alive for the call.
    check(unsafe { libc::syscall(number, a, b, c, d, e, f) })
}

/// Makes this process's allocator return blocks of a megabyte or more to the host as soon as they are freed. By default glibc keeps up to
/// 32 MB of them in each of its arenas, 8 for each processor.
pub fn give_back_large_memory() {
    #[cfg(target_env = "gnu")]
    // JUSTIFICATION: not wrapped. SAFETY: two integers; glibc locks what it changes. It refuses nothing of this size.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

/// Returns what this process has freed to the host. By default glibc keeps blocks of less than a megabyte wherever one above them is in
/// use.
pub fn give_back_freed_memory() {
    #[cfg(target_env = "gnu")]
    // JUSTIFICATION: not wrapped. SAFETY: one integer; glibc locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has Linux, from version 6.16 on, refuse descriptors that are sent to a socket: whoever receives one closes its last copy, wanted or not,
/// and that may take long. Returns false on an older Linux.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let none: libc::c_int = 0;
    // JUSTIFICATION: not wrapped. SAFETY: the value is an integer that outlives the call, and four bytes are its size.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const none).cast(), 4) == 0 }
}
