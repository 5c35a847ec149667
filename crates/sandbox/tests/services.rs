//! The profile for services: ports and terminals.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use aludel_sandbox::process::{Command, ExitStatus, Process, PtySize};
use aludel_sandbox::{Backend, Error, KernelOptions, Limits, Outcome, Profile, Sandbox, SandboxId, SandboxSpec};
use common::{limits, listen, run, sandbox, shared, wait_beside};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(20);
const SIZE: PtySize = PtySize { columns: 100, rows: 30 };

async fn services() -> Arc<dyn Sandbox> {
    with_limits(limits()).await
}

async fn with_limits(limits: Limits) -> Arc<dyn Sandbox> {
    let spec = SandboxSpec { profile: Profile::Services, ..SandboxSpec::new(limits) };
    shared().await.create(SandboxId::unique(), spec).await.unwrap()
}

fn command(arguments: &[&str], pty: Option<PtySize>) -> Command {
    let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let environment = vec![("TERM".to_owned(), "xterm".to_owned())];
    Command { arguments, environment, directory: "/mnt/data".into(), pty }
}

/// Answers each connection with what it reads, in capitals.
fn server(family: &str, address: &str, port: u16) -> String {
    format!(
        "import socket, threading\nserver = socket.socket(socket.{family})\nserver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
         server.bind(('{address}', {port}))\nserver.listen()\ndef serve(server=server):\n    while True:\n        client, _ = server.accept()\n        client.sendall(client.recv(100).upper()); client.close()\n\
         threading.Thread(target=serve, daemon=True).start()"
    )
}

async fn ask(sandbox: &Arc<dyn Sandbox>, port: u16) -> Result<String, Error> {
    let mut connection = sandbox.connect(port).await?;
    connection.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    timeout(LONG, connection.read_to_string(&mut answer)).await.unwrap().unwrap();
    Ok(answer)
}

#[tokio::test]
async fn a_server_inside_is_reached_by_the_host_alone() {
    let (one, two) = (services().await, services().await);
    assert!(matches!(ask(&one, 8000).await, Err(Error::PortClosed(8000))));
    for (family, address, port) in [
        ("AF_INET", "127.0.0.1", 8000),
        ("AF_INET", "0.0.0.0", 8001),
        ("AF_INET6", "::1", 8002),
        ("AF_INET6", "::", 8003),
    ] {
        let result = run(&one, &server(family, address, port)).await;
        assert_eq!(result.finished.outcome, Outcome::Completed, "{result:?}");
        assert_eq!(ask(&one, port).await.unwrap(), "HELLO");
        assert!(matches!(ask(&two, port).await, Err(Error::PortClosed(_))), "a port is the sandbox's own");
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "and not the host's");
    }
    // Inside it is there for others, too: what runs in the same sandbox.
    let client = "import socket\nclient = socket.create_connection(('localhost', 8000))\nclient.sendall(b'inside'); print(client.recv(100))";
    let output = one.run(command(&["python3", "-c", client], None), b"", LONG, 100).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "b'INSIDE'\n", "{output:?}");
}

#[tokio::test]
async fn many_connections_at_once_wait_for_their_turn_and_take_no_place_from_others() {
    let (one, two) = (services().await, services().await);
    run(&one, &server("AF_INET", "127.0.0.1", 8000)).await;
    run(&two, &server("AF_INET", "127.0.0.1", 8000)).await;
    // Nobody accepts, and the queue is full: each connection waits for its 20 ms.
    let full = "import socket\nfull = socket.socket(); full.bind(('127.0.0.1', 8001)); full.listen(0)\nqueue = []\n\
                for _ in range(8):\n    queue.append(socket.socket()); queue[-1].setblocking(False); queue[-1].connect_ex(('127.0.0.1', 8001))";
    let result = run(&one, full).await;
    assert_eq!(result.finished.outcome, Outcome::Completed, "{result:?}");
    let flood = async {
        // Each gives up at once, and its connection goes on without it.
        for _ in 0..200 {
            futures_util::future::join_all((0..40).map(|_| timeout(Duration::from_millis(5), one.connect(8001)))).await;
        }
    };
    let others = async {
        for _ in 0..20 {
            let answers = futures_util::future::join_all((0..10).map(|_| ask(&two, 8000))).await;
            assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer == "HELLO")), "{answers:?}");
        }
    };
    tokio::select! {
        () = flood => panic!("the flood must last longer"),
        () = others => {}
    }
    assert_eq!(ask(&one, 8000).await.unwrap(), "HELLO");
}

#[tokio::test]
async fn nothing_inside_reaches_the_host() {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // An address of the host's that is not on its loopback device, without a packet being sent.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr()).map(|address| address.ip().to_string());
    let own = own.unwrap_or_else(|_| "192.0.2.1".into());
    std::net::TcpStream::connect(("127.0.0.1", port)).expect("the control: it listens");
    let sandbox = services().await;
    let code = format!(
        "import errno, socket\nfor address in ('127.0.0.1', '127.1.2.3', '{own}', '10.0.0.1', '169.254.169.254', '8.8.8.8'):\n    \
         for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n        s = socket.socket(socket.AF_INET, kind); s.settimeout(5)\n        \
         try: s.connect((address, {port})); s.send(b'x'); s.recv(1); print('reached', address)\n        \
         except OSError as error: print(errno.errorcode[error.errno])\n\
         try: socket.socket().bind(('{own}', 0)); print('bound')\nexcept OSError as error: print(errno.errorcode[error.errno])\n\
         try: socket.socket(socket.AF_INET6).connect(('2001:4860:4860::8888', 80)); print('reached')\nexcept OSError as error: print(errno.errorcode[error.errno])"
    );
    let result = run(&sandbox, &code).await;
    let expected = format!("{}{}EADDRNOTAVAIL\nENETUNREACH\n", "ECONNREFUSED\n".repeat(4), "ENETUNREACH\n".repeat(8));
    assert_eq!(result.stdout, expected, "{result:?}");
}

#[tokio::test]
async fn a_sandbox_for_data_has_neither_ports_nor_terminals() {
    let sandbox = sandbox(shared().await, limits()).await;
    assert!(matches!(sandbox.connect(80).await.err(), Some(Error::NotSupported(_))));
    let refused = sandbox.spawn(command(&["true"], Some(SIZE))).await;
    assert!(matches!(refused, Err(Error::NotSupported(_))));
    let look = "import os\nprint(os.path.exists('/dev/pts'), os.path.exists('/dev/tty'), os.path.exists('/dev/ptmx'))";
    assert_eq!(run(&sandbox, look).await.stdout, "False False False\n");
}

/// Reads from a terminal until a text was shown.
async fn until(process: &mut Process, shown: &mut String, text: &str) {
    let mut bytes = [0; 4096];
    while !shown.contains(text) {
        let count = timeout(LONG, process.stdout.read(&mut bytes)).await.expect(shown).unwrap();
        assert!(count > 0, "{text:?} was not shown: {shown:?}");
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    *shown = shown.split_once(text).unwrap().1.to_owned();
}

#[tokio::test]
async fn a_shell_runs_in_a_terminal() {
    let sandbox = services().await;
    let mut shell = sandbox.spawn(command(&["bash", "--norc", "-i"], Some(SIZE))).await.unwrap();
    let mut stdin = shell.stdin.take().unwrap();
    let mut shown = String::new();
    let mut kind = async |text: &str| stdin.write_all(text.as_bytes()).await.unwrap();
    kind("PS1=; echo $((40 + 2)) $TERM $COLUMNS $LINES\n").await;
    until(&mut shell, &mut shown, "42 xterm 100 30").await;
    kind("python3 -c 'import os, sys; print(os.ttyname(0), os.isatty(1), os.get_terminal_size(), os.open(\"/dev/tty\", 2) > 2)'\n")
        .await;
    until(&mut shell, &mut shown, "/dev/pts/0 True os.terminal_size(columns=100, lines=30) True").await;
    // A change of the window is reported.
    kind("trap 'echo changed' WINCH; echo 'rea''dy'\n").await;
    until(&mut shell, &mut shown, "ready").await;
    // Until its library for lines has said so, the shell may still set the terminal's size to the one that it has read.
    until(&mut shell, &mut shown, "\x1b[?2004h").await;
    shell.resize(PtySize { columns: 7, rows: u16::MAX }).unwrap();
    kind("\n").await;
    until(&mut shell, &mut shown, "changed").await;
    kind("python3 -c 'import os; print(os.get_terminal_size())'\n").await;
    until(&mut shell, &mut shown, "columns=7, lines=65535").await;
    // The keys that mean a signal, and jobs.
    kind("sleep 600\n").await;
    wait_beside(&sandbox, "grep -qsz '^600$' /proc/[0-9]*/cmdline").await;
    kind("\x03echo 'inter''rupted'\n").await;
    until(&mut shell, &mut shown, "interrupted").await;
    kind("sleep 601 & kill %1; wait; echo 'jo''bs'\n").await;
    until(&mut shell, &mut shown, "jobs").await;
    kind("exit 5\n").await;
    assert_eq!(timeout(LONG, shell.wait()).await.unwrap(), Some(ExitStatus::Code(5)));
    let mut rest = Vec::new();
    timeout(LONG, shell.stdout.read_to_end(&mut rest)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_program_controls_its_terminal_from_the_start() {
    let sandbox = services().await;
    let look = "import os; print(os.open('/dev/tty', os.O_RDWR) > 2, os.tcgetpgrp(0) == os.getpid() == os.getsid(0))";
    let output = sandbox.run(command(&["python3", "-c", look], Some(SIZE)), b"", LONG, 1000).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "True True\r\n", "{output:?}");
}

#[tokio::test]
async fn programs_of_one_sandbox_may_signal_one_another_and_outlive_whoever_watches() {
    let sandbox = services().await;
    let process = sandbox
        .spawn(command(&["sh", "-c", "trap 'exit 4' TERM; touch /tmp/ready; while :; do sleep 0.01; done"], None));
    let mut process = process.await.unwrap();
    wait_beside(&sandbox, "[ -e /tmp/ready ]").await;
    let kill = format!("kill -TERM {}", process.id());
    let output = sandbox.run(command(&["sh", "-c", &kill], None), b"", LONG, 100).await.unwrap();
    assert_eq!(output.status, Some(ExitStatus::Code(0)), "{output:?}");
    assert_eq!(timeout(LONG, process.wait()).await.unwrap(), Some(ExitStatus::Code(4)));
    // Of two abstract sockets, one finds the other.
    run(&sandbox, "import socket\ns = socket.socket(socket.AF_UNIX); s.bind('\\0here'); s.listen()").await;
    let connect = command(&["python3", "-c", "import socket; socket.socket(socket.AF_UNIX).connect('\\0here')"], None);
    assert_eq!(sandbox.run(connect, b"", LONG, 100).await.unwrap().status, Some(ExitStatus::Code(0)));
}

#[tokio::test]
async fn a_terminal_that_nobody_reads_waits_and_ends_with_its_process() {
    let sandbox = services().await;
    let flood = sandbox.spawn(command(&["sh", "-c", "echo $$ > /tmp/flood; exec yes"], Some(SIZE))).await.unwrap();
    wait_beside(&sandbox, "[ -s /tmp/flood ]").await;
    assert_eq!(run(&sandbox, "print(1)").await.stdout, "1\n");
    drop(flood);
    wait_beside(&sandbox, "! [ -e /proc/$(cat /tmp/flood) ]").await;
    // Their number is bounded, and what has ended takes no room.
    let open = "import os\nheld = []\ntry:\n    while True: held.append(os.openpty())\nexcept OSError as error: print(len(held), error.errno)\nfor ends in held: os.close(ends[0]), os.close(ends[1])";
    assert_eq!(run(&sandbox, open).await.stdout, "16 28\n");
    let output = sandbox.run(command(&["true"], Some(SIZE)), b"", LONG, 100).await.unwrap();
    assert_eq!(output.status, Some(ExitStatus::Code(0)));
}

/// Processes of the sandbox beside its init and whoever counts them.
const OTHERS: &str = "import os\nprint(sum(entry.isdigit() for entry in os.listdir('/proc')) - 2)";

#[tokio::test]
async fn the_kernel_starts_with_the_first_program() {
    let sandbox = services().await;
    let others = async || {
        let output = sandbox.run(command(&["python3", "-c", OTHERS], None), b"", LONG, 100).await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(sandbox.is_alive());
    assert_eq!(others().await, "0\n");
    sandbox.pause().await.unwrap();
    assert!(matches!(sandbox.execute("1").await, Err(Error::Paused)));
    sandbox.resume().await.unwrap();
    assert_eq!(run(&sandbox, "print(1)").await.stdout, "1\n");
    assert_eq!(others().await, "1\n");
}

#[tokio::test]
async fn a_kernel_that_was_closed_before_it_started_never_starts() {
    let sandbox = services().await;
    let kernel = sandbox.first_kernel();
    assert!(kernel.is_alive());
    kernel.close().await;
    assert!(!kernel.is_alive() && !sandbox.is_alive());
    assert!(matches!(sandbox.execute("1").await, Err(Error::KernelGone(_))));
    let further = sandbox.start_kernel(KernelOptions::default()).await.unwrap();
    assert!(further.is_alive());
}

#[tokio::test]
async fn the_first_kernel_has_a_place_of_its_own() {
    let sandbox = with_limits(Limits { kernels: 2, ..limits() }).await;
    let further = sandbox.start_kernel(KernelOptions::default()).await.unwrap();
    assert!(matches!(sandbox.start_kernel(KernelOptions::default()).await, Err(Error::Full)));
    assert_eq!(run(&sandbox, "print(1)").await.stdout, "1\n");
    drop(further);
    assert!(sandbox.start_kernel(KernelOptions::default()).await.is_ok());
}

/// Prints the kinds of a kernel's descriptors, and the answer to one that is sent over its socket.
const SENDS: &str = "import os, platform, socket, stat
kinds = [stat.S_IFMT(os.fstat(int(n)).st_mode) for n in sorted(os.listdir('/proc/self/fd'), key=int)[:-1]]
print(*[{stat.S_IFIFO: 'pipe', stat.S_IFSOCK: 'socket', stat.S_IFCHR: 'null'}[kind] for kind in kinds])
if stat.S_IFSOCK in kinds:
    refuses = [int(part) for part in platform.release().split('.')[:2]] >= [6, 16]
    try: socket.send_fds(socket.socket(fileno=os.dup(5)), [b'checkpoint'], [0], socket.MSG_DONTWAIT); print('refused' if not refuses else 'sent')
    except PermissionError: print('refused')";

#[tokio::test]
async fn no_program_sends_the_host_a_descriptor() {
    let pipes = "null pipe pipe pipe pipe";
    assert_eq!(run(&services().await, SENDS).await.stdout, format!("{pipes}\n"));
    let sandbox = sandbox(shared().await, limits()).await;
    let checkpoints = format!("{pipes} socket\nrefused\n");
    assert_eq!(run(&sandbox, SENDS).await.stdout, checkpoints);
    let further = sandbox.start_kernel(KernelOptions::default()).await.unwrap();
    assert_eq!(listen(further.execute(SENDS.into()).await.unwrap()).await.stdout, format!("{pipes}\n"));
}

/// Programs that print `fine`.
const WATCHES: [(&str, &str); 6] = [
    (
        "a tree of three thousand directories",
        "paths = [f'/mnt/data/{a}/{b}/{c}' for a in range(3) for b in range(100) for c in range(10)]\nfor path in paths: os.makedirs(path)\nnumbers = {add(path): path for path in paths}; assert len(numbers) == 3000 and min(numbers) > 0\nopen(paths[2999] + '/x', 'w').close()\nassert numbers[struct.unpack_from('i', os.read(instance, 4096))[0]] == paths[2999]; print('fine')",
    ),
    (
        "by threads and processes, each from its own directory",
        "import concurrent.futures\nfor n in range(8): os.mkdir(f'/tmp/{n}'); os.mkdir(f'/tmp/{n}/here')\ndef by_child(n):\n    if not (child := os.fork()):\n        os.chdir(f'/tmp/{n}'); os._exit(add('here') if n else add('..'))\n    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\nwith concurrent.futures.ThreadPoolExecutor(8) as pool: numbers = list(pool.map(by_child, range(8)))\nassert len(set(numbers)) == 8 and add('/tmp/3/here') == numbers[3] and add('/tmp') == numbers[0], numbers; print('fine')",
    ),
    (
        "a pipe that nobody opens, a link, a file, a socket",
        "os.mkfifo('pipe'); os.symlink('nowhere', 'link'); open('file', 'w').close(); s = socket.socket(socket.AF_UNIX); s.bind('socket')\nassert min(add('pipe'), add('link', 0x02000000), add('file'), add('socket')) > 0\nassert error('link') == errno.ENOENT; os.rename('file', 'other'); assert b'' != os.read(instance, 4096); print('fine')",
    ),
    (
        "errors are Linux's",
        "open('file', 'w').close(); os.mkdir('closed', 0)\nassert error('none') == error('') == errno.ENOENT\nassert error('file', 0x01000000) == error('file/x') == errno.ENOTDIR\nassert error('x' * 300) == error('/'.join('x' * 3000)) == errno.ENAMETOOLONG\nassert error('closed') == errno.EACCES; os.rmdir('closed')\nlibc.inotify_add_watch(instance, 1, 2); assert ctypes.get_errno() == errno.EFAULT\nlibc.inotify_add_watch(99, b'.', 2); assert ctypes.get_errno() == errno.EBADF\nlibc.inotify_add_watch(0, b'.', 2); assert ctypes.get_errno() == errno.EINVAL\nlibc.inotify_add_watch(instance, b'.', 0); assert ctypes.get_errno() == errno.EINVAL; print('fine')",
    ),
    (
        "a path at the end of memory",
        "import mmap\nm = mmap.mmap(-1, 8192); at = ctypes.addressof(ctypes.c_char.from_buffer(m)); assert libc.mprotect(ctypes.c_void_p(at + 4096), 4096, 0) == 0\nm[4091:4096] = b'/tmp\\0'; assert libc.inotify_add_watch(instance, ctypes.c_void_p(at + 4091), 2) > 0\nctypes.memset(at, ord('x'), 4096); assert libc.inotify_add_watch(instance, ctypes.c_void_p(at + 4091), 2) == -1 and ctypes.get_errno() == errno.EFAULT; print('fine')",
    ),
    (
        "a caller that is ended meanwhile",
        "import signal\nfor _ in range(50):\n    child = os.fork()\n    if not child:\n        while True: add('/tmp')\n    time.sleep(.002); os.kill(child, signal.SIGKILL); os.wait()\nassert add('/tmp') > 0; print('fine')",
    ),
];

#[tokio::test]
async fn a_program_watches_its_own_files() {
    let sandbox = services().await;
    let prelude = "import ctypes, errno, os, socket, struct, time\nlibc = ctypes.CDLL(None, use_errno=True); instance = libc.inotify_init1(0); os.makedirs('/mnt/data/w', exist_ok=True)\n\
        def add(path, flags=0): return libc.inotify_add_watch(instance, path.encode(), ctypes.c_uint32(0xfff | flags))\n\
        def error(path, flags=0): assert add(path, flags) == -1, path; return ctypes.get_errno()\nimport shutil; os.chdir('/mnt/data'); shutil.rmtree('w'); os.mkdir('w'); os.chdir('w')\n";
    for (name, program) in WATCHES {
        let result = run(&sandbox, &format!("{prelude}{program}")).await;
        assert_eq!(result.stdout, "fine\n", "{name}: {result:?}");
    }
}

/// Makes as many instances of inotify as it can, and says how many.
const INSTANCES: &str = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True); held = []\nwhile (one := libc.inotify_init1(0)) >= 0: held.append(one)\nprint(len(held), ctypes.get_errno())";

#[tokio::test]
async fn who_watches_takes_nothing_from_the_host_and_little_from_neighbours() {
    if !rustix::process::geteuid().is_root() {
        // They share the user's.
        return;
    }
    let (one, two) = (services().await, services().await);
    let most = std::fs::read_to_string("/proc/sys/user/max_inotify_instances").unwrap();
    let most: usize = most.trim().parse().unwrap();
    let expected = format!("{} 24\n", most / 4);
    let instance = || rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).ok();
    let left_to_the_host = || std::iter::from_fn(instance).collect::<Vec<_>>().len();
    let before = left_to_the_host();
    assert_eq!(run(&one, INSTANCES).await.stdout, expected);
    // Other programs of the host may make some meanwhile.
    assert!(left_to_the_host() + most / 8 > before, "{before} before");
    assert_eq!(run(&two, INSTANCES).await.stdout, expected);
}

/// Closes connections with data that nobody reads, which wait for being read, and says how many.
const UNREAD: &str = r"
import os, socket, time
def fill(place):
    door = socket.socket(); door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048); door.bind((f'127.0.0.{place + 2}', 0)); door.listen(); held = []
    for _ in range(150):
        client = socket.create_connection(door.getsockname()); client.setblocking(False); held.append(door.accept()[0])
        try:
            while True: client.send(bytes(4096))
        except BlockingIOError: client.close()
    os.write(told, b'x'); time.sleep(60)
reading, told = os.pipe()
for place in range(10):
    if os.fork() == 0: fill(place)
while len(os.read(reading, 1)) and (place := place - 1) >= 0: pass
print('full')";

#[tokio::test]
async fn what_connections_hold_is_a_small_part_of_the_hosts() {
    let counts_apart = !std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    if !counts_apart || !rustix::process::geteuid().is_root() {
        // It is memory of the sandbox, or counted by nobody.
        return;
    }
    let pages = || {
        let told = std::fs::read_to_string("/proc/net/sockstat").unwrap();
        let tcp = told.lines().find(|line| line.starts_with("TCP:")).unwrap();
        tcp.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let memory = 600 << 20;
    let sandbox = with_limits(Limits { memory, open_files: 1000, ..limits() }).await;
    let before = pages();
    let result = run(&sandbox, UNREAD).await;
    assert_eq!(result.stdout, "full\n", "{result:?}");
    let (grown, most) = (pages().saturating_sub(before) * 4096, memory / 32);
    // Each connection may hold a page or two beyond the limit.
    assert!(most / 4 < grown && grown < most + 1500 * 8192, "{} MB of {}", grown >> 20, most >> 20);
}
