//! `aludel sandbox` for people, at a server that runs.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use common::{Said, aludel, data, said, signal, wait_until};
use serde_json::Value;

/// A child that ends with the test, and its first line.
struct Server(Child, BufReader<ChildStdout>, String);

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (mut stdout, mut line) = (BufReader::new(child.stdout.take().unwrap()), String::new());
        stdout.read_line(&mut line).unwrap();
        Self(child, stdout, line.trim_end().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn sandbox(data: &Path, arguments: &[&str]) -> Command {
    let mut command = aludel(data);
    command.args(["sandbox", "--data"]).arg(data).args(arguments);
    command
}

fn ask(data: &Path, arguments: &[&str]) -> Said {
    said(&mut sandbox(data, arguments))
}

fn stdout(data: &Path, arguments: &[&str]) -> String {
    let said = ask(data, arguments);
    assert_eq!(said.status, Some(0), "{arguments:?}: {said:?}");
    said.stdout
}

#[test]
fn people_use_sandboxes_of_a_server() {
    let data = data();
    let data = data.path();
    let none = ask(data, &["ls"]);
    assert_eq!(none.status, Some(4));
    assert!(none.stderr.contains("aludel serve"), "{none:?}");
    let mut serving = aludel(data);
    serving.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).env("ALUDEL_SANDBOX_DISK", "64m");
    let server = Server::start(&mut serving);
    let url = server.2.strip_prefix("listening on ").unwrap();

    let id = stdout(data, &["create", "--name", "work", "--env", "A=a", "--timeout", "10m"]);
    let id = id.trim_end();
    let listed: Value = serde_json::from_str(&stdout(data, &["ls", "--json"])).unwrap();
    assert_eq!((&listed[0]["sandboxID"], &listed[0]["metadata"]["name"]), (&id.into(), &"work".into()));
    assert!(
        stdout(data, &["ls", "--url", url]).contains(id),
        "an address and a data directory lead to the same server"
    );

    let twice = ask(data, &["create", "--name", "work"]);
    assert!(twice.status == Some(2) && twice.stderr.contains(id) && twice.stderr.contains("already"), "{twice:?}");

    runs_commands(data, id);
    copies_files(data);
    copies_no_more_than_a_disk_holds(data);
    let serving = "mkdir /tmp/w; cd /tmp/w; echo hello > index.html; exec python3 -um http.server 8000";
    let number = stdout(data, &["exec", "--detach", "work", "sh", "-c", serving]);
    assert!(stdout(data, &["logs", "work"]).contains("http.server"));
    let mut port = reaches_a_port(data);
    let (mut tunnel, _open) = opens_a_tunnel(data);

    signal(&port.0, "INT");
    assert_eq!(port.0.wait().unwrap().code(), Some(130));
    let mut logs = Server::start(&mut sandbox(data, &["logs", "work", number.trim()]));
    assert!(logs.2.contains("Serving HTTP") || logs.2.contains("GET /"), "{}", logs.2);
    assert_eq!(stdout(data, &["kill", "work"]).trim_end(), id);
    // It ends with the sandbox.
    assert_eq!(tunnel.read(&mut [0; 10]).unwrap_or_default(), 0);
    logs.1.read_to_string(&mut String::new()).unwrap();
    assert_eq!(stdout(data, &["ls", "--json"]).trim(), "[]");
    let gone = ask(data, &["exec", "work", "true"]);
    assert!(gone.status == Some(2) && gone.stderr.contains("aludel sandbox ls"), "{gone:?}");
}

/// Runs commands in the sandbox `work`, whose id is `id`.
fn runs_commands(data: &Path, id: &str) {
    let said = ask(data, &["exec", "work", "sh", "-c", "echo $A; echo e >&2; exit 7"]);
    assert_eq!((said.status, said.stdout.as_str(), said.stderr.as_str()), (Some(7), "a\n", "e\n"));
    assert_eq!(ask(data, &["exec", &id[..8], "sh", "-c", "kill -9 $$"]).status, Some(137));
    assert_eq!(ask(data, &["exec", "work", "no-such-program"]).status, Some(127));
    assert_eq!(ask(data, &["exec", "work", "/tmp"]).status, Some(126));
    assert_eq!(ask(data, &["create", "--template", "none"]).status, Some(2));
    for end in ["INT", "HUP"] {
        let mut stopped = Server::start(&mut sandbox(data, &["exec", "work", "sh", "-c", "echo on; exec sleep 600"]));
        signal(&stopped.0, end);
        assert_eq!((&*stopped.2, stopped.0.wait().unwrap().code()), ("on", Some(130)), "{end}");
    }
    let mut unread = sandbox(data, &["exec", "work", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    unread.stdout.take().unwrap().read_exact(&mut [0; 100]).unwrap();
    assert_eq!(unread.wait().unwrap().code(), Some(141));
    wait_until(|| !stdout(data, &["logs", "work"]).contains("yes"), "a command runs on whose reader has gone");
    let mut upper = sandbox(data, &["exec", "-i", "work", "tr", "a-z", "A-Z"]).stdin(Stdio::piped()).spawn().unwrap();
    upper.stdin.take().unwrap().write_all("x".repeat(100_000).as_bytes()).unwrap();
    assert_eq!(String::from_utf8(upper.wait_with_output().unwrap().stdout).unwrap(), "X".repeat(100_000));
}

/// Copies files with holes, which stay holes, and files with several names, of which there may be more than bytes in the sandbox.
fn copies_no_more_than_a_disk_holds(data: &Path) {
    let make = "mkdir /tmp/s /tmp/h; echo a > /tmp/s/a; truncate -s 50M /tmp/s/a; echo b >> /tmp/s/a; truncate -s 60M /tmp/s/b; \
                yes | head -c 24M > /tmp/h/a; ln /tmp/h/a /tmp/h/b; ln /tmp/h/a /tmp/h/c";
    stdout(data, &["exec", "work", "sh", "-c", make]);
    let at = |path: &str| data.join(path).to_str().unwrap().to_owned();
    stdout(data, &["cp", "work:/tmp/s", &at("s")]);
    let holes = std::fs::read(data.join("s/a")).unwrap();
    assert_eq!((holes.len(), &holes[..3], &holes[50 << 20..]), ((50 << 20) + 2, &b"a\n\0"[..], &b"b\n"[..]));
    for (file, bytes) in [("s/a", (50 << 20) + 2), ("s/b", 60 << 20)] {
        let metadata = std::fs::metadata(data.join(file)).unwrap();
        assert_eq!(metadata.len(), bytes, "{file}");
        assert!(metadata.blocks() < 64, "{file} takes {} blocks", metadata.blocks());
    }
    let refused = ask(data, &["cp", "work:/tmp/h", &at("h")]);
    assert!(refused.status == Some(3) && refused.stderr.contains("the sandbox's disk holds"), "{refused:?}");
    stdout(data, &["exec", "work", "rm", "-r", "/tmp/s", "/tmp/h"]);
}

/// Copies a directory and a file into the sandbox `work` and out of it.
fn copies_files(data: &Path) {
    std::fs::create_dir_all(data.join("in/sub")).unwrap();
    std::fs::write(data.join("in/sub/a"), vec![7; 3_000_000]).unwrap();
    std::fs::write(data.join("in/run"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(data.join("in/run"), PermissionsExt::from_mode(0o755)).unwrap();
    let at = |path: &str| data.join(path).to_str().unwrap().to_owned();
    stdout(data, &["cp", &at("in"), "work:/tmp/"]);
    assert_eq!(stdout(data, &["exec", "work", "/tmp/in/run"]), "ran\n");
    stdout(data, &["cp", "work:/tmp/in", &at("out")]);
    let mode = |path: &str| std::fs::metadata(data.join(path)).unwrap().permissions().mode();
    assert_eq!((mode("out/run") & 0o100, mode("out/sub/a") & 0o111), (0o100, 0));
    assert!(std::fs::read(data.join("out/sub/a")).unwrap() == vec![7; 3_000_000]);
    stdout(data, &["cp", &at("in/sub/a"), "work:b"]);
    assert_eq!(stdout(data, &["exec", "work", "sh", "-c", "wc -c < /home/user/b"]).trim(), "3000000");
    let missing = ask(data, &["cp", "work:/none", &at("x")]);
    assert!(missing.status == Some(2) && missing.stderr.contains("/none"), "{missing:?}");
}

/// Reaches the web server on port 8000 of the sandbox `work`, and nothing else by that address. Returns the forwarding command.
fn reaches_a_port(data: &Path) -> Server {
    let port = Server::start(&mut sandbox(data, &["port", "work", "8000", "--at", "0"]));
    let address = port.2.strip_prefix("http://").unwrap().to_owned();
    let mut page = String::new();
    wait_until(
        || {
            let mut connection = TcpStream::connect(&address).unwrap();
            connection.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
            page.clear();
            connection.read_to_string(&mut page).unwrap();
            page.starts_with("HTTP/1.1 200")
        },
        "the program in the sandbox answers",
    );
    assert!(page.contains("hello\n"), "{page}");
    // A page of the program may send any header to its own origin, and gets nothing but the program's answer.
    let strange = [
        "e2b-sandbox-port: x",
        "e2b-sandbox-id: x",
        "e2b-sandbox-port: 49983",
        "e2b-sandbox-port: x\r\ne2b-sandbox-port: y",
    ];
    let paths = ["/v2/sandboxes", "/v1/sandboxes", "/v1/models"];
    for (path, headers) in paths.into_iter().flat_map(|path| strange.map(|headers| (path, headers))) {
        let mut connection = TcpStream::connect(&address).unwrap();
        write!(connection, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("SimpleHTTP"), "{path} with {headers}: {answer}");
    }
    port
}

/// Opens a WebSocket to a program in the sandbox `work` and carries data both ways. Returns it, and the commands that keep it open.
fn opens_a_tunnel(data: &Path) -> (TcpStream, [Server; 2]) {
    let echo = "import socket\nlistener = socket.create_server(('127.0.0.1', 8001))\nprint('on', flush=True)\nconnection, _ = listener.accept()\n\
                head = b''\nwhile b'\\r\\n\\r\\n' not in head: head += connection.recv(4096)\n\
                assert b'upgrade: websocket' in head.lower(), head\n\
                connection.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nupgrade: websocket\\r\\nconnection: upgrade\\r\\n\\r\\nfirst')\n\
                while data := connection.recv(65536): connection.sendall(data.upper())";
    let echoing = Server::start(&mut sandbox(data, &["exec", "work", "python3", "-c", echo]));
    assert_eq!(echoing.2, "on");
    let tunnels = Server::start(&mut sandbox(data, &["port", "work", "8001", "--at", "0"]));
    let mut tunnel = TcpStream::connect(tunnels.2.strip_prefix("http://").unwrap()).unwrap();
    tunnel.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    tunnel
        .write_all(b"GET /chat HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n")
        .unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\nfirst") {
        let mut piece = [0; 1024];
        let read = tunnel.read(&mut piece).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..read]);
    }
    assert!(seen.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&seen));
    let mut answer = vec![0; 300_000];
    let mut writing = tunnel.try_clone().unwrap();
    let writer = std::thread::spawn(move || writing.write_all(&vec![b'x'; 300_000]).unwrap());
    tunnel.read_exact(&mut answer).unwrap();
    writer.join().unwrap();
    assert!(answer.iter().all(|byte| *byte == b'X'));
    (tunnel, [echoing, tunnels])
}
