//! Parts of a container's isolation that not every engine knows. Each is tried when the backend starts: what the engine refuses, or takes
//! and does not do, is left out and told.

use std::time::Duration;

use aludel_jail::syscalls::{EngineProfile, SocketMemory};
use bollard::models::{ContainerCreateBody, HostConfigCgroupnsModeEnum};
use futures_util::StreamExt;
use serde::Deserialize;

use super::Containers;
use crate::backends::stdio::{OutputChunk, Stdio};
use crate::{Error, Profile};

/// Memory of a container that tries a part.
const TRIAL_MEMORY: u64 = 64 << 20;
/// The longest that it may take.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of its output that are read.
const TRIAL_OUTPUT: usize = 16 << 10;
/// Warnings of an engine that are told, and bytes of each.
const ENGINE_WARNINGS: usize = 8;
const ENGINE_WARNING: usize = 300;
/// Closed connections that the kernel remembers for a minute, 250 bytes each, which no control group counts. Ports below are root's. No
/// datagrams of ICMP.
const NETWORK_SETTINGS: [(&str, &str); 3] = [
    ("net.ipv4.tcp_max_tw_buckets", "4096"),
    ("net.ipv4.ip_unprivileged_port_start", "1024"),
    ("net.ipv4.ping_group_range", "1 0"),
];
/// Bytes of a socket's buffers, least, first and most, where no control group counts them.
const SMALL_BUFFERS: [(&str, &str); 2] =
    [("net.ipv4.tcp_rmem", "4096 16384 65536"), ("net.ipv4.tcp_wmem", "4096 16384 65536")];
/// Files and directories that tell of the host, below `/proc` and `/sys`: all but the processes, the sandbox's own control groups, and the
/// locks that the first process counts.
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
/// The program of a trial: tells the facts by which the parts are judged.
const TRIAL_PROGRAM: &str = "
import json, socket, threading
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
    'version': read('/proc/version'),
    'groups': [line.split(':', 2)[2] for line in read('/proc/self/cgroup').splitlines()],
    'refuses_datagrams': refuses(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)),
    'refuses_low_ports': refuses(lambda: socket.socket().bind(('127.0.0.1', 80))),
}))
";

/// A part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HardeningPart {
    /// Our own list of system calls.
    SystemCalls,
    /// A namespace of control groups.
    ControlGroups,
    /// Settings of the network namespace.
    NetworkSettings,
    /// Absence of files that tell of the host.
    HiddenFiles,
}

/// The parts that containers of an engine have.
#[derive(Debug)]
pub(super) struct Hardening {
    sockets: SocketMemory,
    parts: Vec<HardeningPart>,
    warnings: Vec<String>,
}

/// Facts that a trial tells.
#[derive(Debug, Deserialize)]
struct TrialFacts {
    version: String,
    groups: Vec<String>,
    refuses_datagrams: bool,
    refuses_low_ports: bool,
}

impl HardeningPart {
    const ALL: [Self; 4] = [Self::SystemCalls, Self::ControlGroups, Self::NetworkSettings, Self::HiddenFiles];

    /// The consequence of its absence.
    fn loss(self) -> &'static str {
        match self {
            Self::SystemCalls => "programs may make the system calls of the container engine's own list",
            Self::ControlGroups => "programs see the names of the host's control groups",
            Self::NetworkSettings => "data in sockets and closed connections take memory beside the limit",
            Self::HiddenFiles => "programs read the host's figures in /proc and /sys",
        }
    }

    /// Returns true if a container has it.
    fn is_in(self, facts: &TrialFacts) -> bool {
        match self {
            Self::SystemCalls => facts.refuses_datagrams,
            Self::ControlGroups => facts.groups.iter().all(|group| group == "/"),
            Self::NetworkSettings => facts.refuses_low_ports,
            Self::HiddenFiles => facts.version.is_empty(),
        }
    }

    /// Adds it to a container.
    fn add(self, body: &mut ContainerCreateBody, profile: Profile, sockets: SocketMemory) {
        let host = body.host_config.get_or_insert_default();
        match self {
            Self::SystemCalls => {
                // Plain data with keys of text.
                let list = serde_json::to_string(&EngineProfile::new(profile, sockets)).unwrap_or_default();
                host.security_opt.get_or_insert_default().push(format!("seccomp={list}"));
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
            Self::HiddenFiles => {
                let below =
                    |(top, names): &(&str, &str)| names.split(' ').map(|name| format!("{top}/{name}")).collect();
                host.masked_paths = Some(HIDDEN.iter().flat_map::<Vec<_>, _>(below).collect());
            }
        }
    }
}

impl Hardening {
    /// No part.
    pub(super) fn none(sockets: SocketMemory) -> Self {
        Self { sockets, parts: Vec::new(), warnings: Vec::new() }
    }

    /// Adds the parts to a container.
    pub(super) fn apply(&self, mut body: ContainerCreateBody, profile: Profile) -> ContainerCreateBody {
        for part in &self.parts {
            part.add(&mut body, profile, self.sockets);
        }
        body
    }

    /// The parts that are missing, in words.
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
    /// Finds the parts that containers of this engine have, all at once or one by one.
    pub(super) async fn find_hardening(&self) -> Result<Hardening, Error> {
        let sockets = self.engine.sockets;
        let with = |parts: &[HardeningPart]| Hardening { parts: parts.to_vec(), ..Hardening::none(sockets) };
        let mut found = Hardening::none(sockets);
        if sockets == SocketMemory::Uncounted {
            found.note(
                "data in sockets takes memory beside the limit, 128 KB for each, since the container engine has control groups of version 1",
            );
        }
        let all = HardeningPart::ALL;
        if let Ok(facts) = self.try_out(&with(&all), &mut found).await
            && all.iter().all(|part| part.is_in(&facts))
        {
            return Ok(Hardening { parts: all.into(), ..found });
        }
        // A failure without any of them is the reason that counts.
        self.try_out(&with(&[]), &mut found).await?;
        for part in all {
            let reason = match self.try_out(&with(&[part]), &mut found).await {
                Ok(facts) if part.is_in(&facts) => {
                    found.parts.push(part);
                    continue;
                }
                Ok(_) => "it has no effect".to_owned(),
                Err(error) => error.to_string(),
            };
            found.note(&format!("{}, since the container engine does not prevent it: {reason}", part.loss()));
        }
        Ok(found)
    }

    /// Runs the trial in a container with these parts.
    async fn try_out(&self, parts: &Hardening, found: &mut Hardening) -> Result<TrialFacts, Error> {
        let mut body = self.bare(super::FIRST_USER, TRIAL_MEMORY, 8);
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
