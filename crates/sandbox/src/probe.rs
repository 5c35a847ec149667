//! Protections that this host can enforce, as texts for `aludel doctor`.

use std::env;
use std::path::Path;

use aludel_jail::cgroup::Hierarchy;
use aludel_jail::probe::Host;

use crate::{Require, trial};

/// The settings of a host that keep namespaces from users.
const USER_NAMESPACES: &str = "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 \
    user.max_user_namespaces=100000 (those that exist), or run as root";

/// The words of the system for a full disk.
const NO_SPACE: &str = "No space left on device";

/// One ability that the host has or lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// A short name, for example `user namespaces`.
    pub name: &'static str,
    /// Its result.
    pub status: CheckStatus,
    /// The finding, in words.
    pub detail: String,
    /// The command or setting that fixes it, if something is missing.
    pub mend: Option<String>,
}

/// Sentence on pausing, appended to the sandbox check.
const PAUSE_SUPPORT: &str = "sandboxes are paused with their processes, and cannot be forked";

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckStatus {
    /// Enforced.
    Ok,
    /// Works, with less protection or comfort.
    Degraded,
    /// Sandboxes cannot start without it.
    Missing,
}

/// Tries everything the local backend needs. Takes some milliseconds and leaves nothing behind.
pub fn probe() -> Vec<Check> {
    let host = aludel_jail::probe::probe();
    vec![kernel(&host), namespaces(&host), ids(&host), cgroups(&host), seccomp(&host), landlock(&host), crashes(&host)]
}

/// Starts a sandbox and runs a program in it, see [`trial()`]. Starts none if the host enforces less than is required.
pub async fn sandbox(data: &Path, require: Require) -> Check {
    let (status, detail, mend) = match trial(data, require).await {
        Ok(took) => (
            CheckStatus::Ok,
            format!("one was started and ran a program, in {} ms; {PAUSE_SUPPORT}", took.as_millis()),
            None,
        ),
        Err(error) => (CheckStatus::Missing, format!("none can be started: {error}"), mend(&error, data)),
    };
    Check { name: "sandbox", status, detail, mend }
}

/// The remedy for a host that starts no sandboxes, if the error does not contain it, as that of a template does.
pub fn mend(error: &crate::Error, data: &Path) -> Option<String> {
    if error.to_string().contains(NO_SPACE) {
        return Some(format!("make room on the disk of {}, or choose another data directory", data.display()));
    }
    let crate::Error::Setup(words) = error else { return None };
    Some(HostKind::here().starts(words).to_owned())
}

/// The kind of host, which decides the words of a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostKind {
    Host,
    /// A container of Docker or Podman.
    Container,
    /// A container of a pod of Kubernetes.
    Pod,
}

impl HostKind {
    fn here() -> Self {
        if env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            Self::Pod
        } else if ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists()) {
            Self::Container
        } else {
            Self::Host
        }
    }

    /// The remedy for a host that starts no sandboxes; `failure` is the step that it refused.
    fn starts(self, failure: &str) -> &'static str {
        match self {
            _ if failure.contains("raise the limit of open files") => {
                "a higher hard limit: ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of Docker"
            }
            Self::Pod => {
                "for the pod: hostUsers: false; for its container: securityContext.procMount: Unmasked, \
                 seccompProfile.type: Localhost with packaging/seccomp.json on the node and, where AppArmor is used, \
                 appArmorProfile.type: Unconfined"
            }
            Self::Container => {
                "docker run --user 1000 --security-opt seccomp=packaging/seccomp.json --security-opt systempaths=unconfined and, \
                 where AppArmor is used, --security-opt apparmor=unconfined"
            }
            Self::Host if failure.contains("mount /proc") => {
                "parts of /proc are hidden by other mounts, as in a container: start aludel where they are not \
                 (systempaths=unconfined, procMount: Unmasked)"
            }
            Self::Host if failure.contains("make the mounts private: Invalid argument") => {
                "the root directory is no mount: in a chroot, Linux makes no user namespaces; start aludel outside of it, or enter \
                 the directory by systemd-nspawn or another container"
            }
            Self::Host => USER_NAMESPACES,
        }
    }

    /// The way to an id for each sandbox.
    fn gives_ids(self) -> &'static str {
        match self {
            Self::Host => "run as root to give every sandbox an id of its own",
            Self::Container | Self::Pod => "a container has one id; outside of one, root gives every sandbox its own",
        }
    }

    /// The remedy for missing limits of memory and processes, for hosts with control groups of version 2 or none.
    fn limits(self) -> &'static str {
        match self {
            Self::Host => "run as root, or in a delegated scope: systemd-run --user --scope -p Delegate=yes aludel …",
            Self::Container => "bound all sandboxes together: docker run --memory 8g --pids-limit 2048 --cpus 4",
            Self::Pod => "bound all sandboxes together: resources.limits of the container, podPidsLimit of the kubelet",
        }
    }
}

fn kernel(host: &Host) -> Check {
    let mut numbers = host.kernel.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let supported = version >= (5, 15);
    Check {
        name: "kernel",
        status: if supported { CheckStatus::Ok } else { CheckStatus::Missing },
        detail: format!("Linux {}", host.kernel),
        mend: (!supported).then(|| "Linux 5.15 or newer is needed".into()),
    }
}

fn namespaces(host: &Host) -> Check {
    let (status, detail, mend) = match &host.namespaces {
        Ok(()) => (CheckStatus::Ok, "mount, pid, net, ipc, uts, user and cgroup namespaces can be made".into(), None),
        Err(error) => (
            CheckStatus::Missing,
            format!("namespaces cannot be made: {error}"),
            Some(HostKind::here().starts("namespaces").to_owned()),
        ),
    };
    Check { name: "namespaces", status, detail, mend }
}

fn ids(host: &Host) -> Check {
    let (status, detail, mend) = if host.own_ids {
        (CheckStatus::Ok, "every sandbox runs under a user id of its own".into(), None)
    } else {
        let detail = "all sandboxes run under your own user id, told apart by namespaces alone".into();
        (CheckStatus::Degraded, detail, Some(HostKind::here().gives_ids().to_owned()))
    };
    Check { name: "user ids", status, detail, mend }
}

fn cgroups(host: &Host) -> Check {
    let missing = host.cgroups.missing();
    let status = if missing.is_empty() { CheckStatus::Ok } else { CheckStatus::Degraded };
    let detail = if missing.is_empty() {
        format!("{}: memory, processes and processor time are limited", host.cgroups.describe())
    } else {
        format!("{}: no limit on {}", host.cgroups.describe(), missing.join(", "))
    };
    let mend = (!missing.is_empty()).then(|| match (HostKind::here(), &host.cgroups) {
        (HostKind::Host, Hierarchy::V1 { .. }) => {
            "mount the missing controllers under /sys/fs/cgroup, and run as root".into()
        }
        (place, _) => place.limits().to_owned(),
    });
    Check { name: "control groups", status, detail, mend }
}

fn seccomp(host: &Host) -> Check {
    Check {
        name: "seccomp",
        status: if host.seccomp { CheckStatus::Ok } else { CheckStatus::Missing },
        detail: if host.seccomp {
            format!("{} system calls are allowed, all others refused", host.allowed_syscalls)
        } else {
            "this Linux cannot filter system calls".into()
        },
        mend: (!host.seccomp).then(|| "use a kernel with CONFIG_SECCOMP_FILTER".into()),
    }
}

fn crashes(host: &Host) -> Check {
    let (status, detail, mend) = match &host.crash_socket {
        None => (CheckStatus::Ok, "no program of the host hears of those in a sandbox".into(), None),
        Some(socket) => {
            let detail = format!("whoever listens at {socket} on the host is told of a hostile program's crashes, too");
            (CheckStatus::Degraded, detail, Some("sysctl -w kernel.core_pattern=core".into()))
        }
    };
    Check { name: "crashes", status, detail, mend }
}

fn landlock(host: &Host) -> Check {
    let (status, detail) = match host.landlock {
        0 => (CheckStatus::Degraded, "not there: mounts and ids alone guard the files".into()),
        version @ 1..=5 => {
            (CheckStatus::Ok, format!("version {version}: files are guarded, signals and abstract sockets are not"))
        }
        version => (CheckStatus::Ok, format!("version {version}: files, signals and abstract sockets are guarded")),
    };
    let mend = (host.landlock == 0).then(|| "add landlock to the kernel's lsm= list (CONFIG_SECURITY_LANDLOCK)".into());
    Check { name: "Landlock", status, detail, mend }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_is_said_in_the_words_of_its_place() {
        assert!(HostKind::Container.starts("mount /proc: no").contains("systempaths=unconfined"));
        assert!(HostKind::Container.starts("raise the limit of open files: few").contains("ulimit -n"));
        assert!(HostKind::Pod.starts("mount /proc: no").contains("procMount: Unmasked"));
        assert!(HostKind::Host.starts("mount /proc: no").contains("/proc are hidden"));
        assert_eq!(HostKind::Host.starts("namespaces"), USER_NAMESPACES);
        assert!(HostKind::Container.limits().contains("--pids-limit"));
        assert!(HostKind::Pod.limits().contains("resources.limits"));
    }
}
