//! Signed addresses of files: each opens one file of one sandbox in one way, for its time.

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use reqwest::{Method, StatusCode};
use sha2::{Digest, Sha256};

use crate::tenant::Tenant;

/// An address as E2B's SDKs sign it.
fn signed(path: &str, operation: &str, user: &str, secret: &str, end: Option<i64>) -> String {
    let text = format!("{path}:{operation}:{user}:{secret}") + &end.map(|end| format!(":{end}")).unwrap_or_default();
    let signature = format!("v1_{}", BASE64_STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())));
    let mut query = reqwest::Url::parse("http://x/files").unwrap();
    let mut pairs = query.query_pairs_mut();
    pairs.append_pair("path", path).append_pair("username", user).append_pair("signature", &signature);
    if let Some(end) = end {
        pairs.append_pair("signature_expiration", &end.to_string());
    }
    drop(pairs);
    format!("/files?{}", query.query().unwrap())
}

#[tokio::test]
async fn an_address_opens_its_own_file_alone() {
    let (tenant, other) = (Tenant::new("signer").await, Tenant::new("stranger").await);
    for (tenant, text) in [(&tenant, "mine"), (&other, "theirs")] {
        tenant
            .run(&format!(
                "for name in ('a', 'b', 'a:read:b'): open('/home/user/' + name, 'w').write('{text} ' + name)"
            ))
            .await;
    }
    let ask = async |method: Method, address: &str, sandbox: Option<&str>| {
        let request =
            tenant.client.request(method, format!("http://{}{address}", tenant.server.address)).body("written");
        let request = sandbox.iter().fold(request, |request, id| request.header("E2b-Sandbox-Id", *id));
        let answer = request.send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    };
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    let good = signed("a", "read", "user", &tenant.token, Some(now + 600));
    let written = signed("c", "write", "user", &tenant.token, None);
    // The controls.
    assert_eq!(ask(Method::GET, &good, None).await, (StatusCode::OK, "mine a".to_owned()));
    assert_eq!(ask(Method::GET, &good, Some(&tenant.id)).await, (StatusCode::OK, "mine a".to_owned()));
    assert_eq!(ask(Method::HEAD, &good, None).await.0, StatusCode::OK);
    assert_eq!(ask(Method::POST, &written, None).await.0, StatusCode::OK);
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from), "{from} in {good}");
        good.replacen(from, to, 1)
    };
    let end = format!("signature_expiration={}", now + 600);
    let wrong = [
        changed("path=a", "path=b"),
        changed("path=a", "path=.%2Fa"),
        changed("path=a", "path=%2Fhome%2Fuser%2Fa"),
        changed("path=a", "path=..%2F..%2Fetc%2Fpasswd"),
        changed("path=a", "path=a%00"),
        changed("path=a", "path=a&path=b"),
        changed("path=a", "path=b&path=a"),
        changed("path=a", "path%5B%5D=a"),
        changed("path=a", "path=A"),
        changed("username=user", "username=root"),
        changed("username=user", "username="),
        changed("username=user&", ""),
        changed("username=user", "username=user&username=root"),
        changed(&end, &format!("signature_expiration={}", now + 601)),
        changed(&format!("&{end}"), ""),
        changed(&end, &format!("{end}0")),
        changed(&end, &format!("{end}&signature_expiration={}", now + 9000)),
        changed(&end, "signature_expiration=99999999999999999999"),
        changed("signature=v1_", "signature=v2_"),
        changed("signature=v1_", "signature="),
        changed("signature=v1_", "signature=v1_%00"),
        good.split_once("&signature=").unwrap().0.to_owned(),
        format!("{}&signature=", good.split_once("&signature=").unwrap().0),
        // Ended, by moments and by ages.
        signed("a", "read", "user", &tenant.token, Some(now - 1)),
        signed("a", "read", "user", &tenant.token, Some(0)),
        signed("a", "read", "user", &tenant.token, Some(-1)),
        signed("a", "read", "user", &tenant.token, Some(i64::MIN)),
        // By other keys.
        signed("a", "read", "user", "", None),
        signed("a", "read", "user", &tenant.id, None),
        signed("a", "read", "user", &tenant.key, None),
        // Read in another way, the same text says another file and user.
        signed("a", "read", "b:read:user", &tenant.token, None),
        signed("a", "read", "root", &tenant.token, None),
        // For writing.
        signed("a", "write", "user", &tenant.token, None),
    ];
    for address in &wrong {
        for sandbox in [None, Some(tenant.id.as_str())] {
            let (status, text) = ask(Method::GET, address, sandbox).await;
            assert!(matches!(status.as_u16(), 400 | 401), "{address}: {status} {text}");
            assert!(!text.contains("mine"), "{address}: {text}");
        }
    }
    for (method, address) in
        [(Method::POST, &good), (Method::PUT, &good), (Method::DELETE, &good), (Method::HEAD, &written)]
    {
        let (status, text) = ask(method.clone(), address, None).await;
        assert!(status.is_client_error(), "{method} {address}: {status} {text}");
    }
    // Of another sandbox, and at another sandbox, service or path.
    let theirs = signed("a", "read", "user", &other.token, None);
    assert_eq!(ask(Method::GET, &theirs, None).await.1, "theirs a");
    assert_eq!(ask(Method::GET, &theirs, Some(&tenant.id)).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(Method::GET, &good, Some(&other.id)).await.0, StatusCode::UNAUTHORIZED);
    for path in ["/envs", "/files/", "/files/a", "//files", "/files%3f", "/process.Process/List", "/sandboxes"] {
        let moved = good.replacen("/files", path, 1);
        let (status, text) = ask(Method::GET, &moved, None).await;
        assert!(matches!(status.as_u16(), 401 | 404 | 405), "{moved}: {status} {text}");
    }
    // Signed paths are confined like all else in the sandbox.
    for path in [
        "../../../etc/shadow",
        "/etc/shadow",
        "/proc/1/environ",
        "/proc/self/root/etc/shadow",
        "..%2f..%2fetc%2fshadow",
        "/dev/zero",
        "/dev/ptmx",
    ] {
        let address = signed(path, "read", "user", &tenant.token, None);
        let (status, text) = ask(Method::GET, &address, None).await;
        assert!(status.is_client_error(), "{path}: {status} {}", &text[..text.len().min(200)]);
    }
    let ended = tenant.id.clone();
    tenant.request(Method::DELETE, &format!("/sandboxes/{ended}")).send().await.unwrap();
    assert_eq!(ask(Method::GET, &good, None).await.0, StatusCode::UNAUTHORIZED);
    other.is_well().await;
    other.leave().await;
}
