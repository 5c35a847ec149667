//! Locks of whole files: they work as without a sandbox, and however they are taken, they are in their sandbox's count.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::time::Duration;

use aludel_sandbox::{Backend, KernelDeath, Limits, Outcome, Profile, SandboxId, SandboxSpec};
use common::{limits, run, sandbox, shared};

/// Programs that print `fine`.
const PROGRAMS: [(&str, &str); 9] = [
    (
        "a lock keeps others out until it is given back",
        "a, b = open(F, 'w'), open(F); fcntl.flock(a, fcntl.LOCK_EX)\ntry: fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)\nexcept BlockingIOError: fcntl.flock(a, fcntl.LOCK_UN); fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB); print('fine')",
    ),
    (
        "readers share it",
        "files = [open(F) for _ in range(9)]\nfor f in files: fcntl.flock(f, fcntl.LOCK_SH)\nprint('fine')",
    ),
    (
        "a closed file has none",
        "a = open(F); fcntl.flock(a, fcntl.LOCK_EX); a.close(); fcntl.flock(open(F), fcntl.LOCK_EX | fcntl.LOCK_NB); print('fine')",
    ),
    (
        "a thread waits for it",
        "a = open(F); fcntl.flock(a, fcntl.LOCK_EX); done = []\ndef wait():\n    with open(F) as b: fcntl.flock(b, fcntl.LOCK_EX); done.append(time.time())\nt = threading.Thread(target=wait); t.start(); time.sleep(.3); assert not done; at = time.time(); a.close(); t.join(); assert done[0] > at; print('fine')",
    ),
    (
        "processes take turns",
        "open('n', 'w').write('0')\nfor _ in range(4):\n    if os.fork() == 0:\n        for _ in range(25):\n            with open(F) as lock:\n                fcntl.flock(lock, fcntl.LOCK_EX); n = int(open('n').read()); time.sleep(.001); open('n', 'w').write(str(n + 1))\n        os._exit(0)\nfor _ in range(4): os.wait()\nassert open('n').read() == '100', open('n').read()\nprint('fine')",
    ),
    (
        "a signal ends the wait",
        "import signal\na, b = open(F), open(F); fcntl.flock(a, fcntl.LOCK_EX)\ndef end(*_): raise TimeoutError\nsignal.signal(signal.SIGALRM, end); signal.setitimer(signal.ITIMER_REAL, .1)\ntry: fcntl.flock(b, fcntl.LOCK_EX)\nexcept TimeoutError: a.close(); fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB); print('fine')",
    ),
    (
        "a process may have any name",
        "import ctypes\nassert ctypes.CDLL(None).prctl(15, b'donn\\xc3', 0, 0, 0) == 0\nfcntl.flock(open(F), fcntl.LOCK_EX); print('fine')",
    ),
    (
        "a thread may outlive the first one",
        "code = 'import fcntl, threading, ctypes, os, time\\ndef lock():\\n    time.sleep(.2); fcntl.flock(open(\"' + F + '\"), fcntl.LOCK_EX); os.write(1, b\"fine\\\\n\"); os._exit(0)\\nthreading.Thread(target=lock).start(); ctypes.CDLL(None).pthread_exit(None)'\nimport subprocess, sys; print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=20).stdout, end='')",
    ),
    (
        "errors are Linux's",
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef error(*call): assert libc.flock(*call) == -1; return ctypes.get_errno()\nassert [error(99, 2), error(-1, 2), error(0, 3), error(os.open(F, os.O_PATH), 1)] == [errno.EBADF, errno.EBADF, errno.EINVAL, errno.EBADF]; print('fine')",
    ),
];

/// Programs that have more locks taken than a sandbox may have, by processes that end.
const ATTACKS: [(&str, &str); 3] = [
    (
        "of one file of the host",
        "for _ in range(3):\n    if os.fork() == 0:\n        files = [open('/dev/null') for _ in range(600)]; by_child(files); time.sleep(30)\ntime.sleep(10)",
    ),
    (
        "of files that are only mapped",
        "libc = ctypes.CDLL(None)\nfor _ in range(3):\n    files = [open('/tmp/f') for _ in range(500)]; by_child(files)\n    for f in files: assert libc.mmap(None, 1, 1, 2, f.fileno(), 0) != -1; f.close()\ntime.sleep(10)",
    ),
    (
        "of files in flight",
        "ends = []\nfor _ in range(300):\n    pair = socket.socketpair(); ends.append(pair[1]); files = [open('/tmp/f') for _ in range(3)]; by_child(files)\n    socket.send_fds(pair[0], [b'x'], [f.fileno() for f in files])\nfiles = [open('/tmp/f') for _ in range(400)]; by_child(files)\ntime.sleep(10)",
    ),
];

#[tokio::test]
async fn locks_of_whole_files_are_those_of_linux() {
    for profile in [Profile::Data, Profile::Services] {
        let spec = SandboxSpec { profile, ..SandboxSpec::new(limits()) };
        let sandbox = shared().await.create(SandboxId::unique(), spec).await.unwrap();
        for (number, (name, program)) in PROGRAMS.into_iter().enumerate() {
            let program =
                format!("import errno, fcntl, os, threading, time\nF = 'f{number}'; open(F, 'w').close()\n{program}");
            let result = run(&sandbox, &program).await;
            assert_eq!(result.stdout, "fine\n", "{name}: {result:?}");
        }
        sandbox.close().await.unwrap();
    }
}

#[tokio::test]
async fn locks_of_whole_files_are_counted_whoever_takes_them() {
    let prelude = "import ctypes, fcntl, os, socket, time\nopen('/tmp/f', 'w').write('x')\ndef by_child(files):\n    if os.fork() == 0:\n        for f in files: fcntl.flock(f, fcntl.LOCK_SH)\n        os._exit(0)\n    os.wait()\n";
    for (name, program) in ATTACKS {
        let limits = Limits { open_files: 1000, memory: 512 << 20, timeout: Duration::from_secs(60), ..limits() };
        let sandbox = sandbox(shared().await, limits).await;
        let result = run(&sandbox, &format!("{prelude}{program}")).await;
        assert_eq!(result.finished.outcome, Outcome::KernelDied(KernelDeath::Signalled(9)), "{name}: {result:?}");
        sandbox.close().await.unwrap();
    }
}
