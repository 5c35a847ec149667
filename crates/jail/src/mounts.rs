//! The file systems of the zygote and of a sandbox.
//!
//! The warden opens sources as detached mounts, because inside, the host's paths do not exist or are not accessible. The processes inside
//! attach them.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use aludel_ignore::Ignore;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind, mount_change,
    move_mount, open_tree, unmount,
};

use crate::message::JailLimits;
use crate::{Step, StepError, sys};

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;

/// Device nodes that programs expect. They are the host's: a user namespace may not make any.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Links in the same directory, as name and target.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// The directory of the compiled scripts in a template that has them.
pub const COMPILED_SCRIPTS: &str = "/usr/lib/aludel/kernel/__pycache__";

/// Mount point at which the new root is put together. It exists on every system.
const STAGE: &str = "/tmp";

/// Separates the calling process's mounts from the host's: its own mounts do not appear there; the host's unmounts take effect here too.
pub(crate) fn detach_from_host() -> Result<(), StepError> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).step("make the mounts private")
}

/// Mounts the proc of the calling process's pid namespace.
pub(crate) fn mount_proc() -> Result<(), StepError> {
    mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)
        .step("mount /proc")
}

/// The terminals of a sandbox, opened by the warden.
pub(crate) struct TerminalSources {
    /// The sandbox's instance of devpts.
    pub(crate) terminals: OwnedFd,
    /// The device `/dev/tty`.
    pub(crate) own: OwnedFd,
}

/// Opens `/dev/tty` for [`enter_shell`].
pub(crate) fn open_own_terminal() -> Result<OwnedFd, StepError> {
    let tree = detached(Path::new("/dev/tty"))?;
    sys::mount_setattr(tree.as_fd(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID).step("make /dev/tty read-only")?;
    Ok(tree)
}

/// The sources of the zygote's root, opened by the warden.
pub(crate) struct BaseSources {
    root: OwnedFd,
    proc: OwnedFd,
    devices: Vec<(&'static str, OwnedFd)>,
}

impl BaseSources {
    pub(crate) fn open(root: &Path) -> Result<Self, StepError> {
        let root_tree = detached(root)?;
        sys::mount_setattr(root_tree.as_fd(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
            .step("make the template read-only")?;
        let devices = DEVICES
            .into_iter()
            .map(|name| {
                let tree = detached(&Path::new("/dev").join(name))?;
                // A read-only mount does not keep devices from being written to. It protects their times, which are the host's and visible
                // to all.
                sys::mount_setattr(tree.as_fd(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)
                    .step(format!("make /dev/{name} read-only"))?;
                Ok((name, tree))
            })
            .collect::<Result<_, StepError>>()?;
        Ok(Self { root: root_tree, proc: detached(Path::new("/proc"))?, devices })
    }
}

/// A detached copy of the mount at `path`, without mounts below it.
fn detached(path: &Path) -> Result<OwnedFd, StepError> {
    open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .step(format!("open the mount {}", path.display()))
}

/// Makes a workspace's directory, mounts the workspace on it and returns its root directory.
pub(crate) fn make_workspace(path: &Path, owner: u32, bytes: u64, inodes: u64) -> Result<OwnedFd, StepError> {
    let options = format!("size={bytes},nr_inodes={inodes},mode=0700,uid={owner},gid={owner}");
    let options = std::ffi::CString::new(options).step("tmpfs options")?;
    fs::create_dir(path).step(format!("make the workspace's directory {}", path.display()))?;
    mount("tmpfs", path, "tmpfs", restricted(), Some(options.as_c_str())).step("mount the workspace")?;
    Ok(fs::File::open(path).step("open the workspace")?.into())
}

/// Unmounts a workspace and removes its directory. Sandboxes that use it keep the mount until they end.
pub(crate) fn remove_workspace(path: &Path) {
    // Success if it does not exist or is not mounted. A directory that stays is removed with the instance's.
    unmount(path, UnmountFlags::DETACH).ignore("it may not be mounted");
    fs::remove_dir(path).ignore("it may not exist, and one that stays is removed with the directory of the instance");
}

/// Removes every workspace in the directory.
pub(crate) fn remove_workspaces(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        remove_workspace(&entry.path());
    }
}

/// Opens a workspace for [`enter_shell`].
pub(crate) fn open_workspace(path: &Path) -> Result<OwnedFd, StepError> {
    let tree = detached(path)?;
    sys::mount_setattr(tree.as_fd(), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV).step("restrict the workspace")?;
    Ok(tree)
}

fn attach(tree: &OwnedFd, target: &str) -> Result<(), StepError> {
    move_mount(tree, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step(format!("mount {target}"))
}

/// Replaces the calling process's root by the template, with devices, a proc and the scripts under `/run/aludel`.
pub(crate) fn enter_base(sources: &BaseSources, scripts: &[(String, String)]) -> Result<(), StepError> {
    detach_from_host()?;
    // The template is attached inside a new tmpfs, so that it is certain to be a mount point that `pivot_root` accepts.
    tmpfs(STAGE, 1 << 20, 64, "0755")?;
    let root = format!("{STAGE}/root");
    fs::create_dir(&root).step("make the stage")?;
    attach(&sources.root, &root)?;
    attach(&sources.proc, &format!("{root}/proc"))?;
    for (name, tree) in &sources.devices {
        attach(tree, &format!("{root}/dev/{name}"))?;
    }
    let run = format!("{root}/run");
    tmpfs(&run, 1 << 20, 64, "0755")?;
    let directory = format!("{run}/aludel");
    fs::create_dir(&directory).step("make /run/aludel")?;
    for (name, text) in scripts {
        fs::write(format!("{directory}/{name}"), text).step(format!("write /run/aludel/{name}"))?;
    }
    std::os::unix::fs::symlink(COMPILED_SCRIPTS, format!("{directory}/__pycache__"))
        .step("link the compiled scripts")?;
    // A real /tmp for the zygote's imports; every sandbox mounts its own over it.
    tmpfs(&format!("{root}/tmp"), 64 << 20, 4096, "1777")?;
    rustix::mount::mount_remount(run.as_str(), MountFlags::BIND | MountFlags::RDONLY | restricted(), c"")
        .step("make /run read-only")?;
    pivot(&root)
}

/// The last part of every root change: the old root is mounted on top of the new one, and unmounted.
fn pivot(root: &str) -> Result<(), StepError> {
    rustix::process::chdir(root).step("enter the new root")?;
    rustix::process::pivot_root(".", ".").step("change the root")?;
    unmount(".", UnmountFlags::DETACH).step("let go of the old root")?;
    rustix::process::chdir("/").step("enter the root")
}

/// Makes a sandbox's own mounts. Runs as its init, in a copy of the zygote's mounts.
pub(crate) fn enter_shell(
    workspace: &OwnedFd,
    terminals: Option<&TerminalSources>,
    limits: &JailLimits,
    user: u32,
) -> Result<(), StepError> {
    if let Some(terminals) = terminals {
        make_dev(terminals)?;
    }
    // Processes only: no figures of the host about memory, interrupts, modules, keys or the kernel. Needs Linux 5.8.
    mount("proc", "/proc", "proc", restricted() | MountFlags::NOEXEC, Some(c"subset=pid")).step("mount /proc")?;
    // One tmpfs for both directories, so that one size limits both.
    tmpfs("/tmp", limits.tmp, limits.tmp_inodes, "0755")?;
    attach(workspace, "/mnt/data")?;
    tell_limits(limits)?;
    if terminals.is_some() {
        name_user(user)?;
    }
    for (name, target) in [("shm", "/dev/shm"), ("tmp", "/tmp")] {
        let source = format!("/tmp/{name}");
        fs::create_dir(&source).step(format!("make {source}"))?;
        fs::set_permissions(&source, std::os::unix::fs::PermissionsExt::from_mode(0o1777))
            .step(format!("open {source}"))?;
        mount_bind(&source, target).step(format!("mount {target}"))?;
    }
    if terminals.is_some() {
        // For clients that expect a home directory there. With the template's own link, programs would see its target.
        tmpfs("/home", 4 << 10, 4, "0755")?;
        fs::create_dir("/home/user").step("make /home/user")?;
        rustix::mount::mount_remount("/home", MountFlags::BIND | MountFlags::RDONLY | restricted(), c"")
            .step("make /home read-only")?;
        mount_bind("/mnt/data", "/home/user").step("mount /home/user")?;
    }
    Ok(())
}

/// Tells the sandbox's limits where Linux does: DuckDB, Node and others would otherwise take the host's memory and processors for theirs.
/// Two files and no control group: its figures and its switches stay out of reach.
fn tell_limits(limits: &JailLimits) -> Result<(), StepError> {
    // A template of other makers may lack it, and is read-only.
    if !Path::new("/sys").is_dir() {
        return Ok(());
    }
    let files = rustix::fs::statvfs("/mnt/data").step("ask for the size of the workspace")?;
    // Files are memory, too, and a library that reaches its limit starts to write some.
    let memory = limits.memory.saturating_sub(files.f_blocks * files.f_frsize).max(limits.memory / 2);
    let (quota, period) = limits.quota();
    let directory = "/tmp/sys/fs/cgroup";
    fs::create_dir_all(directory).step(format!("make {directory}"))?;
    for (name, text) in [("memory.max", format!("{memory}\n")), ("cpu.max", format!("{quota} {period}\n"))] {
        fs::write(format!("{directory}/{name}"), text).step(format!("write {directory}/{name}"))?;
    }
    mount_bind("/tmp/sys", "/sys").step("mount /sys")?;
    rustix::mount::mount_remount("/sys", MountFlags::BIND | MountFlags::RDONLY | restricted(), c"")
        .step("make /sys read-only")
}

/// Names the user of a sandbox's programs in `/etc`: the id differs from sandbox to sandbox. The texts lie beside the later `/tmp`, out of
/// reach. With `Profile::Data` the two mounts would cost each sandbox more than the name is worth.
fn name_user(user: u32) -> Result<(), StepError> {
    let users = format!(
        "root:x:0:0:root:/root:/bin/sh\nuser:x:{user}:{user}:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    );
    let groups = format!("root:x:0:\nuser:x:{user}:\nnogroup:x:65534:\n");
    for (file, text) in [("passwd", users), ("group", groups)] {
        let (source, target) = (format!("/tmp/{file}"), format!("/etc/{file}"));
        // A template of other makers may lack it, and is read-only.
        if !Path::new(&target).is_file() {
            continue;
        }
        fs::write(&source, text).step(format!("write {source}"))?;
        fs::set_permissions(&source, std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .step(format!("let all read {source}"))?;
        mount_bind(&source, &target).step(format!("mount {target}"))?;
        rustix::mount::mount_remount(&target, MountFlags::BIND | MountFlags::RDONLY | restricted(), c"")
            .step(format!("make {target} read-only"))?;
    }
    Ok(())
}

/// Mounts a `/dev` with terminals over the template's, which lacks the mount points.
fn make_dev(sources: &TerminalSources) -> Result<(), StepError> {
    let names = DEVICES.into_iter();
    let devices = names.map(|name| Ok((name, detached(&Path::new("/dev").join(name))?)));
    let devices = devices.collect::<Result<Vec<_>, StepError>>()?;
    tmpfs("/dev", 64 << 10, 64, "0755")?;
    for directory in ["/dev/pts", "/dev/shm"] {
        fs::create_dir(directory).step(format!("make {directory}"))?;
    }
    let own = ("tty", &sources.own);
    for (name, tree) in devices.iter().map(|(name, tree)| (*name, tree)).chain([own]) {
        let path = format!("/dev/{name}");
        fs::write(&path, "").step(format!("make {path}"))?;
        attach(tree, &path)?;
    }
    for (link, target) in DEVICE_LINKS {
        std::os::unix::fs::symlink(target, format!("/dev/{link}")).step(format!("make /dev/{link}"))?;
    }
    attach(&sources.terminals, "/dev/pts")?;
    rustix::mount::mount_remount("/dev", MountFlags::BIND | MountFlags::RDONLY | restricted(), c"")
        .step("make /dev read-only")
}

fn tmpfs(target: &str, size: u64, inodes: u64, mode: &str) -> Result<(), StepError> {
    let options =
        std::ffi::CString::new(format!("size={size},nr_inodes={inodes},mode={mode}")).step("tmpfs options")?;
    mount("tmpfs", target, "tmpfs", restricted(), Some(options.as_c_str())).step(format!("mount {target}"))
}

fn restricted() -> MountFlags {
    MountFlags::NOSUID | MountFlags::NODEV
}
