//! `aludel sandbox port`: a port of a sandbox at an address of this machine.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use aludel_ignore::Ignore;
use anyhow::Context as _;
use clap::Args;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::console::{self, Console, StandardStream};
use crate::exit::{Exit, usage, words};
use crate::remote::{Remote, RemoteServer};
use crate::signals::Signals;

/// Connections at once.
const CONNECTIONS: usize = 256;
/// Headers of a single connection, or with the name of its other end.
const HOP_BY_HOP: [HeaderName; 5] = [CONNECTION, HOST, TE, TRANSFER_ENCODING, UPGRADE];

#[derive(Debug, Args)]
pub(super) struct PortArgs {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// The port on which a program in the sandbox listens
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// The port of this machine, on 127.0.0.1 alone [default: the same, or a free one if that is taken]
    #[arg(long, value_name = "PORT")]
    at: Option<u16>,
}

pub(super) async fn run(server: &RemoteServer, args: PortArgs) -> anyhow::Result<Exit> {
    let sandbox = server.find(&args.sandbox).await?;
    let mut signals = Signals::listen().context("cannot listen to signals")?;
    let listener = listen(&args).await?;
    Console::new().line(StandardStream::Stdout, &format!("http://{}", listener.local_addr()?))?;
    console::status(&format!("requests go to port {} of {}; Ctrl-C ends this", args.port, sandbox.id));
    let permits = std::sync::Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepted = async {
            let permit = std::sync::Arc::clone(&permits).acquire_owned().await?;
            anyhow::Ok((permit, listener.accept().await))
        };
        let (permit, stream) = tokio::select! {
            accepted = accepted => match accepted? {
                (permit, Ok((stream, _))) => (permit, stream),
                // The client disconnected.
                (_, Err(_)) => continue,
            },
            () = signals.next() => return Ok(Exit::Interrupted),
        };
        let (sandbox, port) = (sandbox.clone(), args.port);
        tokio::spawn(async move {
            serve(stream, sandbox, port).await;
            drop(permit);
        });
    }
}

async fn listen(args: &PortArgs) -> anyhow::Result<TcpListener> {
    let address = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    if let Some(port) = args.at {
        let listener = TcpListener::bind(address(port)).await;
        return listener.map_err(|error| usage(format!("--at {port}: cannot listen there: {error}")));
    }
    match TcpListener::bind(address(args.port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(address(0)).await.context("cannot listen on 127.0.0.1"),
    }
}

async fn serve(stream: TcpStream, sandbox: Remote, port: u16) {
    let answer = service_fn(|request| {
        let sandbox = sandbox.clone();
        async move { Ok::<_, Infallible>(hand_on(&sandbox, port, request).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades()
        .await
        .ignore("a client that breaks the protocol or disconnects harms only itself");
}

async fn hand_on(sandbox: &Remote, port: u16, mut request: Request<Incoming>) -> Response<reqwest::Body> {
    if !is_for_this_machine(request.headers()) {
        // A page of another site whose host name resolves to this address.
        return refusal(StatusCode::FORBIDDEN, "This address answers as 127.0.0.1 or localhost alone.");
    }
    let client = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    let protocol = parts.headers.get(UPGRADE).cloned();
    without_hops(&mut parts.headers);
    if let Some(protocol) = &protocol {
        name(protocol, &mut parts.headers);
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    match sandbox.send_to_port(port, parts.method, path, parts.headers, reqwest::Body::wrap(body)).await {
        Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
            let mut response = Response::new(reqwest::Body::default());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            *response.headers_mut() = answer.headers().clone();
            without_hops(response.headers_mut());
            if let Some(protocol) = &protocol {
                name(protocol, response.headers_mut());
            }
            tokio::spawn(async move {
                let (Ok(client), Ok(mut program)) = tokio::join!(client, answer.upgrade()) else { return };
                copy_bidirectional(&mut TokioIo::new(client), &mut program).await.ignore("an error counts as the end");
            });
            response
        }
        Ok(answer) => {
            let mut response = Response::<reqwest::Body>::from(answer);
            without_hops(response.headers_mut());
            // Our connection has its own version of HTTP.
            *response.version_mut() = Version::HTTP_11;
            response
        }
        Err(error) => refusal(StatusCode::BAD_GATEWAY, &words(&error)),
    }
}

fn refusal(status: StatusCode, words: &str) -> Response<reqwest::Body> {
    let mut response = Response::new(reqwest::Body::from(format!("{words}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Returns true if a request names this machine.
fn is_for_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = host.rsplit_once(':').map_or(host, |(name, _port)| name);
    name == "127.0.0.1" || name.eq_ignore_ascii_case("localhost")
}

/// Sets the headers for a switch to another protocol, such as WebSocket.
fn name(protocol: &HeaderValue, headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol.clone());
}

fn without_hops(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        let asked =
            |host: &'static str| is_for_this_machine(&HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]));
        assert_eq!(["127.0.0.1:8000", "localhost:1", "Localhost", "127.0.0.1"].map(asked), [true; 4]);
        assert_eq!(
            ["evil.example:8000", "127.0.0.1.evil.example", "", "localhost.evil.example:80"].map(asked),
            [false; 4]
        );
        assert!(!is_for_this_machine(&HeaderMap::new()));
    }
}
