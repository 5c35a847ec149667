//! WebSockets to programs: floods in either direction, and ends that only one side knows of.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::raw::LONG;
use crate::tenant::{Tenant, resident};

/// Tunnels of one sandbox (`engine/src/sandboxes/sandbox.rs`).
const MAX_TUNNELS: usize = 32;
/// A program that takes any tunnel, and then does this.
pub(super) fn program(port: u16, then: &str) -> String {
    format!(
        "def tunnel(peer, head):\n    peer.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nupgrade: websocket\\r\\nconnection: upgrade\\r\\n\\r\\n')\n    \
         {then}\nserve({port}, tunnel)"
    )
}

/// Asks for a tunnel. Returns the status of the answer.
pub(super) async fn open(tenant: &Tenant, port: u16) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(tenant.server.address).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: {port}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
        tenant.id
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(LONG, stream.read_u8()).await.expect("an answer").expect("a head");
        head.push(byte);
    }
    let status = String::from_utf8_lossy(&head[9..12]).parse().unwrap();
    (status, stream)
}

#[tokio::test]
async fn a_flood_of_a_program_waits_for_a_client_that_does_not_read() {
    let tenant = Tenant::new("flooding program").await;
    tenant.run(&program(9000, "flood(peer, b'', b'x' * 65536)")).await;
    let before = resident();
    let mut tunnels = Vec::new();
    for _ in 0..MAX_TUNNELS {
        let (status, stream) = open(&tenant, 9000).await;
        assert_eq!(status, 101);
        tunnels.push(stream);
    }
    sleep(Duration::from_secs(1)).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 48 << 20, "{} MB more", grown >> 20);
    tenant.is_well().await;
    drop(tunnels);
    let heard = format!("while len(broken) < {MAX_TUNNELS}: time.sleep(0.01)\nprint(len(broken))");
    timeout(LONG, tenant.run(&heard)).await.expect("the program hears that its clients are gone");
    tenant.leave().await;
}

#[tokio::test]
async fn a_flood_of_a_client_waits_for_a_program_that_does_not_read() {
    let tenant = Tenant::new("flooding client").await;
    tenant.run(&program(9000, "time.sleep(600)")).await;
    let before = resident();
    let mut tunnels = Vec::new();
    for _ in 0..8 {
        let (status, mut stream) = open(&tenant, 9000).await;
        assert_eq!(status, 101);
        let block = vec![0; 1 << 20];
        let flood = async { while stream.write_all(&block).await.is_ok() {} };
        assert!(timeout(Duration::from_millis(500), flood).await.is_err(), "the client waits");
        tunnels.push(stream);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 48 << 20, "{} MB more", grown >> 20);
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn tunnels_are_bounded_and_one_beyond_them_is_refused() {
    let tenant = Tenant::new("many tunnels").await;
    tenant.run(&program(9000, "time.sleep(600)")).await;
    let mut tunnels = Vec::new();
    for _ in 0..MAX_TUNNELS {
        let (status, stream) = open(&tenant, 9000).await;
        assert_eq!(status, 101);
        tunnels.push(stream);
    }
    // The program is asked without a tunnel, and a switch all the same is no answer.
    assert_eq!(open(&tenant, 9000).await.0, 502);
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn a_program_that_ignores_the_end_of_its_clients_keeps_no_tunnel() {
    let tenant = Tenant::new("deaf program").await;
    tenant.run(&program(9000, "time.sleep(600)")).await;
    for _ in 0..MAX_TUNNELS {
        let (status, stream) = open(&tenant, 9000).await;
        assert_eq!(status, 101);
        drop(stream);
    }
    let free = async {
        while open(&tenant, 9000).await.0 != 101 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, free).await.expect("the tunnels of clients that are gone are given back");
    tenant.leave().await;
}

#[tokio::test]
async fn a_tunnel_ends_with_its_sandbox() {
    let tenant = Tenant::new("ended tunnel").await;
    tenant.run(&program(9000, "peer.sendall(b'hello'); time.sleep(600)")).await;
    let (_, mut stream) = open(&tenant, 9000).await;
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
    tenant.leave().await;
    let mut rest = Vec::new();
    let _ended = timeout(LONG, stream.read_to_end(&mut rest)).await.expect("the tunnel ends");
    assert!(rest.is_empty());
}
