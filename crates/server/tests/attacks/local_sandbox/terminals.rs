//! Terminals over the API: programs that play with the terminal, and clients that do.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::raw::LONG;
use crate::tenant::{Tenant, resident};

/// Terminals of one sandbox (`jail/src/terminals.rs`).
const MAX_TERMINALS: usize = 16;

/// Starts Python in a terminal, and returns its process id and the stream of its output.
async fn terminal(tenant: &Tenant, program: &str) -> (u64, reqwest::Response) {
    let process = json!({ "cmd": "python3", "args": ["-c", program] });
    let start = json!({ "process": process, "pty": { "size": { "cols": 80, "rows": 24 } } });
    let mut stream = tenant.stream("/process.Process/Start", start).await;
    let mut text = Vec::new();
    while !text.ends_with(b"}}}") {
        text.extend(timeout(LONG, stream.chunk()).await.unwrap().unwrap().expect("the first frame"));
    }
    let started: Value = serde_json::from_slice(&text[5..]).unwrap();
    (started["event"]["start"]["pid"].as_u64().unwrap_or_else(|| panic!("{started}")), stream)
}

#[tokio::test]
async fn nothing_answers_a_program_that_asks_its_terminal() {
    let tenant = Tenant::new("asking").await;
    // Positions, devices, titles, colours, the clipboard, files, checksums: terminals of people answer these, and type the answer.
    let program = r"
import os, select, termios, tty
tty.setraw(0)
for asked in ('\x1b[6n', '\x1b[c', '\x1b[>c', '\x1b[=c', '\x1b[21t', '\x1b[18t', '\x1b]52;c;?\x07', '\x1b]10;?\x07', '\x1b]4;1;?\x07',
              '\x1bP+q544e\x1b\\', '\x1bP$qm\x1b\\', '\x1b[?2026$p', '\x05', '\x1b[1;1;1;1;24;80*y', '\x1b]1337;File=inline=1:AAAA\x07', '\x1b_Gi=1,a=q;AAAA\x1b\\'):
    os.write(1, asked.encode())
typed = select.select([0], [], [], 1.0)[0]
open('/tmp/typed', 'w').write(repr(os.read(0, 4096)) if typed else 'nothing')
";
    let (_, mut stream) = terminal(&tenant, program).await;
    while timeout(LONG, stream.chunk()).await.unwrap().unwrap().is_some() {}
    assert_eq!(tenant.run("print(open('/tmp/typed').read())").await, "nothing\n");
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn sizes_of_any_number_are_taken_a_thousand_times() {
    let tenant = Tenant::new("resizing").await;
    let program = "import os, signal, time\nsizes = []\nsignal.signal(signal.SIGWINCH, lambda *_: sizes.append(os.get_terminal_size()))\n\
                   open('/tmp/ready', 'w')\nwhile not os.path.exists('/tmp/over'): time.sleep(0.02)\n\
                   open('/tmp/sizes', 'w').write(f'{len(sizes)} {tuple(os.get_terminal_size())}')";
    let (pid, _stream) = terminal(&tenant, program).await;
    tenant.run("while not os.path.exists('/tmp/ready'): time.sleep(0.01)").await;
    let update = |cols: Value, rows: Value| json!({ "process": { "pid": pid }, "pty": { "size": { "cols": cols, "rows": rows } } });
    for number in [json!(-1), json!(4_294_967_296_u64), json!(1.5), json!("x"), json!([])] {
        let (status, said) = tenant.call("/process.Process/Update", update(number.clone(), json!(1))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{number}: {said}");
    }
    for round in 0..1000_u32 {
        let number = [0, 65535, 1, 65536, u32::MAX][round as usize % 5];
        let (status, said) = tenant.call("/process.Process/Update", update(json!(number), json!(number))).await;
        assert_eq!(status, StatusCode::OK, "{number}: {said}");
    }
    assert_eq!(tenant.call("/process.Process/Update", update(json!(7), json!(9))).await.0, StatusCode::OK);
    tenant.run("open('/tmp/over', 'w')\nwhile not os.path.exists('/tmp/sizes') or not open('/tmp/sizes').read(): time.sleep(0.01)").await;
    let sizes = tenant.run("print(open('/tmp/sizes').read())").await;
    assert!(sizes.ends_with(" (7, 9)\n") && !sizes.starts_with("0 "), "{sizes}");
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn terminals_are_opened_a_thousand_times_by_a_program_and_by_a_client() {
    let (tenant, other) = (Tenant::new("opening").await, Tenant::new("neighbour").await);
    let open = "held, errors = [], set()\nfor _ in range(1000):\n    try: held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))\n    \
                except OSError as error: errors.add(error.errno)\nprint(len(held), errors)";
    assert_eq!(tenant.run(open).await, format!("{MAX_TERMINALS} {{28}}\n"));
    // None is left for a client, who is told so; the neighbour has all of its own.
    let start = json!({ "process": { "cmd": "true" }, "pty": { "size": { "cols": 80, "rows": 24 } } });
    let refused = tenant.stream("/process.Process/Start", start.clone()).await;
    let (status, text) = (refused.status(), refused.text().await.unwrap());
    assert_eq!(status, StatusCode::OK, "clients of streams read the last frame alone");
    assert!(
        text.contains("\"resource_exhausted\"") && text.contains("all terminals of the sandbox are open"),
        "{text}"
    );
    terminal(&other, "print(1)").await;
    tenant.run("for end in held: os.close(end)").await;
    let mut streams = Vec::new();
    let mut refused = 0;
    for _ in 0..MAX_TERMINALS + 4 {
        let start =
            json!({ "process": { "cmd": "sleep", "args": ["600"] }, "pty": { "size": { "cols": 80, "rows": 24 } } });
        let mut stream = timeout(LONG, tenant.stream("/process.Process/Start", start)).await.expect("an answer");
        match stream.status() {
            StatusCode::OK => {
                let first = timeout(LONG, stream.chunk()).await.expect("a frame").unwrap().unwrap_or_default();
                refused += usize::from(String::from_utf8_lossy(&first).contains("\"resource_exhausted\""));
                streams.push(stream);
            }
            StatusCode::TOO_MANY_REQUESTS => refused += 1,
            status => panic!("{status} {}", stream.text().await.unwrap()),
        }
    }
    assert!(refused >= 4, "{refused} are refused: they are bounded by the sandbox, or by the requests of the tenant");
    other.is_well().await;
    drop(streams);
    tokio::time::sleep(Duration::from_millis(100)).await;
    other.leave().await;
    tenant.leave().await;
}

#[tokio::test]
async fn a_terminal_types_for_nobody_and_floods_nobody() {
    let tenant = Tenant::new("typing").await;
    let program = r"
import fcntl, os, termios
told = []
for name in ('TIOCSTI', 'TIOCSETD', 'TIOCCONS', 'TIOCLINUX', 'TIOCEXCL'):
    request = {'TIOCSTI': 0x5412, 'TIOCSETD': 0x5423, 'TIOCCONS': 0x541D, 'TIOCLINUX': 0x541C, 'TIOCEXCL': 0x540C}[name]
    try: fcntl.ioctl(0, request, b'x\0\0\0'); told.append(name)
    except OSError: pass
open('/tmp/told', 'w').write(repr(told))
while True: os.write(1, b'\x1b[2J' * 4096)
";
    let before = resident();
    let (pid, stream) = terminal(&tenant, program).await;
    tenant.run("while not os.path.exists('/tmp/told') or not open('/tmp/told').read(): time.sleep(0.01)").await;
    assert_eq!(tenant.run("print(open('/tmp/told').read())").await, "[]\n");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 48 << 20, "{} MB more", grown >> 20);
    let (status, said) = tenant
        .call("/process.Process/SendSignal", json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" }))
        .await;
    assert_eq!(status, StatusCode::OK, "{said}");
    drop(stream);
    tenant.is_well().await;
    tenant.leave().await;
}
