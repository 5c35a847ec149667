//! The last steps of every process in a sandbox, in order, as data.
//!
//! Kernels, the zygote's children, run the list with raw system calls in `zygote.py`; commands, the spawner's children, run it by [`run`].
//! A step that fails ends the process with the step's name: nothing is ever skipped. The zygote and the spawner themselves go through
//! [`inherited`] before their first child: the bounding set, which none of its children may gain from, and limits that are the same for
//! all. The order matters:
//!
//! 0. in a sandbox that already has processes: its memory is closed to them, until Landlock does that;
//! 1. the cgroup, before anything can be spent outside it;
//! 2. the sandbox's namespaces;
//! 3. descriptors: only the process's own remain;
//! 4. resource limits, while they may still be set;
//! 5. ids, then the remaining capabilities;
//! 6. no_new_privs, which the next two need;
//! 7. the parent-death signal, after the ids because changing ids clears it;
//! 8. Landlock, then seccomp, which forbids all of the above;
//! 9. the listener goes to the warden, then the limit of open files, which bounds what may be handed over.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::message::{JailLimits, Profile};
use crate::{Step, StepError, sys, syscalls};

/// One system call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockdownStep {
    /// Its purpose; named when it fails.
    pub name: String,
    /// The system call's number on this architecture.
    pub number: i64,
    /// Its arguments.
    pub arguments: Vec<Argument>,
    /// The descriptor that it returns, if a later step needs it.
    pub returns: Option<Descriptor>,
}

/// An argument of a system call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Argument {
    /// An integer.
    #[serde(rename = "int")]
    Int(i64),
    /// The address of these bytes.
    #[serde(rename = "bytes")]
    Bytes(Vec<u8>),
    /// A descriptor that came with the request, by its place.
    #[serde(rename = "fd")]
    Descriptor(Descriptor),
    /// The address of a `struct sock_fprog` for one of the filters that the fork server received at its start.
    #[serde(rename = "filter")]
    Filter(usize),
}

/// The descriptors a process gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Descriptor {
    /// The pidfd of the sandbox's init.
    Init,
    /// The Landlock ruleset.
    Landlock,
    /// The read end of the pipe from the host.
    FromHost,
    /// The write end of the pipe to the host.
    ToHost,
    /// The socket to the warden, closed before any code of the user runs.
    Warden,
    /// The socket by which the warden wakes a checkpoint.
    Checkpoint,
    /// The listener on which the warden receives refused system calls.
    Listener,
    /// The write end of the output pipe.
    Stdout,
    /// The write end of the error pipe.
    Stderr,
    /// `/dev/null`, or what a command reads.
    Stdin,
    /// The way into the cgroup, by its tree.
    Cgroup(usize),
}

/// Descriptor on which the process hears the host after the lockdown.
pub(crate) const FROM_HOST_FD: RawFd = 3;
/// Descriptor on which it speaks to the host.
pub(crate) const TO_HOST_FD: RawFd = 4;
/// The descriptor on which the warden wakes the checkpoint of a first kernel.
pub(crate) const CHECKPOINT_FD: RawFd = 5;
/// The descriptor on which the process greets the warden after the lockdown.
pub(crate) const WARDEN_FD: RawFd = 6;
/// Descriptor that holds the Landlock ruleset until it is applied.
const LANDLOCK_FD: RawFd = 7;
/// The least number of a received descriptor: above all that the steps choose.
pub(crate) const FIRST_FREE_FD: RawFd = 10;
/// Processes of all sandboxes together, where they share a user id.
const SHARED_PROCESSES: u64 = 4096;
/// Pending signals of one user id. The user namespace, and so all sandboxes together, has one limit: the host's.
const PENDING_SIGNALS: u64 = 1024;
/// Inside the sandbox, where the workspace is and programs start.
const START_DIRECTORY: &[u8] = b"/mnt/data\0";

/// User and group of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Identity {
    /// A uid and gid of its own inside the user namespace.
    Own(u32),
    /// The only id; there is no other to change to.
    Only,
}

/// Treatment of a system call that is not allowed. It fails with EPERM either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalHandling {
    /// By the filter alone.
    Silent,
    /// By the warden, which records it, has init take locks for `flock`, and has a watcher watch files for `inotify_add_watch`.
    Reported,
    /// By the warden, which records every call, allowed or not. Slow; it shows the programs that need each allowed call.
    Observed,
}

/// The place of a filter among [`Filters`].
fn filter_of(profile: Profile, refusal: RefusalHandling) -> usize {
    match (refusal, profile) {
        (RefusalHandling::Silent, Profile::Data) => 0,
        (RefusalHandling::Reported, Profile::Data) => 1,
        (RefusalHandling::Silent, Profile::Services) => 2,
        (RefusalHandling::Reported, Profile::Services) => 3,
        (RefusalHandling::Observed, Profile::Data | Profile::Services) => 4,
    }
}

/// Parameters of the list of steps.
pub(crate) struct Lockdown<'a> {
    pub(crate) identity: Identity,
    pub(crate) limits: &'a JailLimits,
    pub(crate) cgroups: usize,
    pub(crate) landlock: bool,
    pub(crate) refusal: RefusalHandling,
    /// True if the sandbox may already have other processes.
    pub(crate) joins_others: bool,
    /// True if the process becomes a kernel.
    pub(crate) is_kernel: bool,
    /// True if it may have checkpoints.
    pub(crate) has_checkpoints: bool,
    /// True if its stdin is a terminal, which becomes its controlling terminal.
    pub(crate) has_terminal: bool,
    pub(crate) profile: Profile,
}

impl Lockdown<'_> {
    /// The steps, in order.
    pub(crate) fn steps(&self) -> Vec<LockdownStep> {
        use Argument::{Bytes, Descriptor as Fd, Filter, Int};
        let mut steps = Vec::with_capacity(32);
        let mut step = |name: &str, number: libc::c_long, arguments: Vec<Argument>| {
            steps.push(LockdownStep::new(name, number, arguments));
        };
        let number = |descriptor: RawFd| Int(descriptor.into());
        let prctl = |option: i64, value: i64| vec![Int(option), Int(value), Int(0), Int(0), Int(0)];
        if self.joins_others {
            // Other processes see it from its first moment. Without Landlock and with the same user id, they could access its memory
            // between its last capability and its filter. An exec undoes this.
            step("keep its memory from others", libc::SYS_prctl, prctl(libc::PR_SET_DUMPABLE.into(), 0));
        }
        for place in 0..self.cgroups {
            step("join the cgroup", libc::SYS_write, vec![Fd(Descriptor::Cgroup(place)), Bytes(b"0".to_vec()), Int(1)]);
        }
        let namespaces =
            libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWNET | libc::CLONE_NEWCGROUP;
        step("join the namespaces", libc::SYS_setns, vec![Fd(Descriptor::Init), Int(namespaces.into())]);
        step("enter the workspace", libc::SYS_chdir, vec![Bytes(START_DIRECTORY.to_vec())]);

        step("replace stdin", libc::SYS_dup3, vec![Fd(Descriptor::Stdin), Int(0), Int(0)]);
        step("replace stdout", libc::SYS_dup3, vec![Fd(Descriptor::Stdout), Int(1), Int(0)]);
        step("replace stderr", libc::SYS_dup3, vec![Fd(Descriptor::Stderr), Int(2), Int(0)]);
        let cloexec = i64::from(libc::O_CLOEXEC);
        let place = |descriptor, place| vec![Fd(descriptor), number(place), Int(cloexec)];
        step("place the pipe from the host", libc::SYS_dup3, place(Descriptor::FromHost, FROM_HOST_FD));
        step("place the pipe to the host", libc::SYS_dup3, place(Descriptor::ToHost, TO_HOST_FD));
        step("place the warden's socket", libc::SYS_dup3, place(Descriptor::Warden, WARDEN_FD));
        if self.has_checkpoints {
            step("place the checkpoint's socket", libc::SYS_dup3, place(Descriptor::Checkpoint, CHECKPOINT_FD));
        } else {
            step("leave its place empty", libc::SYS_close, vec![number(CHECKPOINT_FD)]);
        }
        if self.landlock {
            step("place the ruleset", libc::SYS_dup3, place(Descriptor::Landlock, LANDLOCK_FD));
        }
        let first_foreign = if self.landlock { LANDLOCK_FD + 1 } else { LANDLOCK_FD };
        step(
            "close what is not its own",
            libc::SYS_close_range,
            vec![number(first_foreign), Int(u32::MAX.into()), Int(0)],
        );

        // Counted for each user id: a second limit behind the control group where the sandbox has its own id, and a bound on fork bombs
        // where all sandboxes share one.
        let processes = match self.identity {
            Identity::Own(_) => self.limits.processes.into(),
            Identity::Only => SHARED_PROCESSES,
        };
        step("limit the processes", libc::SYS_prlimit64, limiting(libc::RLIMIT_NPROC.into(), processes));
        step(
            "limit the size of files",
            libc::SYS_prlimit64,
            limiting(libc::RLIMIT_FSIZE.into(), self.limits.file_size),
        );

        if let Identity::Own(id) = self.identity {
            let id = Int(id.into());
            step("drop the groups", libc::SYS_setgroups, vec![Int(0), Int(0)]);
            step("change the group", libc::SYS_setresgid, vec![id.clone(), id.clone(), id.clone()]);
            step("change the user", libc::SYS_setresuid, vec![id.clone(), id.clone(), id]);
        }
        const PR_CAP_AMBIENT: i64 = 47;
        const PR_CAP_AMBIENT_CLEAR_ALL: i64 = 4;
        let clear_ambient = vec![Int(PR_CAP_AMBIENT), Int(PR_CAP_AMBIENT_CLEAR_ALL), Int(0), Int(0), Int(0)];
        step("drop the ambient capabilities", libc::SYS_prctl, clear_ambient);
        // struct __user_cap_header_struct of version 3 and pid 0, then two empty __user_cap_data_struct.
        let mut header = 0x2008_0522_u32.to_ne_bytes().to_vec();
        header.extend([0; 4]);
        step("drop the capabilities", libc::SYS_capset, vec![Bytes(header), Bytes(vec![0; 24])]);

        // The warden's process group and session reach across pid namespaces, and so would signals and priorities for a whole group.
        step("lead a session of its own", libc::SYS_setsid, vec![]);
        if self.has_terminal {
            step("control the terminal", libc::SYS_ioctl, vec![Int(0), Int(libc::TIOCSCTTY as i64), Int(0)]);
        }
        if !self.joins_others {
            // Changing ids made the process undumpable; its /proc/self then belongs to root, and it cannot read it.
            step("own its /proc/self", libc::SYS_prctl, prctl(libc::PR_SET_DUMPABLE.into(), 1));
        }
        step("gain no privileges by exec", libc::SYS_prctl, prctl(libc::PR_SET_NO_NEW_PRIVS.into(), 1));
        step("die with the warden", libc::SYS_prctl, prctl(libc::PR_SET_PDEATHSIG.into(), libc::SIGKILL.into()));
        if self.landlock {
            step("apply Landlock", libc::SYS_landlock_restrict_self, vec![number(LANDLOCK_FD), Int(0)]);
            step("close the ruleset", libc::SYS_close, vec![number(LANDLOCK_FD)]);
            if self.joins_others && self.is_kernel {
                // From here on its own Landlock domain protects its memory. Without Landlock it stays undumpable.
                step("own its /proc/self", libc::SYS_prctl, prctl(libc::PR_SET_DUMPABLE.into(), 1));
            }
        }
        const SECCOMP_SET_MODE_FILTER: i64 = 1;
        const SECCOMP_FILTER_FLAG_NEW_LISTENER: i64 = 8;
        let apply = |flags: i64, filter: usize| vec![Int(SECCOMP_SET_MODE_FILTER), Int(flags), Filter(filter)];
        let filter = filter_of(self.profile, self.refusal);
        match self.refusal {
            RefusalHandling::Silent => step("apply seccomp", libc::SYS_seccomp, apply(0, filter)),
            RefusalHandling::Reported | RefusalHandling::Observed => {
                step("apply seccomp", libc::SYS_seccomp, apply(SECCOMP_FILTER_FLAG_NEW_LISTENER, filter));
                if let Some(last) = steps.last_mut() {
                    last.returns = Some(Descriptor::Listener);
                }
            }
        }
        // Last, because the limit also bounds the descriptors in flight, such as the listener, and those of all sandboxes with the same
        // user id count together.
        let open_files = limiting(libc::RLIMIT_NOFILE.into(), self.limits.open_files.into());
        steps.push(LockdownStep::new("limit the open files", libc::SYS_prlimit64, open_files));
        steps
    }
}

/// The steps that a fork server runs itself, once for all its children.
pub(crate) fn inherited() -> Vec<LockdownStep> {
    use Argument::Int;
    let drop = |capability| vec![Int(libc::PR_CAPBSET_DROP.into()), Int(capability), Int(0), Int(0), Int(0)];
    let drop = |capability| LockdownStep::new("drop a capability for good", libc::SYS_prctl, drop(capability));
    let limit = |(name, resource, limit): (&str, libc::c_uint, u64)| {
        LockdownStep::new(&format!("limit {name}"), libc::SYS_prlimit64, limiting(resource.into(), limit))
    };
    let limits = [
        // No core file, and no crash handler of the host: with a limit of 1, Linux does not even start the handler of a piped core pattern;
        // with 0 it would. The seccomp filter keeps programs from changing it.
        ("core files", libc::RLIMIT_CORE, 1),
        ("locked memory", libc::RLIMIT_MEMLOCK, 64 << 10),
        ("message queues", libc::RLIMIT_MSGQUEUE, 0),
        ("pending signals", libc::RLIMIT_SIGPENDING, PENDING_SIGNALS),
        ("the priority in real time", libc::RLIMIT_RTPRIO, 0),
        // Users of the host may be allowed to raise their priority.
        ("the priority", libc::RLIMIT_NICE, 0),
    ];
    (0..=sys::last_capability() as i64).map(drop).chain(limits.map(limit)).collect()
}

impl LockdownStep {
    fn new(name: &str, number: libc::c_long, arguments: Vec<Argument>) -> Self {
        Self { name: name.to_owned(), number, arguments, returns: None }
    }
}

/// The arguments of `prlimit64` that lower a limit of the calling process, soft and hard.
fn limiting(resource: i64, limit: u64) -> Vec<Argument> {
    let bytes = [limit.to_ne_bytes(), limit.to_ne_bytes()].concat();
    vec![Argument::Int(0), Argument::Int(resource), Argument::Bytes(bytes), Argument::Int(0)]
}

/// The compiled filters that [`Argument::Filter`] refers to, as the bytes of their instructions.
#[derive(Debug, Serialize)]
pub(crate) struct Filters(pub(crate) [Vec<u8>; 5]);

impl Filters {
    /// Compiles them.
    pub(crate) fn compile() -> Result<Self, StepError> {
        let data = syscalls::filter(Profile::Data).map_err(failed)?;
        let services = syscalls::filter(Profile::Services).map_err(failed)?;
        let reporting = syscalls::reporting(Profile::Data).map_err(failed)?;
        let reporting_services = syscalls::reporting(Profile::Services).map_err(failed)?;
        let observing = syscalls::observing().map_err(failed)?;
        let filters = [data, reporting, services, reporting_services, observing];
        Ok(Self(filters.map(|program| program.iter().flat_map(bytes_of).collect())))
    }
}

/// The descriptors that came with a request and with [`NamespacesReady`](crate::fork_server::NamespacesReady), by purpose.
#[derive(Debug, Default)]
pub(crate) struct ChildDescriptors {
    /// Init, the pipe from the host, the pipe to the host, stdin, stdout, stderr, the warden's socket: those of a command.
    first: Vec<OwnedFd>,
    landlock: Option<OwnedFd>,
    cgroups: Vec<OwnedFd>,
}

impl ChildDescriptors {
    /// Those of a request for a command.
    pub(crate) fn of_command(first: Vec<OwnedFd>) -> Self {
        Self { first, ..Self::default() }
    }

    /// Adds the descriptors that come with [`NamespacesReady`](crate::fork_server::NamespacesReady).
    pub(crate) fn add_late(&mut self, late: Vec<OwnedFd>, landlock: bool) {
        let mut late = late.into_iter();
        self.landlock = if landlock { late.next() } else { None };
        self.cgroups = late.collect();
    }

    /// The descriptor for this purpose.
    pub(crate) fn get(&self, descriptor: Descriptor) -> Result<BorrowedFd<'_>, StepError> {
        let found = match descriptor {
            Descriptor::Init => self.first.first(),
            Descriptor::FromHost => self.first.get(1),
            Descriptor::ToHost => self.first.get(2),
            Descriptor::Stdin => self.first.get(3),
            Descriptor::Stdout => self.first.get(4),
            Descriptor::Stderr => self.first.get(5),
            Descriptor::Warden => self.first.get(6),
            Descriptor::Landlock => self.landlock.as_ref(),
            Descriptor::Cgroup(place) => self.cgroups.get(place),
            Descriptor::Listener | Descriptor::Checkpoint => None,
        };
        found.map(AsFd::as_fd).ok_or_else(|| {
            let step = format!("find the descriptor {descriptor:?}");
            StepError { step, source: std::io::ErrorKind::NotFound.into() }
        })
    }
}

/// Runs the steps in the calling process. `keep` is called with the number of the descriptor that a step returned, if one does, before the
/// next step. Returns true if it was called.
pub(crate) fn run(
    steps: &[LockdownStep],
    descriptors: &ChildDescriptors,
    filters: &Filters,
    mut keep: impl FnMut(RawFd) -> Result<(), StepError>,
) -> Result<bool, StepError> {
    let mut is_kept = false;
    for LockdownStep { name, number, arguments, returns } in steps {
        // The programs must live until the call returns.
        let mut programs = Vec::with_capacity(1);
        let mut values = [0; 6];
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = match argument {
                Argument::Int(value) => *value,
                Argument::Bytes(bytes) => bytes.as_ptr() as i64,
                Argument::Descriptor(descriptor) => descriptors.get(*descriptor)?.as_raw_fd().into(),
                Argument::Filter(place) => {
                    let filter = filters.0.get(*place).map(Vec::as_slice).unwrap_or_default();
                    programs.push(Box::new(sys::filter_program(filter).step(name.clone())?));
                    programs.last().map_or(0, |program| &raw const **program as i64)
                }
            };
        }
        let result = sys::raw(*number, values).step(name.clone())?;
        if returns.is_some() {
            keep(result as RawFd)?;
            is_kept = true;
        }
    }
    Ok(is_kept)
}

/// The filter of a sandbox's init.
pub(crate) fn init_filter() -> Result<Vec<u8>, StepError> {
    Ok(syscalls::of_init().map_err(failed)?.iter().flat_map(bytes_of).collect())
}

/// The filter of a sandbox's watcher.
pub(crate) fn watcher_filter() -> Result<Vec<u8>, StepError> {
    Ok(syscalls::of_watcher().map_err(failed)?.iter().flat_map(bytes_of).collect())
}

fn failed(reason: String) -> StepError {
    StepError { step: "compile the seccomp filters".into(), source: std::io::Error::other(reason) }
}

fn bytes_of(instruction: &seccompiler::sock_filter) -> Vec<u8> {
    let mut bytes = instruction.code.to_ne_bytes().to_vec();
    bytes.extend([instruction.jt, instruction.jf]);
    bytes.extend(instruction.k.to_ne_bytes());
    bytes
}
