//! Landlock, a second lock behind the mounts: no writing outside the three writable places, no device nodes; with the profile for data, no
//! signals and no abstract sockets across sandboxes.

use std::os::fd::OwnedFd;

use crate::message::Profile;
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    Scope,
};

/// The newest known version of the interface; older versions of Linux enforce the part that they know.
const KNOWN: ABI = ABI::V6;

/// Makes the ruleset of a sandbox; `None` on a Linux without Landlock. Must run inside the sandbox: rules refer to the inodes of its own
/// mounts.
pub(crate) fn ruleset(profile: Profile) -> Result<Option<OwnedFd>, std::io::Error> {
    let all = AccessFs::from_all(KNOWN);
    let writable = all & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let rules = [
        ("/", AccessFs::from_read(KNOWN)),
        ("/tmp", writable),
        ("/dev/shm", writable),
        ("/mnt", writable),
        ("/dev/null", device),
        ("/dev/zero", device),
        ("/dev/full", device),
        ("/dev/random", AccessFs::ReadFile.into()),
        ("/dev/urandom", AccessFs::ReadFile.into()),
    ];
    let more: &[_] = match profile {
        Profile::Data => &[],
        Profile::Services => &[("/dev/pts", device), ("/dev/tty", device), ("/home/user", writable)],
    };
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(all);
    let ruleset = match profile {
        Profile::Data => ruleset.and_then(|ruleset| ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal)),
        // Each kernel and each command has its own domain, and services must reach each other. Namespaces separate the sandboxes.
        Profile::Services => ruleset,
    };
    let mut ruleset = ruleset.and_then(Ruleset::create).map_err(std::io::Error::other)?;
    for (path, access) in rules.iter().chain(more).copied() {
        let path = PathFd::new(path).map_err(std::io::Error::other)?;
        ruleset = ruleset.add_rule(PathBeneath::new(path, access)).map_err(std::io::Error::other)?;
    }
    Ok(ruleset.into())
}

/// The version of the Landlock interface of Linux; 0 without it.
pub(crate) fn version() -> u32 {
    const LANDLOCK_CREATE_RULESET_VERSION: i64 = 1;
    crate::sys::raw(libc::SYS_landlock_create_ruleset, [0, 0, LANDLOCK_CREATE_RULESET_VERSION, 0, 0, 0])
        .ok()
        .and_then(|version| u32::try_from(version).ok())
        .unwrap_or(0)
}
