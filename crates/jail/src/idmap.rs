//! User ids of the sandboxes.

use std::fs;
use std::io;

use rustix::process::{Pid, getegid, geteuid};

/// The first host id for sandboxes when root assigns them: above the ranges of distributions and of systemd's containers and dynamic users.
const PREFERRED_BASE: u32 = 0x7000_0000;
/// Number of ids that root assigns: slot 0 is [`FIRST_SLOT`].
const COUNT: u32 = 65_536;
/// Inside the user namespace, the id of slot 0.
pub(crate) const FIRST_SLOT: u32 = 1000;

/// Mapping from ids of the user namespace to the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdMap {
    /// A range: every sandbox has its own id.
    Range {
        /// The host id of the namespace's id 0.
        base: u32,
    },
    /// The caller's own id is all there is.
    Single,
}

impl IdMap {
    /// The best that this process may set up.
    pub(crate) fn choose() -> Self {
        if !geteuid().is_root() {
            return Self::Single;
        }
        // Root of a container may own fewer ids than the host has.
        let owned = |base: u32| {
            let covers = |path: &str| {
                fs::read_to_string(path).unwrap_or_default().lines().any(|line| {
                    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
                    matches!(fields[..], [inside, _, count]
                        if inside <= base.into() && u64::from(base) + u64::from(COUNT) <= inside + count)
                })
            };
            covers("/proc/self/uid_map") && covers("/proc/self/gid_map")
        };
        match [PREFERRED_BASE, 100_000].into_iter().find(|base| owned(*base)) {
            Some(base) => Self::Range { base },
            None => Self::Single,
        }
    }

    /// Writes the id maps of a child that waits in its new user namespace.
    pub(crate) fn write(self, child: Pid) -> io::Result<()> {
        let child = child.as_raw_nonzero();
        let (uids, gids) = match self {
            Self::Range { base } => (format!("0 {base} {COUNT}"), format!("0 {base} {COUNT}")),
            Self::Single => {
                // Without this, an unprivileged process may not map its group.
                fs::write(format!("/proc/{child}/setgroups"), "deny")?;
                (format!("{FIRST_SLOT} {} 1", geteuid().as_raw()), format!("{FIRST_SLOT} {} 1", getegid().as_raw()))
            }
        };
        fs::write(format!("/proc/{child}/uid_map"), uids)?;
        fs::write(format!("/proc/{child}/gid_map"), gids)
    }

    /// The id of a slot as the warden sees it.
    pub(crate) fn owner(self, slot: u32) -> u32 {
        match self {
            Self::Range { base } => base + FIRST_SLOT + slot,
            // The warden is in the namespace that has only this one.
            Self::Single => FIRST_SLOT,
        }
    }

    /// The host uid that owns the user namespace, where there is one of the range to do so: it is that of the namespace's root.
    pub(crate) fn namespace_owner(self) -> Option<u32> {
        match self {
            Self::Range { base } => Some(base),
            Self::Single => None,
        }
    }

    /// The host uid of slot 0, where slots have their own.
    pub(crate) fn owner_base(self) -> Option<u32> {
        match self {
            Self::Range { base } => Some(base + FIRST_SLOT),
            Self::Single => None,
        }
    }
}
