//! Kernel objects: what a program makes the host's kernel hold, next to what its control group counts.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use aludel_sandbox::{Backend, ExecutionEvent, KernelDeath, Limits, Outcome, Profile, SandboxId, SandboxSpec};
use common::{backend, limits, only_entry, run, sandbox};

/// Memory that a program may make the kernel hold for nobody's account, and what else goes on on the host meanwhile, bytes.
const UNCOUNTED: i64 = 48 << 20;

/// Programs that make as many of one kind as they may within half of the limit, and say so. `fill` runs its argument in so many processes,
/// each with all descriptors that it may have, until there are no more.
const OBJECTS: [(&str, &str); 13] = [
    ("event descriptors", "fill(8, lambda: os.eventfd(0))"),
    ("epolls", "fill(8, select.epoll)"),
    (
        "watches",
        "polls = [select.epoll() for _ in range(300)]; files = [os.eventfd(0) for _ in range(300)]\nfor p in polls:\n    for f in files: p.register(f)",
    ),
    ("pipes at their largest", "fill(8, large_pipe)"),
    ("memory files", "fill(8, lambda: os.memfd_create('x' * 240))"),
    (
        "locks of whole files, by a process that ends",
        "files = [open('/dev/null') for _ in range(900)]\nif os.fork() == 0:\n    for f in files: fcntl.flock(f, fcntl.LOCK_SH)\n    os._exit(0)\nos.wait()",
    ),
    ("names of sockets", "fill(8, named_socket)"),
    ("datagrams", "fill(1, full_socket)"),
    ("descriptors in flight", "fill(4, in_flight)"),
    ("signals", "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\nfor _ in range(200000): os.kill(os.getpid(), 40)"),
    ("symbolic links", "try:\n    for n in range(10**6): os.symlink('x' * 120, str(n))\nexcept OSError: pass"),
    (
        "pieces of mappings",
        "m = mmap.mmap(-1, 1 << 27, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\nat = ctypes.addressof(ctypes.c_char.from_buffer(m))\nfor n in range(0, 1 << 27, 8192): ctypes.CDLL(None).mprotect(ctypes.c_void_p(at + n), 4096, 1)",
    ),
    ("names that are not there", "for n in range(100000): os.path.exists(f'/usr/lib/{n:0200}')"),
];

/// The same with the profile for services. What TCP holds is in pages that the host's figures do not name; the suite of hostile programs
/// bounds it.
const SERVICES: [(&str, &str); 5] = [
    (
        "datagrams of UDP",
        "sender = socket.socket(type=socket.SOCK_DGRAM); sender.setblocking(False)\nfor _ in range(200):\n    receiver = socket.socket(type=socket.SOCK_DGRAM); receiver.bind(('127.0.0.1', 0)); receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30); held.append(receiver)\n    try:\n        for _ in range(2000): sender.sendto(b'x' * 2000, receiver.getsockname())\n    except OSError: pass",
    ),
    (
        "connections that nobody accepted",
        "for _ in range(4):\n    door = socket.socket(); door.bind(('127.0.0.1', 0)); door.listen(4096); held.append(door)\n    for _ in range(2000): socket.create_connection(door.getsockname()).close()",
    ),
    (
        "closed connections",
        "door = socket.socket(); door.bind(('127.0.0.1', 0)); door.listen(100)\nfor _ in range(8000): client = socket.create_connection(door.getsockname()); peer = door.accept()[0]; client.close(); peer.close()",
    ),
    (
        "files that are watched, and what is told of them",
        "libc = ctypes.CDLL(None); watch = libc.inotify_init1(0)\ntry:\n    for n in range(10**6):\n        open(str(n), 'w').close(); libc.inotify_add_watch(watch, str(n).encode(), 0xfff); open(str(n), 'a').close()\nexcept OSError: pass",
    ),
    (
        "terminals that are full",
        "for _ in range(16):\n    ends = os.openpty(); held.append(ends)\n    for end in ends:\n        os.set_blocking(end, False)\n        try:\n            while True: os.write(end, b'x' * 4096)\n        except BlockingIOError: pass",
    ),
];

const PRELUDE: &str = "
import ctypes, fcntl, mmap, os, select, signal, socket, time
held = []
def fill(processes, make):
    ready, result = os.pipe()
    for _ in range(processes):
        if os.fork() == 0:
            try:
                while True: held.append(make())
            except OSError: pass
            os.write(result, b'x')
            time.sleep(60)
    for _ in range(processes): os.read(ready, 1)
def large_pipe():
    ends = os.pipe()
    try: fcntl.fcntl(ends[1], 1031, 1 << 20)
    except OSError: pass
    return ends
def named_socket():
    s = socket.socket(socket.AF_UNIX); s.bind(f'\\0{os.getpid()}-{len(held)}'.ljust(100, 'x'))
    return s
def full_socket():
    if len(held) == 20: raise OSError
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30); pair[0].setblocking(False)
    try:
        while True: pair[0].send(b'x')
    except BlockingIOError: pass
    return pair
def in_flight():
    pair = socket.socketpair(); pair[0].setblocking(False)
    for _ in range(100): socket.send_fds(pair[0], [b'x'], [os.eventfd(0)])
    return pair
";

#[tokio::test]
async fn the_control_group_counts_nearly_all_that_the_kernel_holds_for_a_program() {
    let scratch = backend().await;
    let limits = Limits { memory: 256 << 20, open_files: 1000, timeout: Duration::from_secs(60), ..limits() };
    let mut uncounted = Vec::new();
    let of = |profile| move |(name, program)| (profile, name, program);
    let services = SERVICES.into_iter().map(of(Profile::Services));
    for (profile, name, program) in OBJECTS.into_iter().map(of(Profile::Data)).chain(services) {
        let mut least = i64::MAX;
        // Other processes of the host change its figures, too.
        for _ in 0..3 {
            let spec = SandboxSpec { profile, ..SandboxSpec::new(limits.clone()) };
            let sandbox = scratch.local.create(SandboxId::unique(), spec).await.unwrap();
            let Some(group) = memory_group(scratch.data.path()) else {
                // Nothing bounds a whole sandbox here, and the start says so.
                return;
            };
            run(&sandbox, PRELUDE).await;
            let before = unreclaimable() - counted(&group);
            let mut execution = sandbox.execute(&format!("{program}\nprint('held')\ntime.sleep(60)")).await.unwrap();
            let result = execution.next().await.unwrap();
            assert!(matches!(&result, ExecutionEvent::Stdout(text) if text == "held\n"), "{name}: {result:?}");
            least = least.min(unreclaimable() - counted(&group) - before);
            sandbox.close().await.unwrap();
            if least <= UNCOUNTED {
                break;
            }
        }
        uncounted.push((name, least));
    }
    scratch.local.shutdown().await;
    let (over, ok): (Vec<_>, Vec<_>) = uncounted.into_iter().partition(|(_, bytes)| *bytes > UNCOUNTED);
    assert!(over.is_empty(), "{over:?}, beside {ok:?}");
}

/// The only sandbox's control group, if it counts memory.
fn memory_group(data: &Path) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(only_entry(&data.join("run")).join("cgroups")).unwrap();
    let below = |group: &str| std::fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
    groups.lines().flat_map(below).find(|path| path.join("memory.stat").exists())
}

/// Memory of the kernel that a group counts, bytes; all of its memory where Linux shows no more.
fn counted(group: &Path) -> i64 {
    let read = |file: &str| std::fs::read_to_string(group.join(file)).ok();
    let kernel = |stat: String| stat.lines().find_map(|line| line.strip_prefix("kernel ").map(str::to_owned));
    let figure = read("memory.kmem.usage_in_bytes").or_else(|| kernel(read("memory.stat")?));
    figure.or_else(|| read("memory.current")).unwrap().trim().parse().unwrap()
}

/// Memory of the host's kernel that it cannot give back, bytes.
fn unreclaimable() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let names = ["SUnreclaim:", "KernelStack:", "PageTables:", "Percpu:"];
    let figures = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let figures = figures.filter(|(name, _)| names.contains(name));
    figures.map(|(_, figure)| figure.trim().trim_end_matches(" kB").parse::<i64>().unwrap() << 10).sum()
}

/// The kernel lists the locks of one processor after another. Those of a first one could hide those of a second.
#[tokio::test]
async fn locks_are_found_behind_those_of_neighbours() {
    let scratch = backend().await;
    let locks = |processor: usize, count: usize| {
        format!(
            "import fcntl, os, struct, time\nprocessors = sorted(os.sched_getaffinity(0)); os.sched_setaffinity(0, [processors[{processor} % len(processors)]])\n\
             held = open('/tmp/locked', 'w')\n\
             for place in range({count}, 0, -1): fcntl.fcntl(held, fcntl.F_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, place * 2, 1, 0))\n"
        )
    };
    let mut neighbours = Vec::new();
    for _ in 0..22 {
        let neighbour = sandbox(&scratch.local, limits()).await;
        let result = run(&neighbour, &locks(0, 900)).await;
        assert_eq!(result.finished.outcome, Outcome::Completed);
        neighbours.push(neighbour);
    }
    let sandbox = sandbox(&scratch.local, limits()).await;
    let result = run(&sandbox, &(locks(1, 3000) + "time.sleep(10)")).await;
    assert_eq!(result.finished.outcome, Outcome::KernelDied(KernelDeath::Signalled(9)));
    scratch.local.shutdown().await;
}
