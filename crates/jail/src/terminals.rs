//! Terminals of a sandbox: its own instance of devpts, shared with no other sandbox and not with the host.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::message::TerminalSize;
use crate::{Step, StepError};

/// Terminals of one sandbox. Linux takes up to a quarter of a megabyte for each, and for what is written there time of threads of its own,
/// as many at once; no control group counts either.
const MAX_TERMINALS: u32 = 16;

/// Makes an instance whose terminals belong to this user id, and returns it as a detached mount.
pub(crate) fn make_mount(owner: u32) -> Result<OwnedFd, StepError> {
    let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC).step("open devpts")?;
    let owner = owner.to_string();
    let most = MAX_TERMINALS.to_string();
    for (key, value) in [("uid", &*owner), ("gid", &*owner), ("mode", "0600"), ("ptmxmode", "0666"), ("max", &*most)] {
        fsconfig_set_string(&context, key, value).step(format!("set {key} of devpts"))?;
    }
    fsconfig_create(&context).step("make the terminals")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step("mount the terminals")
}

/// Opens a terminal, and returns its controlling side and the side for programs.
pub(crate) fn open(mount: &OwnedFd, size: TerminalSize) -> Result<[OwnedFd; 2], StepError> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = openat(mount, "ptmx", flags, Mode::empty()).step("open a terminal")?;
    unlockpt(&ours).step("unlock the terminal")?;
    resize(&ours, size).step("set the terminal's size")?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let theirs = ioctl_tiocgptpeer(&ours, flags).step("open the terminal's other end")?;
    Ok([ours, theirs])
}

fn resize(terminal: &OwnedFd, size: TerminalSize) -> rustix::io::Result<()> {
    let TerminalSize { columns: ws_col, rows: ws_row } = size;
    tcsetwinsize(terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })
}
