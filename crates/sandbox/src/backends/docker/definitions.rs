//! Definitions of the containers: a sandbox, and the server of its files.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, MountVolumeOptions, ResourcesUlimits,
};

use super::Containers;
use super::container::Container;
use crate::backends::stdio::COMMAND;
use crate::{KernelSpec, Limits, Profile};

/// Memory of the container that serves files, beside the files, bytes.
const SERVER_MEMORY: u64 = 64 << 20;
/// Paths of the workspace: its own, and the home directory that some clients expect.
const PLACES: [&str; 2] = ["/mnt/data", "/home/user"];
/// The place of message queues.
pub(super) const MESSAGE_QUEUES: &str = "/dev/mqueue";
/// Bytes of the kernel's scripts at most.
const SCRIPTS_BYTES: u64 = 1 << 20;
/// The lowest `oom_score_adj` of its processes: killed before the host's own processes, and after kernels and commands, which have 1000, so
/// that the first process can report them.
const OOM_RANK: i64 = 900;
/// Processes of a user at least, in all of its containers.
const USER_PROCESSES: u64 = 4096;
/// Limits of each process, most of them counted by user. With a core file limit of 1 byte, Linux also starts no crash handler of the host.
const BARE_LIMITS: [(&str, u64); 6] =
    [("core", 1), ("memlock", 64 << 10), ("msgqueue", 0), ("sigpending", 1024), ("rtprio", 0), ("nice", 0)];

impl Containers {
    /// A container without files, network, capabilities, a writable root or a way to get more rights.
    pub(super) fn bare(&self, user: u32, memory: u64, processes: i64, open_files: u64) -> ContainerCreateBody {
        let memory = i64::try_from(memory).unwrap_or(i64::MAX);
        // An engine's defaults may be more than the host allows. The control group's limit is reached first: at most, a user has the
        // processes of a container that ends, of its successor, and of the server of its files.
        let of_user = processes.unsigned_abs().saturating_mul(4).max(USER_PROCESSES);
        let own_limits = [("nofile", open_files), ("nproc", of_user)];
        let none = HostConfigLogConfig { typ: Some("none".to_owned()), config: None };
        let host_config = HostConfig {
            auto_remove: Some(true),
            network_mode: Some("none".to_owned()),
            ipc_mode: Some("private".to_owned()),
            readonly_rootfs: Some(true),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            log_config: Some(none),
            memory: Some(memory),
            // The same number for memory and swap together means no swap.
            memory_swap: Some(memory),
            pids_limit: Some(processes),
            oom_score_adj: Some(OOM_RANK),
            runtime: self.runtime.clone(),
            // Engines mount a file system of message queues there, writable by all.
            tmpfs: Some(HashMap::from([(MESSAGE_QUEUES.to_owned(), "ro,noexec,nosuid,nodev,size=4096".to_owned())])),
            ulimits: Some(BARE_LIMITS.iter().chain(&own_limits).map(|(name, value)| limit(name, *value)).collect()),
            ..HostConfig::default()
        };
        ContainerCreateBody {
            image: Some(self.image.clone()),
            user: Some(format!("{user}:{user}")),
            hostname: Some("sandbox".to_owned()),
            working_dir: Some("/mnt/data".to_owned()),
            entrypoint: Some(COMMAND.map(str::to_owned).into()),
            cmd: Some(Vec::new()),
            // When this process ends, stdin closes and the container ends.
            open_stdin: Some(true),
            stdin_once: Some(true),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }

    /// The same with the files of a workspace.
    fn with_files(
        &self,
        (volume, user): (&str, u32),
        memory: u64,
        processes: i64,
        open_files: u32,
    ) -> ContainerCreateBody {
        let mut body = self.bare(user, memory, processes, u64::from(open_files));
        let files = |place: &str| Mount {
            target: Some(place.to_owned()),
            source: Some(volume.to_owned()),
            typ: Some(MountType::VOLUME),
            // Otherwise the engine would copy the owner of the image's directory.
            volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
            ..Mount::default()
        };
        let host = body.host_config.get_or_insert_default();
        host.mounts = Some(PLACES.map(files).into());
        body
    }

    /// The server of a workspace's files.
    pub(super) fn files_container(&self, volume: &str, user: u32, limits: &Limits) -> ContainerCreateBody {
        // Files that the host writes count as memory of the server.
        let memory = SERVER_MEMORY.saturating_add(limits.disk);
        let body = self.with_files((volume, user), memory, 4, limits.open_files);
        self.hardening.apply(body, Profile::Data)
    }

    /// A sandbox with the files of a home.
    pub(super) fn sandbox_container(
        &self,
        kernel: &KernelSpec,
        limits: &Limits,
        profile: Profile,
        home: &Container,
    ) -> ContainerCreateBody {
        let user = home.user();
        // Two more than the programs' own: the first process, and the kernel's checkpoint.
        let processes = i64::from(limits.processes) + 2;
        let mut body = self.with_files((home.name(), user), limits.memory, processes, limits.open_files);
        body.env = Some(kernel.env.iter().map(|(name, value)| format!("{name}={value}")).collect());
        let host = body.host_config.get_or_insert_default();
        host.ulimits.get_or_insert_default().push(limit("fsize", limits.file_size));
        let shared = limits.tmp / 4;
        let tmp = format!("rw,exec,nosuid,nodev,size={},mode=1777", limits.tmp - shared);
        let scripts = format!("rw,noexec,nosuid,nodev,size={SCRIPTS_BYTES},mode=1777");
        let places = [("/tmp".to_owned(), tmp), (KernelSpec::SCRIPTS_DIRECTORY.to_owned(), scripts)];
        host.tmpfs.get_or_insert_default().extend(places);
        host.shm_size = Some(i64::try_from(shared.max(1)).unwrap_or(i64::MAX));
        host.nano_cpus = Some((limits.cpus * 1e9) as i64);
        self.hardening.apply(body, profile)
    }
}

/// A limit of each process of a container.
fn limit(name: &str, value: u64) -> ResourcesUlimits {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(value), hard: Some(value) }
}
