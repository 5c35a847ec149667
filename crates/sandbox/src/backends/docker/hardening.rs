//! Parts of a container's isolation that not every engine supports. Each is tried when the backend starts; parts that the engine refuses or
//! ignores are left out and reported.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aludel_jail::syscalls::{EngineProfile, SocketMemory};
use bollard::models::{ContainerCreateBody, HostConfigCgroupnsModeEnum};
use futures_util::StreamExt;
use serde::Deserialize;

use super::Containers;
use super::definitions::MESSAGE_QUEUES;
use crate::backends::stdio::{OutputChunk, Stdio};
use crate::{Error, KernelSpec, Profile};

/// Memory of a container that tries a part.
const TRIAL_MEMORY: u64 = 64 << 20;
/// Processes of a runtime inside the container's own control group: gVisor's kernel has threads of its own, and processes that stand for
/// the container's.
const RUNTIME_PROCESSES: i64 = 512;
/// Limit of open files of its processes. A runtime opens each hidden file under this limit.
const TRIAL_FILES: u64 = 256;
/// The longest that it may take.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of its output that are read.
const TRIAL_OUTPUT: usize = 16 << 10;
/// Warnings of an engine that are reported, and bytes of each.
const ENGINE_WARNINGS: usize = 8;
const ENGINE_WARNING: usize = 300;
/// At most 4096 connections in TIME_WAIT, which Linux keeps for a minute: 250 bytes each, counted by no control group. Low ports only for
/// root. No ICMP datagrams.
const NETWORK_SETTINGS: [(&str, &str); 3] = [
    ("net.ipv4.tcp_max_tw_buckets", "4096"),
    ("net.ipv4.ip_unprivileged_port_start", "1024"),
    ("net.ipv4.ping_group_range", "1 0"),
];
/// Minimum, default and maximum size of a socket's buffers, bytes, where no control group counts them.
const SMALL_BUFFERS: [(&str, &str); 2] =
    [("net.ipv4.tcp_rmem", "4096 16384 65536"), ("net.ipv4.tcp_wmem", "4096 16384 65536")];
/// Files and directories below `/proc` and `/sys` that reveal the host: all but processes, the sandbox's own control groups, and the locks
/// that the first process counts.
const HIDDEN: [(&str, &str); 2] = [
    (
        "/proc",
        "acpi asound bootconfig buddyinfo bus cgroups cmdline config.gz consoles cpuinfo crypto devices diskstats dma driver dynamic_debug \
         execdomains fb filesystems fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg kpagecgroup kpagecount kpageflags \
         latency_stats loadavg mdstat meminfo misc modules mtrr pagetypeinfo partitions pressure sched_debug schedstat scsi slabinfo softirqs \
         stat swaps sys sysrq-trigger sysvipc timer_list timer_stats tty uptime version version_signature vmallocinfo vmstat xen zoneinfo",
    ),
    (
        "/sys",
        "block bus class dev devices firmware hypervisor kernel module power fs/bpf fs/cgroup/unified fs/ext4 fs/fuse fs/pstore fs/selinux",
    ),
];
/// Inodes of in-memory file systems; without a limit, empty files use memory that is not counted.
const INODES: [(&str, u32); 3] = [("/tmp", 32 << 10), (KernelSpec::SCRIPTS_DIRECTORY, 64), (MESSAGE_QUEUES, 1)];
/// The program of a trial: prints the facts that show which parts work.
const TRIAL_PROGRAM: &str = "
import json, os, socket, threading
def read(path):
    try:
        with open(path) as file: return file.read().strip()
    except OSError: return ''
def refuses(attempt):
    try: attempt()
    except PermissionError: return True
    except OSError: pass
    return False
thread = threading.Thread(target=int); thread.start(); thread.join()
print(json.dumps({
    'release': os.uname().release,
    'version': read('/proc/version'),
    'groups': [line.split(':', 2)[2] for line in read('/proc/self/cgroup').splitlines()],
    'inodes': os.statvfs('/dev/mqueue').f_files,
    'refuses_datagrams': refuses(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)),
    'refuses_low_ports': refuses(lambda: socket.socket().bind(('127.0.0.1', 80))),
}))
";

/// A part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HardeningPart {
    /// Our own list of system calls.
    SystemCalls,
    /// The same in a file, for an engine that takes its name.
    SystemCallsFile,
    /// A namespace of control groups.
    ControlGroups,
    /// Settings of the network namespace.
    NetworkSettings,
    /// Absence of files that tell of the host.
    HiddenFiles,
    /// The same as an option, for an engine that takes it so.
    HiddenFilesOption,
    /// Bounds of the number of files in memory.
    Inodes,
}

/// The parts that containers of an engine have.
#[derive(Debug)]
pub(super) struct Hardening {
    sockets: SocketMemory,
    /// The directory of the lists of system calls.
    lists: PathBuf,
    parts: Vec<HardeningPart>,
    /// Processes of the container's runtime that count as the container's.
    runtime_processes: i64,
    warnings: Vec<String>,
}

/// Facts that a trial reports.
#[derive(Debug, Deserialize)]
struct TrialFacts {
    release: String,
    version: String,
    groups: Vec<String>,
    inodes: u64,
    refuses_datagrams: bool,
    refuses_low_ports: bool,
}

impl HardeningPart {
    /// Each part with the ways to ask for it, Docker's first.
    const WAYS: [&[Self]; 5] = [
        &[Self::SystemCalls, Self::SystemCallsFile],
        &[Self::ControlGroups],
        &[Self::NetworkSettings],
        &[Self::HiddenFiles, Self::HiddenFilesOption],
        &[Self::Inodes],
    ];

    /// The consequence of its absence.
    fn loss(self) -> &'static str {
        match self {
            Self::SystemCalls | Self::SystemCallsFile => {
                "programs may make the system calls of the container engine's own list"
            }
            Self::ControlGroups => "programs see the names of the host's control groups",
            Self::NetworkSettings => "data in sockets and closed connections take memory beside the limit",
            Self::HiddenFiles | Self::HiddenFilesOption => "programs read the host's figures in /proc and /sys",
            Self::Inodes => "empty files in /tmp take memory beside the limit",
        }
    }

    /// Returns true if a container has it.
    fn is_in(self, facts: &TrialFacts) -> bool {
        match self {
            Self::SystemCalls | Self::SystemCallsFile => facts.refuses_datagrams,
            Self::ControlGroups => facts.groups.iter().all(|group| group == "/"),
            Self::NetworkSettings => facts.refuses_low_ports,
            Self::HiddenFiles | Self::HiddenFilesOption => facts.version.is_empty(),
            Self::Inodes => facts.inodes == 1,
        }
    }

    /// Adds it to a container.
    fn add(self, body: &mut ContainerCreateBody, profile: Profile, sockets: SocketMemory, lists: &Path) {
        let host = body.host_config.get_or_insert_default();
        match self {
            Self::SystemCalls => {
                host.security_opt.get_or_insert_default().push(format!("seccomp={}", list(profile, sockets)));
            }
            Self::SystemCallsFile => {
                let file = list_file(lists, profile);
                host.security_opt.get_or_insert_default().push(format!("seccomp={}", file.display()));
            }
            Self::ControlGroups => host.cgroupns_mode = Some(HostConfigCgroupnsModeEnum::PRIVATE),
            Self::NetworkSettings => {
                let buffers = match sockets {
                    SocketMemory::Counted => [].as_slice(),
                    SocketMemory::Uncounted => &SMALL_BUFFERS,
                };
                let settings = NETWORK_SETTINGS.iter().chain(buffers);
                host.sysctls = Some(settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect());
            }
            Self::HiddenFiles => host.masked_paths = Some(hidden()),
            Self::HiddenFilesOption => {
                host.security_opt.get_or_insert_default().push(format!("mask={}", hidden().join(":")));
            }
            Self::Inodes => {
                for (place, options) in host.tmpfs.iter_mut().flatten() {
                    if let Some((_, count)) = INODES.iter().find(|(bounded, _)| bounded == place) {
                        options.push_str(&format!(",nr_inodes={count}"));
                    }
                }
            }
        }
    }
}

/// The list of system calls in the engine's JSON format.
fn list(profile: Profile, sockets: SocketMemory) -> String {
    serde_json::to_string(&EngineProfile::new(profile, sockets)).unwrap_or_default()
}

/// The file of a list.
fn list_file(directory: &Path, profile: Profile) -> PathBuf {
    directory.join(match profile {
        Profile::Data => "data.json",
        Profile::Services => "services.json",
    })
}

/// Paths of files that tell of the host.
fn hidden() -> Vec<String> {
    let below = |(top, names): &(&str, &str)| names.split(' ').map(|name| format!("{top}/{name}")).collect();
    HIDDEN.iter().flat_map::<Vec<_>, _>(below).collect()
}

impl Hardening {
    /// No part. The directory is for lists of system calls.
    pub(super) fn none(sockets: SocketMemory, lists: PathBuf) -> Self {
        Self { sockets, lists, parts: Vec::new(), runtime_processes: 0, warnings: Vec::new() }
    }

    /// Adds the parts to a container.
    pub(super) fn apply(&self, mut body: ContainerCreateBody, profile: Profile) -> ContainerCreateBody {
        for part in &self.parts {
            part.add(&mut body, profile, self.sockets, &self.lists);
        }
        let processes = body.host_config.as_mut().and_then(|host| host.pids_limit.as_mut());
        if let Some(processes) = processes {
            *processes += self.runtime_processes;
        }
        body
    }

    /// Descriptions of the missing parts.
    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn note(&mut self, warning: &str) {
        let warning = warning.chars().take(ENGINE_WARNING).collect();
        if self.warnings.len() < ENGINE_WARNINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

impl Containers {
    /// Finds the parts that this engine supports, by trying all at once, then one by one.
    pub(super) async fn find_hardening(&self) -> Result<Hardening, Error> {
        let (sockets, lists) = (self.engine.sockets, &self.hardening.lists);
        let none = || Hardening::none(sockets, lists.clone());
        let mut found = none();
        if sockets == SocketMemory::Uncounted {
            found.note(
                "data in sockets takes memory beside the limit, 128 KB for each, since the container engine has control groups of version 1",
            );
        }
        let all = HardeningPart::WAYS.map(|ways| ways[0]);
        if let Ok(facts) = self.try_out(&Hardening { parts: all.to_vec(), ..none() }, &mut found).await
            && all.iter().all(|part| part.is_in(&facts))
        {
            return Ok(Hardening { parts: all.into(), ..found });
        }
        let facts = match self.try_out(&none(), &mut found).await {
            Ok(facts) => facts,
            // If it fails with more processes, too, this is the error to report.
            Err(error) => {
                found.runtime_processes = RUNTIME_PROCESSES;
                let roomy = Hardening { runtime_processes: RUNTIME_PROCESSES, ..none() };
                self.try_out(&roomy, &mut found).await.map_err(|_| error)?
            }
        };
        if self.engine.kernel.as_ref().is_some_and(|kernel| *kernel != facts.release) {
            // The parts would hide and bound nothing of the host's; the memory of that kernel counts as the container's.
            return Ok(Hardening { runtime_processes: found.runtime_processes, ..none() });
        }
        let runtime_processes = found.runtime_processes;
        let with = |parts: &[HardeningPart]| Hardening { parts: parts.to_vec(), runtime_processes, ..none() };
        store_lists(lists, sockets)?;
        'parts: for ways in HardeningPart::WAYS {
            let mut loss = None;
            for way in ways {
                let reason = match self.try_out(&with(&[*way]), &mut found).await {
                    Ok(facts) if way.is_in(&facts) => {
                        found.parts.push(*way);
                        continue 'parts;
                    }
                    Ok(_) => "it has no effect".to_owned(),
                    Err(error) => error.to_string(),
                };
                loss.get_or_insert(format!("{}, since the container engine does not prevent it: {reason}", way.loss()));
            }
            if let Some(loss) = loss {
                found.note(&loss);
            }
        }
        Ok(found)
    }

    /// Runs the trial in a container with these parts.
    async fn try_out(&self, parts: &Hardening, found: &mut Hardening) -> Result<TrialFacts, Error> {
        let mut body = self.bare(super::FIRST_USER, TRIAL_MEMORY, 8, TRIAL_FILES);
        body.entrypoint = Some(["python3", "-I", "-c", TRIAL_PROGRAM].map(str::to_owned).into());
        body.working_dir = Some("/".to_owned());
        let body = parts.apply(body, Profile::Services);
        let name = format!("aludel-{}-trial", self.instance.id);
        let output = tokio::time::timeout(TRIAL_TIMEOUT, async {
            let (stdio, warnings) = self.engine.run(&name, body).await?;
            for warning in warnings {
                found.note(&format!("the container engine warns: {warning}"));
            }
            Ok(output_of(stdio).await)
        });
        let output = output.await.unwrap_or(Err(Error::Timeout { what: "trial of a container", limit: TRIAL_TIMEOUT }));
        self.engine.remove_container(&name).await;
        let output = output?;
        serde_json::from_slice(&output).map_err(|_| {
            let output: String = String::from_utf8_lossy(&output).chars().take(ENGINE_WARNING).collect();
            Error::Setup(format!("a container of the image {} does not run Python: {}", self.image, output.trim()))
        })
    }
}

/// Stores the lists of system calls for engines that read files. They are the same for all instances of a data directory.
fn store_lists(directory: &Path, sockets: SocketMemory) -> Result<(), Error> {
    let failed = |source| Error::Io { path: directory.to_path_buf(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    for profile in [Profile::Data, Profile::Services] {
        let file = list_file(directory, profile);
        let begun = file.with_extension(crate::random::hex::<6>());
        std::fs::write(&begun, list(profile, sockets)).and_then(|()| std::fs::rename(&begun, &file)).map_err(failed)?;
    }
    Ok(())
}

/// Output of a process until its end, of both streams.
async fn output_of(stdio: Stdio) -> Vec<u8> {
    let Stdio { mut output, input } = stdio;
    let mut printed = Vec::new();
    while let Some(Ok(OutputChunk::Out(bytes) | OutputChunk::Err(bytes))) = output.next().await {
        let room = TRIAL_OUTPUT.saturating_sub(printed.len());
        printed.extend(bytes.iter().take(room));
    }
    drop(input);
    printed
}
