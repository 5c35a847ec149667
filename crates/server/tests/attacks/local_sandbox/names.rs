//! Names of sandboxes in hosts, headers, targets and paths: whoever is not let in by a token gets in by no way of writing.

use std::fmt::Write as _;

use serde_json::json;

use crate::raw::{exchange, status};
use crate::tenant::Tenant;

#[tokio::test]
async fn no_way_to_write_a_name_leads_into_the_sandbox_of_another() {
    let (victim, attacker) = (Tenant::private("victim").await, Tenant::private("attacker").await);
    victim.run("open('/home/user/secret', 'w').write('of the victim')").await;
    victim
        .run("serve(9000, lambda peer, head: peer.sendall(OK + b'content-length: 13\\r\\n\\r\\nof the victim'))")
        .await;
    let (theirs, own) = (&victim.id, &attacker.id);
    let (upper, address) = (theirs.to_uppercase(), attacker.server.address);
    let hosts = |port: &str| {
        [
            format!("{port}-{theirs}.example.com"),
            format!("{port}-{theirs}.example.com."),
            format!("{port}-{theirs}."),
            format!("{port}-{theirs}"),
            format!("{port}-{theirs}.localhost:8080"),
            format!("{port}-{upper}.EXAMPLE.COM"),
            format!("+{port}-{theirs}.x"),
            format!("00{port}-{theirs}.x"),
            format!("{port}-{own}.{port}-{theirs}.x"),
            format!("{port}-{theirs}.{port}-{own}.x"),
            format!("user@{port}-{theirs}.x"),
            format!("{port}-{own}@{port}-{theirs}.x"),
            format!("{port}-{theirs}.x@{port}-{own}.x"),
            format!("[{port}-{theirs}.x]"),
        ]
    };
    let mut heads = Vec::new();
    for (port, path) in [
        ("9000", "/"),
        ("49983", "/files?path=secret"),
        ("49983", "/envs"),
        ("49983", "/process.Process/List"),
        ("49999", "/execute"),
        ("49999", "/contexts"),
        ("49999", "/files?path=secret"),
        ("49999", "/sandboxes"),
    ] {
        for host in hosts(port) {
            heads.push(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n"));
            heads.push(format!("GET http://{host}{path} HTTP/1.1\r\nhost: {address}\r\n"));
            heads.push(format!("GET http://{host}{path} HTTP/1.1\r\nhost: {port}-{own}.x\r\n"));
            heads.push(format!("GET {path} HTTP/1.1\r\nhost: {port}-{own}.x\r\nhost: {host}\r\n"));
            heads.push(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nhost: {port}-{own}.x\r\n"));
            heads.push(format!("GET {path} HTTP/1.1\r\nhost: {port}-{own}.x\r\nx-forwarded-host: {host}\r\n"));
        }
        for (id, number) in [
            (theirs.as_str(), port),
            (theirs, "+9000"),
            (theirs, "65536"),
            (theirs, "-1"),
            (theirs, ""),
            (&upper, port),
            (&format!(" {theirs} "), port),
            (&format!("{own},{theirs}"), port),
            (&format!("{own}/../{theirs}"), port),
        ] {
            heads.push(format!(
                "GET {path} HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: {id}\r\ne2b-sandbox-port: {number}\r\n"
            ));
            heads.push(format!(
                "GET {path} HTTP/1.1\r\nhost: {port}-{own}.x\r\ne2b-sandbox-id: {own}\r\ne2b-sandbox-id: {id}\r\ne2b-sandbox-port: {number}\r\n"
            ));
            heads.push(format!(
                "GET {path} HTTP/1.1\r\nhost: {port}-{own}.x\r\ne2b-sandbox-id: {id}\r\ne2b-sandbox-id: {own}\r\ne2b-sandbox-port: {number}\r\n"
            ));
        }
    }
    for rest in [
        "9000/",
        "44772/files/download?path=secret",
        "44772/command",
        "18080/policy",
        "+9000/",
        "09000/",
        "9000//",
        "%39000/",
        "9000%2f",
    ] {
        for id in [
            theirs.clone(),
            upper.clone(),
            format!("{own}/../{theirs}"),
            format!("{own}%2f..%2f{theirs}"),
            format!("%69{}", &theirs[1..]),
        ] {
            heads.push(format!("GET /v1/sandboxes/{id}/proxy/{rest} HTTP/1.1\r\nhost: x\r\n"));
            heads
                .push(format!("GET /v1/sandboxes/{own}/proxy/9000/../../../{id}/proxy/{rest} HTTP/1.1\r\nhost: x\r\n"));
            heads.push(format!("GET //v1/sandboxes/{id}/proxy/{rest} HTTP/1.1\r\nhost: x\r\n"));
        }
    }
    let traffic = attacker.traffic.clone().unwrap();
    let proofs = format!(
        "x-access-token: {token}\r\nx-execd-access-token: {token}\r\ne2b-traffic-access-token: {traffic}\r\n\
         opensandbox-secure-access: {traffic}\r\nx-api-key: {key}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n",
        token = attacker.token,
        key = attacker.key,
    );
    let mut wrong = String::new();
    for head in &heads {
        let answer = exchange(address, format!("{head}{proofs}").as_bytes(), 1 << 20).await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        // The attacker's own sandbox may answer, where nothing listens at 9000 and there is no such file.
        let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let tells = [&victim.token, victim.traffic.as_ref().unwrap(), &victim.key];
        let is_told = text.contains("of the victim") || tells.iter().any(|secret| text.contains(*secret));
        if is_told
            || status(&answer) >= 500 && !matches!(status(&answer), 501 | 502)
            || (body.contains(theirs) && status(&answer) == 200)
        {
            writeln!(wrong, "{head:?}: {text}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    // The control: the victim's own tokens open each of these doors.
    for (port, path, found) in [(9000, "/", "of the victim"), (49983, "/files?path=secret", "of the victim")] {
        let answer = victim.at(reqwest::Method::GET, port, path).send().await.unwrap();
        assert_eq!(answer.text().await.unwrap(), found);
    }
    let way = format!(
        "GET / HTTP/1.1\r\nhost: 9000-{theirs}.x\r\ne2b-traffic-access-token: {}\r\nconnection: close\r\n\r\n",
        victim.traffic.as_ref().unwrap()
    );
    assert!(String::from_utf8_lossy(&exchange(address, way.as_bytes(), 1 << 20).await).ends_with("of the victim"));
    println!("{} requests", heads.len());
    victim.leave().await;
    attacker.leave().await;
}

#[tokio::test]
async fn a_request_with_two_hosts_is_refused() {
    let tenant = Tenant::new("two hosts").await;
    let host = format!("8000-{}.x", tenant.id);
    let ask = async |hosts: &str| {
        let request = format!("GET / HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        status(&exchange(tenant.server.address, request.as_bytes(), 1 << 20).await)
    };
    // A proxy before the server might have judged by the other one.
    assert_eq!(ask(&format!("host: {host}\r\nhost: example.com\r\n")).await, 400);
    assert_eq!(ask(&format!("host: {host}\r\nhost: {host}\r\n")).await, 400);
    assert_eq!(ask(&format!("host: {host}\r\n")).await, 200);
    tenant.leave().await;
}

#[tokio::test]
async fn a_program_hears_of_the_request_alone() {
    let tenant = Tenant::private("hearing").await;
    tenant.run("serve(9000, lambda peer, head: peer.sendall(OK + b'connection: close\\r\\n\\r\\n' + head))").await;
    let traffic = tenant.traffic.clone().unwrap();
    let request = format!(
        "GET http://user:pass@9000-{id}.x/a%2f..%2f%2e%2e/b?c=%0d%0ad HTTP/1.1\r\nhost: 9000-{id}.x\r\ne2b-traffic-access-token: {traffic}\r\n\
         x-access-token: {token}\r\nauthorization: Bearer {key}\r\nx-api-key: {key}\r\nx-other: theirs\r\nconnection: x-other2, close\r\nx-other2: 1\r\n\r\n",
        id = tenant.id,
        token = tenant.token,
        key = tenant.key,
    );
    let answer = exchange(tenant.server.address, request.as_bytes(), 1 << 20).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let heard = text.split_once("\r\n\r\n").unwrap().1;
    assert!(heard.contains("\r\nGET /a%2f..%2f%2e%2e/b?c=%0d%0ad HTTP/1.1\r\n"), "{text}");
    let own = format!("\r\nHost: 9000-{}.x\r\n", tenant.id);
    assert!(heard.contains(&own) && heard.contains("X-Other: theirs") && !heard.contains("X-Other2"), "{heard}");
    for secret in [&traffic, &tenant.token, &tenant.key] {
        assert!(!heard.contains(secret), "{heard}");
    }
    tenant.leave().await;
}

#[tokio::test]
async fn a_program_sees_the_host_that_its_owner_named() {
    let more = json!({ "network": { "maskRequestHost": "shown.example:${PORT}" } });
    let tenant = Tenant::with("shown host", more).await;
    tenant.run("serve(9000, lambda peer, head: peer.sendall(OK + b'connection: close\\r\\n\\r\\n' + head))").await;
    let heard = tenant.at(reqwest::Method::GET, 9000, "/").send().await.unwrap().text().await.unwrap();
    assert!(heard.contains("\r\nHost: shown.example:9000\r\n"), "{heard}");
    tenant.leave().await;
}
