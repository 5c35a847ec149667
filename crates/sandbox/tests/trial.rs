//! A trial of a host before its template is there.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

use aludel_sandbox::Require;
use aludel_sandbox::probe::{self, CheckStatus};

#[tokio::test]
async fn a_host_is_tried_without_a_template_and_nothing_is_left() {
    let data = tempfile::tempdir().unwrap();
    let check = probe::sandbox(data.path(), Require::Default).await;
    assert_eq!(check.status, CheckStatus::Ok, "{check:?}");
    for directory in ["run", "templates"] {
        let entries = std::fs::read_dir(data.path().join(directory)).unwrap();
        let left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).filter(|name| name != ".lock").collect();
        assert!(left.is_empty(), "{directory}: {left:?}");
    }
}
