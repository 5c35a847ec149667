//! Definitions of the containers: a sandbox, and the server of its files.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, MountVolumeOptions, ResourcesUlimits,
};

use super::{Containers, USER};
use crate::backends::stdio::COMMAND;
use crate::{KernelSpec, Limits};

/// Memory of the container that serves files, beside the files, bytes.
const SERVER_MEMORY: u64 = 64 << 20;
/// Inodes of `/tmp`; without a bound, empty files use up memory that no limit counts.
const TMP_INODES: u64 = 32 << 10;
/// Paths of the workspace: its own, and the home directory that some clients expect.
const PLACES: [&str; 2] = ["/mnt/data", "/home/user"];
/// Bytes of the kernel's scripts at most.
const SCRIPTS_BYTES: u64 = 1 << 20;

impl Containers {
    /// A container without network, capabilities, a writable root or a way to get more rights.
    fn bare(&self, volume: &str, memory: u64, processes: i64) -> ContainerCreateBody {
        let memory = i64::try_from(memory).unwrap_or(i64::MAX);
        let none = HostConfigLogConfig { typ: Some("none".to_owned()), config: None };
        let files = |place: &str| Mount {
            target: Some(place.to_owned()),
            source: Some(volume.to_owned()),
            typ: Some(MountType::VOLUME),
            // The engine would give it the owner of the image's directory.
            volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
            ..Mount::default()
        };
        let host_config = HostConfig {
            auto_remove: Some(true),
            network_mode: Some("none".to_owned()),
            ipc_mode: Some("private".to_owned()),
            readonly_rootfs: Some(true),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            log_config: Some(none),
            memory: Some(memory),
            // No swap: the same figure for both together.
            memory_swap: Some(memory),
            pids_limit: Some(processes),
            runtime: self.runtime.clone(),
            mounts: Some(PLACES.map(files).into()),
            ..HostConfig::default()
        };
        ContainerCreateBody {
            image: Some(self.image.clone()),
            user: Some(format!("{USER}:{USER}")),
            hostname: Some("sandbox".to_owned()),
            working_dir: Some("/mnt/data".to_owned()),
            entrypoint: Some(COMMAND.map(str::to_owned).into()),
            cmd: Some(Vec::new()),
            // When we go away, stdin ends, and with it the container.
            open_stdin: Some(true),
            stdin_once: Some(true),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }

    pub(super) fn files_body(&self, volume: &str, limits: &Limits) -> ContainerCreateBody {
        // Files that the host writes count as the server's memory.
        let mut body = self.bare(volume, SERVER_MEMORY.saturating_add(limits.disk), 4);
        if let Some(host) = &mut body.host_config {
            // An engine's own figure may be more than its host has to give.
            host.ulimits = Some(vec![limit("nofile", u64::from(limits.open_files))]);
        }
        body
    }

    pub(super) fn body(&self, kernel: &KernelSpec, limits: &Limits, volume: &str) -> ContainerCreateBody {
        // Beside the program's own: the first process, and the kernel's checkpoint.
        let mut body = self.bare(volume, limits.memory, i64::from(limits.processes) + 2);
        body.env = Some(kernel.env.iter().map(|(name, value)| format!("{name}={value}")).collect());
        if let Some(host) = &mut body.host_config {
            let shared = limits.tmp / 4;
            let tmp = format!(
                "rw,exec,nosuid,nodev,size={},nr_inodes={TMP_INODES},mode=1777,uid={USER},gid={USER}",
                limits.tmp - shared
            );
            let scripts =
                format!("rw,noexec,nosuid,nodev,size={SCRIPTS_BYTES},nr_inodes=64,mode=0755,uid={USER},gid={USER}");
            host.tmpfs =
                Some(HashMap::from([("/tmp".to_owned(), tmp), (KernelSpec::SCRIPTS_DIRECTORY.to_owned(), scripts)]));
            host.shm_size = Some(i64::try_from(shared.max(1)).unwrap_or(i64::MAX));
            host.nano_cpus = Some((limits.cpus * 1e9) as i64);
            host.ulimits = Some(vec![
                limit("nofile", u64::from(limits.open_files)),
                limit("fsize", limits.file_size),
                limit("core", 0),
            ]);
        }
        body
    }
}

/// A limit of each process of a container.
fn limit(name: &str, value: u64) -> ResourcesUlimits {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(value), hard: Some(value) }
}
