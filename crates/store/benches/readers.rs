//! Latency of small reads beside a reader of a large conversation.
//!
//! `cargo bench -p aludel-store --bench readers` prints the median and the 99th percentile of a key's look-up and of a small response,
//! first alone and then while another tenant reads a conversation of 50 MB again and again.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may panic, and prints what it measured")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aludel_store::{QuotaCheck, ResponseId, ResponseRecord, Store, Tenant};
use serde_json::{Value, json};

const ITEMS: usize = 5000;
const ITEM_BYTES: usize = 10_000;
const ROUND: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let key = store.create_key("small", None).await.unwrap();
    let tenant = store.tenant_of_key(&key.secret).await.unwrap().unwrap();
    let id = ResponseId::new();
    let response = ResponseRecord {
        id: id.clone(),
        object: json!({ "status": "completed" }).to_string(),
        input: json!([{ "type": "message" }]).to_string(),
        expires_at: None,
    };
    store.put_response(&tenant, response, QuotaCheck::Checked).await.unwrap();

    let large = Tenant::local();
    let words: Vec<Value> = (0..ITEM_BYTES / 10).map(|word| json!(format!("{word:07}"))).collect();
    let items =
        (0..ITEMS).map(|item| (format!("item_{item}"), json!({ "type": "message", "content": words }))).collect();
    let conversation = store.add_conversation(&large, json!({}), items).await.unwrap().id;

    println!("{:<28}{:>12}{:>12}{:>12}{:>12}", "", "key p50", "key p99", "small p50", "small p99");
    measure("alone", &store, &key.secret, &tenant, &id).await;

    let ends = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (store, ends) = (store.clone(), Arc::clone(&ends));
        async move {
            let mut times = 0;
            while !ends.load(Ordering::Relaxed) {
                assert!(store.all_items(&large, &conversation, u64::MAX).await.unwrap().is_some());
                times += 1;
            }
            times
        }
    });
    measure("beside a large reader", &store, &key.secret, &tenant, &id).await;
    ends.store(true, Ordering::Relaxed);
    println!("the large conversation was read {} times", reader.await.unwrap());
}

async fn measure(name: &str, store: &Store, secret: &str, tenant: &Tenant, id: &ResponseId) {
    let (mut keys, mut responses) = (Vec::new(), Vec::new());
    let began = Instant::now();
    while began.elapsed() < ROUND {
        let start = Instant::now();
        store.tenant_of_key(secret).await.unwrap().unwrap();
        keys.push(start.elapsed());
        let start = Instant::now();
        store.response(tenant, id).await.unwrap().unwrap();
        responses.push(start.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let at = |times: &mut Vec<Duration>, percent: usize| {
        times.sort();
        format!("{:.2} ms", times[(times.len() - 1) * percent / 100].as_secs_f64() * 1000.0)
    };
    let cells = [at(&mut keys, 50), at(&mut keys, 99), at(&mut responses, 50), at(&mut responses, 99)];
    println!("{name:<28}{:>12}{:>12}{:>12}{:>12}", cells[0], cells[1], cells[2], cells[3]);
}
