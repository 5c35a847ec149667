//! Things that a sandbox must not see, and traces that must not be left of it.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use aludel_jail::message::Profile;
use aludel_sandbox::{Backend, BackendStatus, Outcome, SandboxId, SandboxSpec};
use common::{all_pids, backend, backend_at, helpers_of, limits, only_entry, run, sandbox, shared, warden_of};

#[tokio::test]
async fn refused_system_calls_are_told_by_name() {
    let sandbox = sandbox(shared().await, limits()).await;
    // Caught by the program, made by a child, and made so often that the warden lets the program wait.
    let code = "import ctypes, os, socket\ntry: socket.socket()\nexcept PermissionError: pass\nos.system('python3 -c \"import os; os.chroot(chr(47))\" 2>/dev/null')\nfor _ in range(300): ctypes.CDLL(None).sethostname(b'x', 1)";
    let result = run(&sandbox, code).await;
    assert_eq!(result.finished.outcome, Outcome::Completed, "{result:?}");
    assert_eq!(result.finished.refused_calls, ["chroot", "sethostname", "socket"]);
    // Every one was caught, and what the child printed went nowhere.
    assert!(result.finished.relevant_refused_calls().is_empty());
    let result = run(&sandbox, "import socket\nsocket.socket()").await;
    assert_eq!(result.finished.relevant_refused_calls(), ["socket"]);
    let result = run(&sandbox, "import os\nos.system('python3 -c \"import os; os.chroot(chr(47))\"')").await;
    assert_eq!(result.finished.relevant_refused_calls(), ["chroot"]);
    // Told once, with the execution that they belong to.
    assert!(run(&sandbox, "1").await.finished.refused_calls.is_empty());
    // A program can make up numbers, but not the length of the list.
    let result =
        run(&sandbox, "import ctypes\nfor number in range(1000, 1200): ctypes.CDLL(None).syscall(number)").await;
    assert_eq!(result.finished.refused_calls, ["(an unknown number)"]);
    // Ordinary programs make no refused call.
    let ordinary = "import numpy as np, pandas as pd, subprocess, multiprocessing, sqlite3, tempfile, termios, fcntl\n# As newer C libraries ask for a terminal's modes.\ntry: fcntl.ioctl(0, 0x802c542a, bytes(44))\nexcept termios.error: pass\nexcept OSError as error: assert error.errno == 25, error\nsubprocess.run(['ls'])\nwith multiprocessing.Pool(2) as pool: print(pool.map(abs, [1, -2]))\npd.DataFrame({'a': [1]}).to_parquet('x')\nsqlite3.connect('y').execute('create table t (a)')\nnp.linalg.inv(np.eye(50))";
    let result = run(&sandbox, ordinary).await;
    assert_eq!(
        (result.finished.outcome, result.finished.refused_calls),
        (Outcome::Completed, Vec::<String>::new()),
        "{}",
        result.stderr
    );
}

#[tokio::test]
async fn two_sandboxes_do_not_see_each_other() {
    let one = sandbox(shared().await, limits()).await;
    let two = sandbox(shared().await, limits()).await;
    let result = run(&one, "open('secret.txt', 'w').write('x'); open('/tmp/secret.txt', 'w').write('x'); open('/dev/shm/secret', 'w').write('x')\nimport os, socket\ns = socket.socket(socket.AF_UNIX); s.bind('\\0secret'); s.listen()\nprint(os.getuid(), os.getpid())").await;
    assert_eq!(result.finished.outcome, Outcome::Completed, "{result:?}");
    let code = "import os, socket\nprint([p for p in ('/mnt/data/secret.txt', '/tmp/secret.txt', '/dev/shm/secret') if os.path.exists(p)])\nprint(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))\ntry:\n    socket.socket(socket.AF_UNIX).connect('\\0secret')\n    print('connected')\nexcept ConnectionRefusedError:\n    print('refused')\nprint(os.getuid())";
    let seen = run(&two, code).await;
    let lines: Vec<_> = seen.stdout.lines().collect();
    assert_eq!(lines[..3], ["[]", "[1, 2]", "refused"], "{seen:?}");
    let own_uid = result.stdout.split(' ').next().unwrap();
    assert_ne!(lines[3], own_uid, "as root, every sandbox has a user id of its own");
}

#[tokio::test]
async fn a_programs_user_has_a_name_that_it_cannot_change() {
    let code = "import grp, os, pwd, subprocess
user = pwd.getpwuid(os.getuid())
print(user.pw_name, user.pw_dir, grp.getgrgid(os.getgid()).gr_name)
print(subprocess.run(['id', '-un'], capture_output=True, text=True).stdout, end='')
def fails(what, *arguments):
    try: what(*arguments)
    except OSError: return True
names = ['/etc/passwd', '/etc/group']
print([fails(what, name, *more) for name in names for what, *more in [(open, 'a'), (os.chmod, 0o666), (os.unlink,), (os.utime,)]])
print(sorted(os.listdir('/tmp')))";
    // Of two at once, one at least is not the first of all, whose id the template has a name for.
    let spec = || SandboxSpec { profile: Profile::Services, ..SandboxSpec::new(limits()) };
    let one = shared().await.create(SandboxId::unique(), spec()).await.unwrap();
    let two = shared().await.create(SandboxId::unique(), spec()).await.unwrap();
    for sandbox in [one, two] {
        let told = run(&sandbox, code).await;
        let lines: Vec<_> = told.stdout.lines().collect();
        let untouched = "[True, True, True, True, True, True, True, True]";
        assert_eq!(lines, ["user /home/user user", "user", untouched, "[]"], "{told:?}");
    }
}

#[tokio::test]
async fn nothing_of_the_host_is_there() {
    let scratch = backend().await;
    let sandbox = sandbox(&scratch.local, limits()).await;
    let host_file = scratch.data.path().join("host-secret");
    std::fs::write(&host_file, "secret").unwrap();
    let code = format!(
        r#"
import os, socket, ctypes
found = []
def expect(name, call, *errors):
    try:
        call()
        found.append(name)
    except errors:
        pass
expect('host file', lambda: open({host_file:?}), FileNotFoundError)
expect('shadow', lambda: open('/etc/shadow'), FileNotFoundError, PermissionError)
expect('write to the template', lambda: open('/usr/lib/x', 'w'), OSError)
expect('inet socket', lambda: socket.socket(socket.AF_INET), PermissionError)
expect('netlink socket', lambda: socket.socket(socket.AF_NETLINK), PermissionError)
expect('raw packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW), PermissionError)
expect('kernel log', lambda: open('/dev/kmsg'), FileNotFoundError)
expect('memory info', lambda: open('/proc/meminfo'), FileNotFoundError)
expect('sysctl', lambda: open('/proc/sys/kernel/hostname'), FileNotFoundError)
expect('init environment', lambda: open('/proc/1/environ').read(1), PermissionError)
expect('setuid', lambda: os.setuid(0), PermissionError)
expect('device', lambda: os.mknod('/tmp/d', 0o020666, os.makedev(1, 1)), PermissionError)
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {{'unshare': 272, 'mount': 165, 'ptrace': 101, 'bpf': 321, 'io_uring': 425, 'userfaultfd': 323, 'keyctl': 250, 'kexec': 246, 'setns': 308, 'open_tree': 428}}.items():
    if libc.syscall(number, 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() != 1:
        found.append(name)
if libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) >= 0 or ctypes.get_errno() != 1:
    found.append('clone into a user namespace')
print(found, sorted(os.environ), socket.gethostname())
# The control: the same calls do work where they may.
open('/tmp/ok', 'w').write('x'); socket.socketpair(); os.mkfifo('/tmp/fifo'); open('/proc/self/status').read()
"#
    );
    let result = run(&sandbox, &code).await;
    assert_eq!(result.finished.outcome, Outcome::Completed, "{result:?}");
    assert!(result.stdout.starts_with("[] "), "{}", result.stdout);
    assert!(result.stdout.trim_end().ends_with("sandbox"), "{}", result.stdout);
    for secret in ["CARGO", "RUST", "SSH", "AWS"] {
        assert!(!result.stdout.contains(secret), "{}", result.stdout);
    }
}

/// Each layer of the isolation is seen by an effect that it alone has, though one would do.
#[tokio::test]
async fn every_layer_is_there_though_one_would_do() {
    let scratch = backend().await;
    let sandbox = sandbox(&scratch.local, limits()).await;
    let code = r#"
import errno
mounts = [line.split() for line in open('/proc/self/mountinfo')]
def where(lacks): return sorted({fields[4] for fields in mounts if lacks not in fields[5].split(',')})
print('not read-only', where('ro'))
print('set-id', where('nosuid'))
print('devices', where('nodev'))
status = {name: value for name, _, value in (line.rstrip().partition(':\t') for line in open('/proc/self/status'))}
print([status[name].strip('0 ') for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')])
try: open('/proc/self/comm', 'w'); print('its own, and it may')
except OSError as error: print(errno.errorcode[error.errno])
"#;
    let result = run(&sandbox, code).await;
    let without = scratch.local.warnings().iter().any(|warning| warning.contains("no Landlock"));
    let landlock = if without { "its own, and it may" } else { "EACCES" };
    let expected = format!(
        "not read-only ['/dev/shm', '/mnt/data', '/proc', '/tmp']\nset-id []\n\
         devices ['/dev/full', '/dev/null', '/dev/random', '/dev/urandom', '/dev/zero']\n\
         ['', '', '', '', '', '1', '2']\n{landlock}\n"
    );
    assert_eq!(result.stdout, expected, "{result:?}");
}

#[tokio::test]
async fn every_system_call_that_is_not_allowed_is_refused() {
    let sandbox = sandbox(shared().await, limits()).await;
    let allowed = aludel_jail::syscalls::numbers(Profile::Data);
    // Beyond today's last number, and the x32 forms, which share the numbers with a bit on top. Not the two that the kernel itself uses for
    // probes: it lets them pass every filter, and whoever else calls them gets SIGILL.
    let code = format!(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nallowed = set({allowed:?})\nwrong = []\n\
         for number in [n for n in range(600) if n not in allowed and n not in (335, 336)] + [0x40000000 + n for n in (0, 1, 2, 59, 101)]:\n    \
         if libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1: wrong.append((number, ctypes.get_errno()))\n\
         clone3 = libc.syscall(435, 0, 0), ctypes.get_errno()\nprint(wrong, clone3)\n\
         print(libc.syscall(39) > 0)"
    );
    let result = run(&sandbox, &code).await;
    // The last line is the control: getpid is allowed.
    assert_eq!(result.stdout, "[] (-1, 38)\nTrue\n", "{result:?}");
}

#[tokio::test]
async fn arguments_are_checked_where_they_matter() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def refused(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    return result == -1 and ctypes.get_errno() == 1
NEW = [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000]
print(all(refused(56, flag | 17, 0, 0, 0, 0) for flag in NEW + [0x8000, 0x2000]))
print(all(refused(41, family, 1, 0) for family in range(2, 46)), all(refused(53, family, 1, 0, 0) for family in range(2, 46)))
print(refused(41, 2 | 1 << 32, 1, 0), refused(16, 0, 0x5412, 0), refused(16, 0, 0x5412 | 1 << 32, 0))
import os, socket, fcntl
print(os.getpgrp() == os.getpid() == os.getsid(0), refused(72, 0, 37, 0), refused(72, 0, 1024, 0), refused(54, 3, 1, 26, 0, 0), refused(55, 3, 1, 77, 0, 0))
print(refused(157, 4, 1), refused(157, 22, 2), refused(157, 35, 0), refused(157, 0x53564d41, 0), refused(259, -100, 0, 0o020666, 259))
print(refused(62, 1, 0), refused(62, 1 | 1 << 32, 0), refused(234, 1, 1, 0), libc.syscall(62, 2, 0) == 0)
# The controls: the same calls with harmless arguments.
print(libc.syscall(41, 1, 1, 0) > 0, libc.syscall(157, 39, 0, 0, 0, 0) == 1)
"#;
    let result = run(&sandbox, code).await;
    assert_eq!(
        result.stdout,
        "True\nTrue True\nTrue True True\nTrue True True True True\nTrue True True True True\nTrue True True True\nTrue True\n",
        "{result:?}"
    );
    // Init has another user id where sandboxes have their own: that it was the filter which refused shows in what it prints.
    let told_of = |name: &str| result.finished.refused_calls.iter().any(|blocked| blocked == name);
    assert!(told_of("kill") && told_of("tgkill"), "{result:?}");
}

#[tokio::test]
async fn files_that_cannot_be_handed_on_are_counted() {
    let sandbox = sandbox(shared().await, limits()).await;
    let deep = "import os\nos.makedirs('d/' * 40)\nopen(b'bad\\xff', 'w'); open('good', 'w')";
    let result = run(&sandbox, deep).await.finished;
    assert_eq!((result.files.len(), result.files_left_out), (1, 2), "{result:?}");
    let many = "for number in range(1100): open(f'{number}.txt', 'w')";
    let result = run(&sandbox, many).await.finished;
    assert_eq!((result.files.len(), result.files_left_out), (1000, 100));
    let result = run(&sandbox, "open(b'bad\\xff', 'w').write('again')").await.finished;
    assert_eq!((result.files.len(), result.files_left_out), (0, 1));
    assert_eq!(run(&sandbox, "pass").await.finished.files_left_out, 0);
}

#[tokio::test]
async fn the_host_follows_no_path_of_the_guest() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "import os, socket\nos.symlink('/etc/passwd', 'link'); os.symlink('/', 'root'); os.mkdir('d'); os.mkfifo('fifo')\nsocket.socket(socket.AF_UNIX).bind('sock')\nopen('d/real', 'w').write('real')\nos.symlink('d', 'alias')\nopen(b'bad\\xff', 'w'); open('new\\nline\\x1b[31m', 'w').write('x')";
    assert_eq!(run(&sandbox, code).await.finished.outcome, Outcome::Completed);
    let workspace = sandbox.workspace();
    let paths: Vec<_> = workspace.files().unwrap().into_iter().map(|file| file.path).collect();
    assert_eq!(paths, ["d/real", "new\nline\u{1b}[31m"]);
    for path in [
        "link",
        "root/etc/passwd",
        "fifo",
        "sock",
        "d",
        "../workspaces",
        "/etc/passwd",
        "d/../../x",
        "alias/real",
        "none",
        "",
    ] {
        let started = Instant::now();
        assert!(workspace.read(path, 1 << 20).is_err(), "{path:?} was read");
        // A pipe that nobody writes to is not waited for.
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(workspace.read("d/real", 4).unwrap(), b"real");
    assert!(workspace.read("d/real", 3).is_err());
    for name in ["../x", "/x", "a/../../x", "", "a/", ".", "link/x", "root/x", "alias/x"] {
        assert!(workspace.write(name, &mut &b"new"[..], 1 << 20).is_err(), "{name:?} was written");
    }
    // A link at the target is replaced, not followed.
    workspace.write("link", &mut &b"new"[..], 1 << 20).unwrap();
    assert!(std::fs::read_to_string("/etc/passwd").unwrap().contains("root"));
}

#[tokio::test]
async fn daemons_end_with_their_sandbox() {
    let sandbox = sandbox(shared().await, limits()).await;
    let marker = format!("{}.5", 86_000_000 + u64::from(std::process::id()));
    let code = format!(
        "import subprocess\nfor _ in range(3): subprocess.Popen(['sleep', '{marker}'], start_new_session=True, stdout=-3, stderr=-3)\nprint('started')"
    );
    assert_eq!(run(&sandbox, &code).await.stdout, "started\n");
    // Linux shows no arguments of a program that has just begun.
    until(|| processes_with(&marker) == 3, "the control: they run").await;
    sandbox.close().await.unwrap();
    assert_eq!(processes_with(&marker), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_never_has_more_than_it_may() {
    let data = tempfile::tempdir().unwrap();
    let local = backend_at(data.path(), limits(), 2).await;
    for _ in 0..3 {
        until(|| local.health().pooled >= 2, "the pool stays short").await;
        // One is missing now, and the next look finds it.
        drop(sandbox(&local, limits()).await);
        until(|| local.health().pooled >= 2, "the pool stays short").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(local.health().pooled, 2);
    }
    local.shutdown().await;
}

#[tokio::test]
async fn a_backend_that_shuts_down_leaves_nothing() {
    let data = tempfile::tempdir().unwrap();
    let local = backend_at(data.path(), limits(), 2).await;
    let sandbox = sandbox(&local, limits()).await;
    run(&sandbox, "open('file', 'w').write('x')").await;
    let instance = only_entry(&data.path().join("run"));
    let groups = std::fs::read_to_string(instance.join("cgroups")).unwrap();
    assert!(groups.lines().all(|group| Path::new(group).is_dir()));
    local.shutdown().await;
    assert!(!instance.exists());
    assert!(groups.lines().all(|group| !Path::new(group).exists()), "{groups}");
    assert!(sandbox.execute("1").await.is_err());
}

#[tokio::test]
async fn a_warden_that_is_killed_takes_its_sandboxes_along_and_its_supervisor_clears_up() {
    let data = tempfile::tempdir().unwrap();
    let local = backend_at(data.path(), limits(), 0).await;
    let sandbox = sandbox(&local, limits()).await;
    let marker = format!("{}.7", 87_000_000 + u64::from(std::process::id()));
    run(&sandbox, &format!("import subprocess; subprocess.Popen(['sleep', '{marker}'], start_new_session=True)")).await;
    // Linux shows no arguments of a program that has just begun.
    until(|| processes_with(&marker) == 1, "the control: it runs").await;
    let instance = only_entry(&data.path().join("run"));
    let groups = std::fs::read_to_string(instance.join("cgroups")).unwrap();
    let warden = warden_of(&instance);
    rustix::process::kill_process(rustix::process::Pid::from_raw(warden).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    until(|| processes_with(&marker) == 0, "a sandbox outlived its warden").await;
    until(|| !sandbox.is_alive() || local.health().status != BackendStatus::Ready, "nobody noticed").await;
    assert!(sandbox.execute("1").await.is_err());
    local.shutdown().await;
    assert!(!instance.exists());
    assert!(groups.lines().all(|group| !Path::new(group).exists()), "{groups}");
}

async fn until(is_so: impl Fn() -> bool, words: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{words}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Nobody knows of them any more but by their names.
#[tokio::test]
async fn control_groups_whose_data_directory_is_gone_are_cleared_up() {
    let data = tempfile::tempdir().unwrap();
    let local = backend_at(data.path(), limits(), 0).await;
    let groups = std::fs::read_to_string(only_entry(&data.path().join("run")).join("cgroups")).unwrap();
    let mut dead = std::process::Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    let left_by =
        |pid: u32| groups.lines().map(move |group| Path::new(group).with_file_name(format!("aludel-{pid}-1-0")));
    let own = std::process::id();
    for group in left_by(dead.id()).chain(left_by(own)) {
        std::fs::create_dir_all(group.join("s1")).unwrap();
    }
    let next = tempfile::tempdir().unwrap();
    backend_at(next.path(), limits(), 0).await.shutdown().await;
    let host_sees_all = std::fs::read_link("/proc/self/ns/pid").unwrap() == Path::new("pid:[4026531836]");
    if host_sees_all {
        assert!(left_by(dead.id()).all(|group| !group.exists()));
    } else {
        // Nothing is removed there: its owner may live outside of this namespace.
        eprintln!("SKIPPED: the removal of a dead owner's groups, for this is a pid namespace");
        assert!(left_by(dead.id()).all(|group| group.exists()));
    }
    assert!(left_by(own).all(|group| group.join("s1").exists()), "the control: its owner lives");
    for group in left_by(dead.id()).chain(left_by(own)).filter(|group| group.exists()) {
        std::fs::remove_dir(group.join("s1")).unwrap();
        std::fs::remove_dir(group).unwrap();
    }
    local.shutdown().await;
}

/// The zygote answers in order: a late answer must not be taken for that to the next request, which is about another sandbox.
#[tokio::test(flavor = "multi_thread")]
async fn a_zygote_that_was_late_is_not_misunderstood() {
    let data = tempfile::tempdir().unwrap();
    let local = backend_at(data.path(), limits(), 0).await;
    let warden = warden_of(&only_entry(&data.path().join("run")));
    let [zygote, ..] = helpers_of(warden);
    let signal =
        |signal| rustix::process::kill_process(rustix::process::Pid::from_raw(zygote).unwrap(), signal).unwrap();
    signal(rustix::process::Signal::STOP);
    let given_up = local.create(SandboxId::unique(), SandboxSpec::new(limits())).await;
    signal(rustix::process::Signal::CONT);
    assert!(given_up.unwrap_err().to_string().contains("no answer"));
    for _ in 0..3 {
        let sandbox = sandbox(&local, limits()).await;
        assert_eq!(run(&sandbox, "print(1)").await.stdout, "1\n");
    }
    local.shutdown().await;
}

/// A fork may wait behind the locks of hundreds of busy processes, which then have to pause.
#[tokio::test(flavor = "multi_thread")]
async fn crowded_sandboxes_pause_while_a_fork_is_late() {
    let data = tempfile::tempdir().unwrap();
    let local = backend_at(data.path(), limits(), 0).await;
    let limits = || aludel_sandbox::Limits { processes: 64, ..limits() };
    let [crowded, asleep] = [sandbox(&local, limits()).await, sandbox(&local, limits()).await];
    let count = "import os, threading, time\nfor _ in range(40):\n    if os.fork() == 0:\n        {CHILD}\n\
                 def work():\n    while True: open('n', 'a').write('x'); time.sleep(0.01)\n\
                 threading.Thread(target=work, daemon=True).start()";
    for (sandbox, child) in [(&asleep, "time.sleep(600)"), (&crowded, "while True: pass")] {
        let told = run(sandbox, &count.replace("{CHILD}", child)).await;
        assert_eq!(told.finished.outcome, Outcome::Completed, "{told:?}");
    }
    let size = "import os, time; a = os.path.getsize('n'); time.sleep(1.5); print(os.path.getsize('n') - a)";
    let [zygote, ..] = helpers_of(warden_of(&only_entry(&data.path().join("run"))));
    let signal =
        |signal| rustix::process::kill_process(rustix::process::Pid::from_raw(zygote).unwrap(), signal).unwrap();
    let steps = async |sandbox| {
        let looked = run(sandbox, size).await;
        looked.stdout.trim().parse::<u32>().unwrap_or_else(|_| panic!("{looked:?}"))
    };
    signal(rustix::process::Signal::STOP);
    let forking = local.create(SandboxId::unique(), SandboxSpec::new(limits()));
    let going_on = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        // The program that looks pauses with the rest, for as long as the zygote is stopped.
        let looking = async { tokio::join!(steps(&crowded), steps(&asleep)) };
        let waking = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            signal(rustix::process::Signal::CONT);
        };
        let began = Instant::now();
        let ((of_crowd, of_sleepers), ()) = tokio::join!(looking, waking);
        (of_crowd, of_sleepers, began.elapsed())
    };
    let (made, (of_crowd, of_sleepers, took)) = tokio::join!(forking, going_on);
    made.unwrap();
    assert!(of_sleepers > 20, "a sandbox whose processes sleep goes on: {of_sleepers}");
    assert!(took > Duration::from_secs(4), "the other pauses for the 3 s: {took:?}, {of_crowd}");
    local.shutdown().await;
}

/// Counts the host's processes with this argument.
fn processes_with(argument: &str) -> usize {
    let has = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes()))
    };
    all_pids().filter(has).count()
}

#[tokio::test]
async fn a_warden_rests_when_a_sandbox_has_ended() {
    let scratch = backend().await;
    let warden = warden_of(&only_entry(&scratch.data.path().join("run")));
    let ended = sandbox(&scratch.local, limits()).await;
    assert_eq!(run(&ended, "print(1)").await.stdout, "1\n");
    // The shell of the next sandbox is made meanwhile, with copies of all that the warden has.
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(ended);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{warden}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = ticks();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let taken = ticks() - before;
    assert!(taken < 10, "{taken} hundredths of a second");
}
