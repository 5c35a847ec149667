//! Control groups, both versions: limits of memory, processes and processor time, and the usage so far.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use aludel_ignore::Ignore;

use crate::message::{CgroupUsage, JailLimits, Profile};

/// The available controllers and their mount points. On version 2 all share one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    /// One tree for each controller. A missing one is `None` and its limit is not enforced.
    V1 {
        /// The process's own group in the memory controller's tree.
        memory: Option<PathBuf>,
        /// The same for `pids`.
        pids: Option<PathBuf>,
        /// The same for `cpu`.
        cpu: Option<PathBuf>,
    },
    /// One tree; the path is where groups may be made.
    V2 {
        /// The directory in which our groups go.
        parent: PathBuf,
        /// The controllers that can be used there.
        controllers: Vec<String>,
    },
    /// Nothing usable.
    Absent,
}

/// Divisor of the memory limit for socket buffers, where Linux counts them apart from other memory (version 1). All connections of a host
/// may hold a tenth of its memory together.
const SOCKETS_SHARE: u64 = 32;

/// Init is a member of the group. The checkpoint is not counted: there is none in the first cell, and `RLIMIT_NPROC` of a sandbox with its
/// own user id includes it.
const OUR_PROCESSES: u32 = 1;

/// Group of version 2 into which the processes of a delegated group move, aludel's own among them.
const ASIDE: &str = "aludel-host";
/// Attempts to find processes that have to be moved.
const MOVES: usize = 20;
/// Memory that a sandbox may have beyond its limit while its checkpoint takes over.
const WAKING_MEMORY: u64 = 32 << 20;

const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

impl Hierarchy {
    /// Finds the control groups that this process may use. Reads `/proc/self`, so it must run before that is mounted anew.
    pub fn detect() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::v2(&mounts, &own).or_else(|| Self::v1(&mounts, &own)).unwrap_or(Self::Absent)
    }

    fn v1(mounts: &str, own: &str) -> Option<Self> {
        let find = |controller: &str| {
            let mount = mounts.lines().filter_map(mount_of).find(|(kind, options, _)| {
                *kind == "cgroup" && options.split(',').any(|option| option == controller)
            })?;
            let group = own.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':');
                let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                controllers.split(',').any(|name| name == controller).then_some(path)
            })?;
            let own = Path::new(mount.2).join(group.trim_start_matches('/'));
            // In a container the path is the host's and may not exist below the mount.
            [own, PathBuf::from(mount.2)].into_iter().find(|path| is_writable(path))
        };
        let (memory, pids, cpu) = (find("memory"), find("pids"), find("cpu"));
        (memory.is_some() || pids.is_some() || cpu.is_some()).then_some(Self::V1 { memory, pids, cpu })
    }

    fn v2(mounts: &str, own: &str) -> Option<Self> {
        let (_, _, mount) = mounts.lines().filter_map(mount_of).find(|(kind, ..)| *kind == "cgroup2")?;
        let group = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let own = Path::new(mount).join(group.trim_start_matches('/'));
        // A delegated group may be divided once its processes have moved. Without one, root uses its own group or the tree around that.
        let given = if own.ends_with(ASIDE) {
            own.parent().map(Path::to_path_buf)
        } else {
            is_handed_over(&own, Path::new(mount)).then(|| own.clone())
        };
        let candidates = [given.clone(), own.parent().map(Path::to_path_buf), Some(PathBuf::from(mount))];
        let mut usable: Vec<_> = candidates
            .into_iter()
            .flatten()
            .filter(|path| path.starts_with(mount) && is_writable(path))
            .map(|parent| (usable_controllers(&parent), parent))
            .filter(|(controllers, _)| controllers.iter().any(|name| name == "memory"))
            .collect();
        // A delegated group comes first. Then the group with the most controllers, and of those the nearest: the sort is stable.
        usable.sort_by_key(|(controllers, path)| (given.as_ref() != Some(path), std::cmp::Reverse(controllers.len())));
        usable.into_iter().next().map(|(controllers, parent)| Self::V2 { parent, controllers })
    }

    /// Moves the processes of a delegated group, this process's parent among them, into a child group: a group with processes may not pass
    /// controllers to its children. Must run where process ids are the host's.
    pub(crate) fn make_room(&self) -> io::Result<()> {
        let Self::V2 { parent, .. } = self else { return Ok(()) };
        if is_top(parent) {
            return Ok(());
        }
        let aside = parent.join(ASIDE);
        // A process that forks during the move leaves a child behind.
        for _ in 0..MOVES {
            let processes = read(parent, "cgroup.procs")?;
            if processes.is_empty() {
                return Ok(());
            }
            make_group(&aside)?;
            for process in processes.lines() {
                match fs::write(aside.join("cgroup.procs"), process) {
                    // It has ended since.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(named(&error, &aside)),
                    Ok(()) => {}
                }
            }
        }
        Err(io::Error::other(format!("{}: more and more processes come into the group", parent.display())))
    }

    /// The limits that cannot be enforced here.
    pub fn missing(&self) -> Vec<&'static str> {
        CONTROLLERS
            .into_iter()
            .filter(|controller| match self {
                Self::V1 { memory, pids, cpu } => match *controller {
                    "memory" => memory.is_none(),
                    "pids" => pids.is_none(),
                    _ => cpu.is_none(),
                },
                Self::V2 { controllers, .. } => !controllers.iter().any(|name| name == controller),
                Self::Absent => true,
            })
            .collect()
    }

    /// A short description for people.
    pub fn describe(&self) -> String {
        match self {
            Self::V1 { .. } => "cgroup v1".into(),
            Self::V2 { .. } => "cgroup v2".into(),
            Self::Absent => "no usable cgroup".into(),
        }
    }

    /// The directories in which groups are made, one for each tree.
    pub(crate) fn parents(&self) -> Vec<PathBuf> {
        match self {
            Self::V1 { memory, pids, cpu } => [memory, pids, cpu].into_iter().flatten().cloned().collect(),
            Self::V2 { parent, .. } => vec![parent.clone()],
            Self::Absent => Vec::new(),
        }
    }

    /// Makes a group of the given name in every tree and returns the hierarchy below it.
    pub fn descend(&self, name: &str) -> io::Result<Self> {
        for parent in self.parents() {
            make_group(&parent.join(name))?;
        }
        let below = |parent: &Option<PathBuf>| parent.as_ref().map(|parent| parent.join(name));
        Ok(match self {
            Self::V1 { memory, pids, cpu } => Self::V1 { memory: below(memory), pids: below(pids), cpu: below(cpu) },
            Self::V2 { parent, controllers } => {
                let parent = parent.join(name);
                let controllers = enable_each(&parent, controllers)?;
                // It sets no limit. Without it, /proc/self/cpuset shows the depth of a sandbox in the host's tree. Most ordinary users are
                // not given this controller.
                enable(&parent, &["cpuset".to_owned()]).ignore("most ordinary users are not given this controller");
                Self::V2 { parent, controllers }
            }
            Self::Absent => Self::Absent,
        })
    }

    /// The directories that [`Hierarchy::descend`] makes for a name, to be removed with [`remove`].
    pub(crate) fn directories(&self, name: &str) -> Vec<PathBuf> {
        self.parents().into_iter().map(|parent| parent.join(name)).collect()
    }
}

/// A group's share of busy processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CpuShare {
    /// Eight times the default.
    Boosted,
    /// The default of Linux.
    Normal,
    /// A sixteenth of that.
    Background,
}

/// One sandbox's group.
#[derive(Debug)]
pub(crate) struct Cgroup {
    hierarchy: Hierarchy,
    limit: u64,
}

impl Cgroup {
    /// Makes the group and sets its limits, before any process is in it.
    pub(crate) fn create(parent: &Hierarchy, name: &str, limits: &JailLimits, profile: Profile) -> io::Result<Self> {
        let group = Self { hierarchy: parent.leaf(name)?, limit: limits.memory };
        let set = group.set_limits(limits).and_then(|()| match profile {
            Profile::Data => Ok(()),
            Profile::Services => group.limit_sockets(limits),
        });
        if let Err(error) = set {
            group.remove().ignore("the first error is the one to report");
            return Err(error);
        }
        Ok(group)
    }

    fn set_limits(&self, limits: &JailLimits) -> io::Result<()> {
        let (quota, period) = limits.quota();
        let processes = (limits.processes + OUR_PROCESSES).to_string();
        match &self.hierarchy {
            Hierarchy::V1 { memory, pids, cpu } => {
                if let Some(memory) = memory {
                    write(memory, "memory.limit_in_bytes", &limits.memory.to_string())?;
                    // Present only where swap is accounted; without it the limit above does not bound swap.
                    write_if_present(memory, "memory.memsw.limit_in_bytes", &limits.memory.to_string())?;
                    write_if_present(memory, "memory.swappiness", "0")?;
                }
                if let Some(pids) = pids {
                    write(pids, "pids.max", &processes)?;
                }
                if let Some(cpu) = cpu {
                    write_if_present(cpu, "cpu.cfs_period_us", &period.to_string())?;
                    write_if_present(cpu, "cpu.cfs_quota_us", &quota.to_string())?;
                }
            }
            Hierarchy::V2 { parent, controllers } => {
                write(parent, "memory.max", &limits.memory.to_string())?;
                write_if_present(parent, "memory.swap.max", "0")?;
                if controllers.iter().any(|name| name == "pids") {
                    write(parent, "pids.max", &processes)?;
                }
                if controllers.iter().any(|name| name == "cpu") {
                    write(parent, "cpu.max", &format!("{quota} {period}"))?;
                }
            }
            Hierarchy::Absent => {}
        }
        Ok(())
    }

    /// Lets the sandbox have [`WAKING_MEMORY`] beyond its limit while its checkpoint takes over, or no longer. What the ended programs had
    /// counts until the system has taken it back, and the checkpoint would be ended in their place.
    pub(crate) fn allow_for_waking(&self, is_waking: bool) -> io::Result<()> {
        let limit = (self.limit + if is_waking { WAKING_MEMORY } else { 0 }).to_string();
        match &self.hierarchy {
            Hierarchy::V1 { memory: Some(memory), .. } => {
                // The second limit is never below the first.
                let mut files = ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"];
                if !is_waking {
                    files.reverse();
                }
                files.into_iter().try_for_each(|file| write_if_present(memory, file, &limit))
            }
            Hierarchy::V2 { parent, .. } => write(parent, "memory.max", &limit),
            Hierarchy::V1 { memory: None, .. } | Hierarchy::Absent => Ok(()),
        }
    }

    /// Limits the buffers of TCP and UDP sockets. Version 2 counts them as memory; version 1 has a limit of their own, if any.
    fn limit_sockets(&self, limits: &JailLimits) -> io::Result<()> {
        match &self.hierarchy {
            Hierarchy::V1 { memory: Some(memory), .. } => {
                write(memory, "memory.kmem.tcp.limit_in_bytes", &(limits.memory / SOCKETS_SHARE).to_string())
            }
            Hierarchy::V1 { memory: None, .. } | Hierarchy::V2 { .. } | Hierarchy::Absent => Ok(()),
        }
    }

    /// Sets the group's share beside other groups. It has an effect only when processors are short.
    pub(crate) fn set_share(&self, share: CpuShare) -> io::Result<()> {
        match (&self.hierarchy, share) {
            (Hierarchy::V1 { cpu: Some(cpu), .. }, CpuShare::Boosted) => write_if_present(cpu, "cpu.shares", "8192"),
            (Hierarchy::V1 { cpu: Some(cpu), .. }, CpuShare::Normal) => write_if_present(cpu, "cpu.shares", "1024"),
            (Hierarchy::V1 { cpu: Some(cpu), .. }, CpuShare::Background) => write_if_present(cpu, "cpu.shares", "64"),
            (Hierarchy::V2 { parent, .. }, CpuShare::Boosted) => write_if_present(parent, "cpu.weight", "800"),
            (Hierarchy::V2 { parent, .. }, CpuShare::Normal) => write_if_present(parent, "cpu.weight", "100"),
            (Hierarchy::V2 { parent, .. }, CpuShare::Background) => write_if_present(parent, "cpu.weight", "6"),
            (Hierarchy::V1 { cpu: None, .. } | Hierarchy::Absent, _) => Ok(()),
        }
    }

    /// Opens the membership file in every tree. A process of one thread that writes `0` to each joins the group, with the rights of the
    /// opener.
    pub(crate) fn open_joins(&self) -> io::Result<Vec<OwnedFd>> {
        // On version 1, moving a thread avoids the global lock of forks, which takes a grace period of RCU: 5 to 10 ms.
        let file = match self.hierarchy {
            Hierarchy::V1 { .. } => "tasks",
            Hierarchy::V2 { .. } | Hierarchy::Absent => "cgroup.procs",
        };
        let open = |directory: &PathBuf| Ok(fs::OpenOptions::new().write(true).open(directory.join(file))?.into());
        self.hierarchy.parents().iter().map(open).collect()
    }

    /// Counts the processes killed so far because of the memory limit; 0 without a count.
    pub(crate) fn oom_kills(&self) -> u64 {
        match &self.hierarchy {
            Hierarchy::V1 { memory: Some(memory), .. } => field(memory, "memory.oom_control", "oom_kill "),
            Hierarchy::V2 { parent, .. } => field(parent, "memory.events", "oom_kill "),
            Hierarchy::V1 { memory: None, .. } | Hierarchy::Absent => 0,
        }
    }

    /// Reads the usage so far. A figure that Linux does not offer is 0.
    pub(crate) fn usage(&self) -> CgroupUsage {
        match &self.hierarchy {
            Hierarchy::V1 { memory, .. } => {
                let memory = memory.as_deref();
                let figure = |file: &str| memory.map(|memory| number(memory, file)).unwrap_or_default();
                CgroupUsage {
                    memory: figure("memory.usage_in_bytes"),
                    memory_peak: figure("memory.max_usage_in_bytes"),
                    cpu: self.cpu_time(),
                }
            }
            Hierarchy::V2 { parent, .. } => {
                let peak = number(parent, "memory.peak");
                let memory = number(parent, "memory.current");
                // Before Linux 5.19 there is no peak; once the limit was hit, the limit was the peak.
                let is_reached = field(parent, "memory.events", "oom ") > 0;
                let reached = if is_reached { self.limit } else { memory };
                CgroupUsage { memory, memory_peak: peak.max(reached), cpu: self.cpu_time() }
            }
            Hierarchy::Absent => CgroupUsage::default(),
        }
    }

    /// Reads the processor time so far, microseconds. 0 without a count.
    pub(crate) fn cpu_time(&self) -> u64 {
        match &self.hierarchy {
            Hierarchy::V1 { cpu, .. } => {
                // `cpuacct`, usually mounted together with `cpu`, counts exactly.
                let counted = cpu.as_ref().map(|cpu| number(cpu, "cpuacct.usage") / 1000).unwrap_or_default();
                if counted > 0 { counted } else { self.cpu_of_processes() }
            }
            Hierarchy::V2 { parent, .. } => field(parent, "cpu.stat", "usage_usec "),
            Hierarchy::Absent => 0,
        }
    }

    /// Processor time of the living processes and of the children they waited for, microseconds.
    fn cpu_of_processes(&self) -> u64 {
        let Some(directory) = self.hierarchy.parents().into_iter().next() else { return 0 };
        let procs = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        let ticks: u64 = procs.lines().map(|pid| ticks_of(pid).unwrap_or_default()).sum();
        ticks * 1_000_000 / rustix::param::clock_ticks_per_second().max(1)
    }

    /// Directory of the group in a tree that can freeze it; `None` where none can.
    pub(crate) fn freezer(&self) -> Option<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V2 { parent, .. } if parent.join("cgroup.freeze").exists() => Some(parent.clone()),
            Hierarchy::V2 { .. } | Hierarchy::V1 { .. } | Hierarchy::Absent => None,
        }
    }

    /// Removes the group. It must be empty.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.hierarchy.parents().iter().try_for_each(|directory| remove(directory))
    }
}

impl Hierarchy {
    /// Like [`Hierarchy::descend`], for a group of processes that passes no controllers on.
    fn leaf(&self, name: &str) -> io::Result<Self> {
        match self {
            Self::V2 { parent, controllers } => {
                let parent = parent.join(name);
                make_group(&parent)?;
                Ok(Self::V2 { parent, controllers: controllers.clone() })
            }
            Self::V1 { .. } | Self::Absent => self.descend(name),
        }
    }
}

/// Kills every process in the group and removes it. Success if the group does not exist.
pub fn remove(directory: &Path) -> io::Result<()> {
    // Processes that were just killed keep the group busy for a moment.
    for attempt in 0..50 {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if attempt == 49 => return Err(error),
            Err(_) => {
                for child in fs::read_dir(directory)?.flatten().filter(|entry| entry.path().is_dir()) {
                    remove(&child.path())?;
                }
                kill_all(directory);
                std::thread::sleep(std::time::Duration::from_millis(attempt));
            }
        }
    }
    Ok(())
}

fn kill_all(directory: &Path) {
    let procs = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    for pid in procs.lines().filter_map(|line| line.parse().ok()).filter_map(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ignore("it may have ended");
    }
}

/// The file system type, the super block options and the mount point of a line of `mountinfo`.
fn mount_of(line: &str) -> Option<(&str, &str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let mount_point = left.split(' ').nth(4)?;
    let mut right = right.split(' ');
    let kind = right.next()?;
    let options = right.nth(1)?;
    Some((kind, options, mount_point))
}

/// Returns true for the root of the tree, which may hold both processes and groups.
fn is_top(group: &Path) -> bool {
    !group.join("cgroup.type").exists()
}

/// Returns true if this group of version 2 is delegated to its processes: a container's engine made it the top of the visible tree, its
/// owner may write to it but not to its parent, or systemd marked it. A user's systemd 252 sets no mark; then a scope counts as delegated
/// if all its processes are ours. A service never does: systemd would end all of it when one sandbox runs out of memory.
fn is_handed_over(group: &Path, mount: &Path) -> bool {
    let has = |name: &str| {
        let mut value = [0; 64];
        rustix::fs::getxattr(group, name, &mut value).is_ok_and(|length| length > 0)
    };
    let is_outermost = || group == mount || group.parent().is_some_and(|above| !is_writable(above));
    let is_marked = || has("user.delegate") || has("trusted.delegate");
    let is_unmarked_scope = || {
        let marks = has("user.invocation_id") || has("trusted.invocation_id");
        !marks && group.extension().is_some_and(|kind| kind == "scope") && is_ours(group)
    };
    !is_top(group) && is_writable(group) && (is_outermost() || is_marked() || is_unmarked_scope())
}

/// Returns true if all processes in the group run this program.
fn is_ours(group: &Path) -> bool {
    let program = |process: &str| fs::read_link(format!("/proc/{process}/exe")).ok();
    let (processes, own) = (read(group, "cgroup.procs").unwrap_or_default(), program("self"));
    own.is_some() && !processes.is_empty() && processes.lines().all(|process| program(process) == own)
}

fn usable_controllers(group: &Path) -> Vec<String> {
    let text = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    text.split_whitespace().filter(|name| CONTROLLERS.contains(name)).map(str::to_owned).collect()
}

/// Hands each controller on to the groups below `group`, and returns those for which that worked. Linux refuses `cpu` while a process with
/// real-time priority runs outside of the root group. Fails without `memory`.
fn enable_each(group: &Path, controllers: &[String]) -> io::Result<Vec<String>> {
    let mut enabled = Vec::new();
    for controller in controllers {
        match enable(group, std::slice::from_ref(controller)) {
            Ok(()) => enabled.push(controller.clone()),
            Err(error) if controller == "memory" => return Err(error),
            Err(_) => {}
        }
    }
    Ok(enabled)
}

/// Hands the controllers on to the groups below `group`.
fn enable(group: &Path, controllers: &[String]) -> io::Result<()> {
    let parent = group.parent().unwrap_or(group);
    for directory in [parent, group] {
        let enabled = fs::read_to_string(directory.join("cgroup.subtree_control")).unwrap_or_default();
        for controller in controllers {
            if !enabled.split_whitespace().any(|name| name == controller) {
                write(directory, "cgroup.subtree_control", &format!("+{controller}"))?;
            }
        }
    }
    Ok(())
}

/// Reads a file of one number; 0 if there is none.
fn number(directory: &Path, file: &str) -> u64 {
    read(directory, file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Reads the number that follows a name in a file of many; 0 if there is none.
fn field(directory: &Path, file: &str, name: &str) -> u64 {
    let text = read(directory, file).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
}

/// Sums the fields utime, stime, cutime and cstime of `/proc/…/stat`. The name before them may hold anything.
fn ticks_of(pid: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' ').skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum())
}

fn is_writable(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

fn make_group(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(named(&error, directory)),
        _ => Ok(()),
    }
}

fn write(directory: &Path, file: &str, value: &str) -> io::Result<()> {
    let path = directory.join(file);
    fs::write(&path, value).map_err(|error| named(&error, &path))
}

fn read(directory: &Path, file: &str) -> io::Result<String> {
    let path = directory.join(file);
    fs::read_to_string(&path).map_err(|error| named(&error, &path))
}

fn write_if_present(directory: &Path, file: &str, value: &str) -> io::Result<()> {
    if directory.join(file).exists() { write(directory, file, value) } else { Ok(()) }
}

fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_line_is_taken_apart() {
        let line = "35 32 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory";
        assert_eq!(mount_of(line), Some(("cgroup", "rw,memory", "/sys/fs/cgroup/memory")));
        assert_eq!(mount_of("nonsense"), None);
    }

    /// A tree of version 2, as far as ordinary files can stand in for it. Its top may be a container's.
    fn tree(top: &Path, groups: &[&str]) {
        for group in groups {
            let group = top.join(group);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("cgroup.type"), "domain\n").unwrap();
            fs::write(group.join("cgroup.controllers"), "cpuset cpu memory pids\n").unwrap();
        }
    }

    fn parent_of(top: &Path, own: &str) -> Option<PathBuf> {
        let mounts = format!("35 32 0:29 / {} rw - cgroup2 cgroup2 rw,nsdelegate", top.display());
        match Hierarchy::v2(&mounts, &format!("0::{own}\n"))? {
            Hierarchy::V2 { parent, .. } => Some(parent),
            _ => None,
        }
    }

    #[test]
    fn a_containers_top_is_divided_and_found_again_by_those_who_moved_aside() {
        let top = tempfile::tempdir().unwrap();
        tree(top.path(), &["", ASIDE]);
        assert_eq!(parent_of(top.path(), "/").as_deref(), Some(top.path()));
        assert_eq!(parent_of(top.path(), "/aludel-host").as_deref(), Some(top.path()));
    }

    #[test]
    fn a_group_that_nobody_handed_over_is_not_divided() {
        let top = tempfile::tempdir().unwrap();
        tree(top.path(), &["system.slice", "system.slice/a.service"]);
        let parent = parent_of(top.path(), "/system.slice/a.service");
        assert_eq!(parent.as_deref(), Some(top.path().join("system.slice").as_path()));
        // The top has one more controller.
        fs::write(top.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        fs::write(top.path().join("system.slice/cgroup.controllers"), "memory pids\n").unwrap();
        assert_eq!(parent_of(top.path(), "/system.slice/a.service").as_deref(), Some(top.path()));
    }

    #[test]
    fn nothing_usable_is_said_to_miss_everything() {
        assert_eq!(Hierarchy::Absent.missing(), ["memory", "pids", "cpu"]);
    }
}
