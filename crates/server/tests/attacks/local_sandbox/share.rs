//! Processor time that programs cost the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aludel_sandbox::process::Command;
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::tunnels::{open, program};
use crate::raw::LONG;
use crate::tenant::Tenant;

/// Long enough for anything that nothing holds back.
const MOMENT: Duration = Duration::from_millis(400);
/// Attempts to see a tenant held back: where this process gets no processor for long, it works for a moment.
const ATTEMPTS: usize = 20;

/// Bytes that the flooding program has sent, as the sandbox shows without the server.
async fn sent(tenant: &Tenant) -> String {
    let sandbox = tenant.server.engine.sandboxes.of_any_tenant(&tenant.id).unwrap();
    let arguments = ["cat", "/tmp/sent"].map(str::to_owned).into();
    let command = Command { arguments, environment: Vec::new(), directory: "/".into(), pty: None };
    let output = sandbox.inner().run(command, b"", LONG, 100).await.unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Sends a byte through a tunnel to a program that sends it back. Returns true if it came back in a moment.
async fn echoes(stream: &mut TcpStream) -> bool {
    stream.write_all(b"x").await.unwrap();
    timeout(MOMENT, stream.read_u8()).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_servers_of_programs_cost_counts_for_their_tenant() {
    let tenant = Tenant::new("costly").await;
    tenant.run(&program(9000, "while True: peer.sendall(peer.recv(1))")).await;
    let flood = "noted = os.open('/tmp/sent', os.O_CREAT | os.O_WRONLY)\ndef hints(peer, head):\n    sent = 0\n    while True:\n        sent += peer.send(b'HTTP/1.1 103 Early Hints\\r\\n\\r\\n' * 2000)\n        \
                 os.pwrite(noted, str(sent).encode(), 0)\nserve(9001, hints)";
    tenant.run(flood).await;
    let (status, mut tunnel) = open(&tenant, 9000).await;
    assert_eq!(status, 101);
    let flooded = tokio::spawn(tenant.at(Method::GET, 9001, "/").send());
    // The control: both work, and go on while another tenant works, too.
    assert!(timeout(LONG, async { while !echoes(&mut tunnel).await {} }).await.is_ok());
    let goes_on = async {
        let before = sent(&tenant).await;
        while sent(&tenant).await == before {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, goes_on).await.expect("the flood is read");
    // From now on the tenant owes time to another one.
    let (over, engine, owner) = (Arc::new(AtomicBool::new(false)), Arc::clone(&tenant.server.engine), {
        let sandbox = tenant.server.engine.sandboxes.of_any_tenant(&tenant.id).unwrap();
        sandbox.tenant().clone()
    });
    let other = Tenant::new("thrifty").await;
    let beside = tenant.server.engine.sandboxes.of_any_tenant(&other.id).unwrap().tenant().clone();
    let owing = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            while !over.load(Ordering::Relaxed) {
                engine.processor_time.share_of(&owner).take(Duration::from_secs(9));
                engine.processor_time.share_of(&beside).take(Duration::from_micros(1));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut held = [false; 2];
    for _ in 0..ATTEMPTS {
        held[0] |= !echoes(&mut tunnel).await;
        let before = sent(&tenant).await;
        sleep(MOMENT).await;
        held[1] |= sent(&tenant).await == before;
        if held == [true; 2] {
            break;
        }
    }
    over.store(true, Ordering::Relaxed);
    owing.join().unwrap();
    assert_eq!(held, [true; 2], "a tunnel and the head of an answer wait for their tenant's share");
    // Then both go on.
    timeout(LONG, tunnel.read_u8()).await.expect("the byte comes back").unwrap();
    let before = sent(&tenant).await;
    timeout(LONG, async { while sent(&tenant).await == before {} }).await.expect("the flood is read");
    flooded.abort();
    other.is_well().await;
    other.leave().await;
    tenant.leave().await;
}
