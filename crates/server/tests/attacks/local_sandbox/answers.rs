//! Programs that answer in hostile HTTP: a client gets one answer for one request, and the next request's is the server's own.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use crate::raw::{KeepAlive, LONG, Read, exchange};
use crate::tenant::{REQUESTS, Tenant, resident};

/// An answer that must never be taken for one of this server's.
const SMUGGLED: &str = r"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled";

/// The fate of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// The server refuses it with 502.
    Refused,
    /// It is passed on with this status and this body.
    Passed(u16, &'static str),
    /// It is passed on and breaks off, if not before.
    Broken(u16),
}
use Fate::{Broken, Passed, Refused};

/// Answers, as bytes literals of Python, to a request of this method.
fn answers() -> Vec<(&'static str, &'static str, &'static str, Fate)> {
    let smuggled = |text: &str| -> &'static str { Box::leak(text.replace("SMUGGLED", SMUGGLED).into_boxed_str()) };
    vec![
        ("nothing", "GET", "", Refused),
        ("no head", "GET", "smuggled", Refused),
        ("another version", "GET", r"HTTP/2.0 200 OK\r\n\r\n", Refused),
        ("a status of two digits", "GET", r"HTTP/1.1 20 OK\r\n\r\n", Refused),
        ("a status of none", "GET", r"HTTP/1.1 000 OK\r\n\r\n", Refused),
        ("a zero byte in the reason", "GET", r"HTTP/1.1 200 O\0K\r\n\r\n", Refused),
        ("a zero byte in a header", "GET", r"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n", Refused),
        ("a bare carriage return in a header", "GET", r"HTTP/1.1 200 OK\r\nx: a\rset-cookie: b\r\n\r\n", Refused),
        ("a folded header", "GET", r"HTTP/1.1 200 OK\r\nx: a\r\n content-length: 3\r\n\r\n", Refused),
        ("a space before a colon", "GET", r"HTTP/1.1 200 OK\r\ncontent-length : 3\r\n\r\nabc", Refused),
        ("129 headers", "GET", r"HTTP/1.1 200 OK\r\n' + b'x: y\r\n' * 129 + b'\r\n", Refused),
        ("a header of a megabyte", "GET", r"HTTP/1.1 200 OK\r\nx: ' + b'y' * 2**20 + b'\r\n\r\n", Refused),
        (
            "two lengths",
            "GET",
            smuggled(r"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 99\r\n\r\nabcSMUGGLED"),
            Refused,
        ),
        ("a list of lengths", "GET", smuggled(r"HTTP/1.1 200 OK\r\ncontent-length: 3, 99\r\n\r\nabcSMUGGLED"), Refused),
        ("a signed length", "GET", r"HTTP/1.1 200 OK\r\ncontent-length: +3\r\n\r\nabc", Refused),
        ("a length in another base", "GET", r"HTTP/1.1 200 OK\r\ncontent-length: 0x3\r\n\r\nabc", Refused),
        (
            "a length beyond all numbers",
            "GET",
            r"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nabc",
            Refused,
        ),
        (
            "a switch that nobody asked for",
            "GET",
            smuggled(r"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nSMUGGLED"),
            Refused,
        ),
        ("a switch without a protocol", "GET", smuggled(r"HTTP/1.1 101 Switching Protocols\r\n\r\nSMUGGLED"), Refused),
        (
            "the same length twice",
            "GET",
            r"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc",
            Passed(200, "abc"),
        ),
        (
            "a length before chunks",
            "GET",
            smuggled(
                r"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n8\r\nabcdefgh\r\n0\r\n\r\nSMUGGLED",
            ),
            Passed(200, "abcdefgh"),
        ),
        (
            "chunks before a length",
            "GET",
            smuggled(
                r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 99\r\n\r\n3\r\nabc\r\n0\r\n\r\nSMUGGLED",
            ),
            Passed(200, "abc"),
        ),
        (
            "an encoding that is none",
            "GET",
            smuggled(r"HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\ncontent-length: 3\r\n\r\nabcSMUGGLED"),
            Passed(200, "abcHTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled"),
        ),
        (
            "a second answer behind the first",
            "GET",
            smuggled(r"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcSMUGGLED"),
            Passed(200, "abc"),
        ),
        (
            "an answer behind chunks",
            "GET",
            smuggled(r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nSMUGGLED"),
            Passed(200, "abc"),
        ),
        (
            "a body of no content",
            "GET",
            smuggled(r"HTTP/1.1 204 No Content\r\ncontent-length: 99\r\n\r\nSMUGGLED"),
            Passed(204, ""),
        ),
        (
            "a body of what has not changed",
            "GET",
            smuggled(r"HTTP/1.1 304 Not Modified\r\ncontent-length: 99\r\n\r\nSMUGGLED"),
            Passed(304, ""),
        ),
        (
            "a body of a head",
            "HEAD",
            smuggled(r"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nSMUGGLED"),
            Passed(200, ""),
        ),
        (
            "hints before the answer",
            "GET",
            r"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n' * 500 + b'HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            Passed(200, "abc"),
        ),
        ("a status that nobody knows", "GET", r"HTTP/1.1 999 ?\r\ncontent-length: 3\r\n\r\nabc", Passed(999, "abc")),
        ("the version before", "GET", r"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n\r\nabc", Passed(200, "abc")),
        ("fewer bytes than it says", "GET", r"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", Broken(200)),
        (
            "a chunk without an end",
            "GET",
            r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc",
            Broken(200),
        ),
        (
            "a chunk beyond all numbers",
            "GET",
            r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc",
            Broken(200),
        ),
        (
            "a chunk of a signed size",
            "GET",
            r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\nabc",
            Broken(200),
        ),
        (
            "an extension of a megabyte",
            "GET",
            r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=' + b'y' * 2**20 + b'\r\nabc\r\n0\r\n\r\n",
            Broken(200),
        ),
        (
            "trailers of a megabyte",
            "GET",
            r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: ' + b'y' * 2**20 + b'\r\n\r\n",
            Broken(200),
        ),
    ]
}

#[tokio::test]
async fn one_request_gets_one_answer_whatever_a_program_sends() {
    let tenant = Tenant::new("answers").await;
    let all = answers();
    for (index, (_, _, bytes, _)) in all.iter().enumerate() {
        tenant.run(&format!("serve({}, lambda peer, head: peer.sendall(b'{bytes}'))", 9000 + index)).await;
    }
    let mut wrong = Vec::new();
    for (index, (name, method, _, fate)) in all.iter().enumerate() {
        let mut client = KeepAlive::connect(tenant.server.address).await;
        let asked = client.ask(tenant.on(method, 9000 + u16::try_from(index).unwrap())).await;
        let found = match &asked {
            Some(Read { status: 502, body: (body, true), .. }) if body.starts_with(b"{\"sandboxId\"") => Some(Refused),
            Some(Read { status, body: (_, false), .. }) => Some(Broken(*status)),
            Some(Read { status, body: (body, true), .. }) => match fate {
                Passed(_, text) if text.as_bytes() == body => Some(Passed(*status, text)),
                _ => None,
            },
            // The connection may end before a head is sent.
            None => matches!(fate, Broken(_)).then_some(*fate),
        };
        if found != Some(*fate) {
            wrong.push(format!("{name}: {fate:?} is expected: {asked:?}"));
        }
        let headers = asked.iter().flat_map(|read| read.headers.iter());
        let framing =
            headers.filter(|(name, _)| matches!(name.as_str(), "content-length" | "transfer-encoding")).count();
        if framing > 1 {
            wrong.push(format!("{name}: its end can be read in two ways: {asked:?}"));
        }
        // The next answer on the connection, if there is one, is the server's.
        let list = hyper::Request::get("/sandboxes").header("host", "x").header("x-api-key", &tenant.key);
        match client.ask(list).await {
            Some(next) if !next.body.0.starts_with(b"[{\"templateID\"") => wrong.push(format!("{name}: then {next:?}")),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn what_never_ends_takes_no_memory_and_ends_with_its_client() {
    let tenant = Tenant::new("endless").await;
    for (port, first, piece) in [
        (9000, r"HTTP/1.1 200 OK\r\n", r"x: y\r\n"),
        (9001, "", r"HTTP/1.1 100 Continue\r\n\r\n"),
        (9002, "", r"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"),
        (9003, r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1", ";x"),
        (9004, r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", r"1;x=y\r\na\r\n"),
        (9005, r"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", r"x: y\r\n"),
        (9006, r"HTTP/1.1 200 OK\r\n\r\n", "body"),
    ] {
        tenant.run(&format!("serve({port}, lambda peer, head: flood(peer, b'{first}', b'{piece}' * 5000))")).await;
    }
    let before = resident();
    for port in 9000..9007 {
        tenant.run("broken.clear()").await;
        let asked = tenant.at(Method::GET, port, "/").send();
        // Some are refused, some go on; nobody reads a body.
        let asked = timeout(Duration::from_secs(2), asked).await;
        let grown = resident().saturating_sub(before);
        assert!(grown < 48 << 20, "{port}: {} MB more", grown >> 20);
        drop(asked);
        // The program hears that nobody listens.
        let heard = "while not broken: time.sleep(0.01)\nprint(broken[0])";
        let heard = timeout(LONG, tenant.run(heard)).await.expect("the connection to the program ends");
        assert!(heard.contains("BrokenPipe") || heard.contains("ConnectionReset"), "{port}: {heard}");
    }
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn a_slow_program_holds_places_of_its_tenants_programs_alone_until_its_clients_go() {
    let (slow, other) = (Tenant::new("slow").await, Tenant::new("other").await);
    slow.run(
        "def drip(peer, head):\n    for byte in OK:\n        peer.sendall(bytes([byte])); time.sleep(1)\nserve(9000, drip)\n\
         serve(9001, lambda peer, head: (peer.sendall(OK + b'content-length: 9\\r\\n\\r\\n'), time.sleep(600)))",
    )
    .await;
    // Whoever finds no place comes again, until all are taken.
    let ask = |port| {
        let ask = slow.at(Method::GET, port, "/");
        tokio::spawn(async move {
            loop {
                let answer = ask.try_clone().unwrap().send().await.unwrap();
                if answer.status() != StatusCode::TOO_MANY_REQUESTS {
                    break answer.bytes().await.unwrap().len();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    };
    let waiting: Vec<_> = (0..2 * REQUESTS).map(|number| ask(9000 + u16::try_from(number % 2).unwrap())).collect();
    // Its programs have no more places. Its tenant has all of its own, and so has the other one.
    let refused = async {
        while slow.at(Method::GET, 8000, "/").send().await.unwrap().status() != StatusCode::TOO_MANY_REQUESTS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, refused).await.expect("the places of the slow programs are taken");
    for _ in 0..REQUESTS {
        assert_eq!(slow.request(Method::GET, "/sandboxes").send().await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(slow.run("print(6 * 7)").await, "42\n");
    other.is_well().await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    let free = async {
        while slow.at(Method::GET, 8000, "/").send().await.unwrap().status() != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, free).await.expect("places are given back");
    slow.is_well().await;
    slow.leave().await;
    other.leave().await;
}

#[tokio::test]
async fn a_client_that_sends_without_end_fills_nothing() {
    let tenant = Tenant::new("uploads").await;
    tenant.run("serve(9000, lambda peer, head: time.sleep(600))").await;
    let before = resident();
    let chunks = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0_u8; 1 << 20]));
    let sent = tenant.at(Method::POST, 9000, "/").body(reqwest::Body::wrap_stream(chunks)).send();
    assert!(timeout(Duration::from_secs(2), sent).await.is_err(), "nobody answers");
    let grown = resident().saturating_sub(before);
    assert!(grown < 48 << 20, "{} MB more", grown >> 20);
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn a_program_speaks_neither_for_the_server_nor_for_its_connection() {
    let tenant = Tenant::new("headers").await;
    tenant
        .run(
            "serve(9000, lambda peer, head: peer.sendall(OK + b'connection: x-secret, close\\r\\nx-secret: 1\\r\\nkeep-alive: timeout=9\\r\\n\
             proxy-authenticate: Basic\\r\\nx-request-id: forged\\r\\nx-aludel-backend: forged\\r\\nset-cookie: a=b\\r\\n\
             strict-transport-security: max-age=9\\r\\nalt-svc: h3=\":1\"\\r\\nclear-site-data: \"*\"\\r\\nservice-worker-allowed: /\\r\\n\
             content-security-policy: sandbox allow-same-origin\\r\\nx-kept: 1\\r\\ncontent-length: 0\\r\\n\\r\\n'))",
        )
        .await;
    let answer = tenant.at(Method::GET, 9000, "/").send().await.unwrap();
    for name in ["connection", "x-secret", "keep-alive", "proxy-authenticate"] {
        assert!(!answer.headers().contains_key(name), "{name}: {answer:?}");
    }
    for name in ["x-request-id", "x-aludel-backend"] {
        let values: Vec<_> = answer.headers().get_all(name).iter().collect();
        assert!(values.len() == 1 && values[0] != "forged", "{name}: {values:?}");
    }
    assert_eq!(answer.headers()["x-kept"], "1");
    // The same program at a path of the server's own host.
    let made = tenant.request(Method::POST, "/v1/sandboxes");
    let image = serde_json::json!({ "uri": "opensandbox/code-interpreter:v1.1.0" });
    let body = serde_json::json!({ "image": image, "timeout": 300, "resourceLimits": { "cpu": "1" } });
    let made: Value = made.json(&body).send().await.unwrap().json().await.unwrap();
    assert!(made["id"].is_string(), "{made}");
    let path = format!("/v1/sandboxes/{}/proxy/9000/", tenant.id);
    let answer = tenant.client.get(format!("http://{}{path}", tenant.server.address)).send().await.unwrap();
    for name in ["set-cookie", "strict-transport-security", "alt-svc", "clear-site-data", "service-worker-allowed"] {
        assert!(!answer.headers().contains_key(name), "{name}: {answer:?}");
    }
    let policies: Vec<_> = answer.headers().get_all("content-security-policy").iter().collect();
    assert!(policies.iter().any(|policy| *policy == "sandbox allow-scripts allow-forms"), "{policies:?}");
    let end = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    tenant.request(Method::DELETE, &end).send().await.unwrap();
    tenant.is_well().await;
    tenant.leave().await;
}

#[tokio::test]
async fn a_tunnel_by_another_method_leads_nowhere() {
    let tenant = Tenant::new("methods").await;
    tenant.run("serve(9000, lambda peer, head: peer.sendall(OK + b'\\r\\n' + head))").await;
    for target in ["evil.example:443", "/", "*", "http://169.254.169.254/"] {
        for method in ["CONNECT", "OPTIONS", "TRACE"] {
            let request = format!(
                "{method} {target} HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: 9000\r\nconnection: close\r\n\r\n",
                tenant.id
            );
            let answer = exchange(tenant.server.address, request.as_bytes(), 1 << 20).await;
            let text = String::from_utf8_lossy(&answer).into_owned();
            // A program may be asked by any method, for a path alone.
            let asked = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            assert!(!asked.contains("evil") && !asked.contains("169.254"), "{method} {target}: {text}");
        }
    }
    tenant.is_well().await;
    tenant.leave().await;
}
