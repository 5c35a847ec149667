//! Contexts whose kernels have ended.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::tenant::Tenant;

#[tokio::test(flavor = "multi_thread")]
async fn contexts_whose_kernels_have_ended_keep_no_descriptors() {
    let tenant = Tenant::new("contexts").await;
    let interpreter = |path: &str, body: Value| tenant.at(Method::POST, 49999, path).json(&body).send();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for number in 2.. {
        let made = interpreter("/contexts", json!({})).await.unwrap();
        if made.status() != StatusCode::OK {
            // They are bounded as well.
            assert_eq!((made.status(), number), (StatusCode::TOO_MANY_REQUESTS, 257), "{:?}", made.text().await);
            break;
        }
        let id = made.json::<Value>().await.unwrap()["id"].clone();
        let ended = interpreter("/execute", json!({ "code": "os = __import__('os'); os._exit(0)", "context_id": id }));
        assert!(ended.await.unwrap().text().await.unwrap().contains("exit status 0"));
    }
    // Three each before; other tests open and close some meanwhile.
    let more = open().saturating_sub(before);
    assert!(more < 200, "{more} more");
    tenant.is_well().await;
    tenant.leave().await;
}
