//! The load: so many requests on so many connections, one after another on each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use tokio::net::TcpStream;

use crate::wire::Connection;

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// The port on 127.0.0.1
    #[arg(long)]
    port: u16,
    /// The body
    #[arg(long)]
    body: String,
    /// What an answer has to hold
    #[arg(long)]
    expect: String,
    /// Requests that are counted
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Requests before them that are not
    #[arg(long, default_value_t = 20)]
    warmup: usize,
    /// Connections
    #[arg(long, default_value_t = 1)]
    connections: usize,
}

pub(crate) async fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let (port, body) = (args.port, &args.body);
    let request: Arc<[u8]> = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n\
         authorization: Bearer unused\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
    .into();
    let expect: Arc<str> = args.expect.as_str().into();
    let mut connections = Vec::new();
    for _ in 0..args.connections {
        connections.push(Connection::new(TcpStream::connect(("127.0.0.1", port)).await?)?);
    }
    let each = args.warmup.div_ceil(args.connections);
    for connection in &mut connections {
        for _ in 0..each {
            ask(connection, &request, &expect).await?;
        }
    }
    let left = Arc::new(AtomicUsize::new(args.requests));
    let began = Instant::now();
    let tasks: Vec<_> = connections
        .into_iter()
        .map(|mut connection| {
            let (request, expect, left) = (Arc::clone(&request), Arc::clone(&expect), Arc::clone(&left));
            tokio::spawn(async move {
                let mut times = Vec::new();
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                    let began = Instant::now();
                    ask(&mut connection, &request, &expect).await?;
                    times.push(began.elapsed().as_micros());
                }
                anyhow::Ok(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(tokio::time::timeout(LIMIT, task).await.context("it takes too long")???);
    }
    let elapsed = began.elapsed().as_secs_f64();
    println!("{{\"seconds\": {elapsed}, \"microseconds\": {times:?}}}");
    Ok(())
}

async fn ask(connection: &mut Connection, request: &[u8], expect: &str) -> anyhow::Result<()> {
    connection.send(request).await?;
    let message = connection.receive().await?.context("the server hung up")?;
    let body = String::from_utf8_lossy(&message.body);
    if !message.head.starts_with("http/1.1 200") || !body.contains(expect) {
        bail!("not the answer: {}{body}", message.head);
    }
    Ok(())
}
