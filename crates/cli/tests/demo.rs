//! `aludel demo`: from nothing to a report.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use common::{aludel, said};
use serde_json::Value;

#[test]
fn the_demo_makes_a_report_from_dirty_data() {
    let directory = tempfile::tempdir().unwrap();
    let said = said(aludel(directory.path()).arg("demo"));
    assert_eq!(said.status, Some(0), "{said:#?}");
    assert!(said.stderr.contains("ValueError: time data") && said.stderr.contains("scripted"), "{}", said.stderr);
    let out = directory.path().join("aludel-demo");
    for (name, beginning) in [
        ("report.pdf", b"%PDF".as_slice()),
        ("report.xlsx", b"PK"),
        ("monthly.png", b"\x89PNG"),
        ("pareto.png", b"\x89PNG"),
        ("funnel.png", b"\x89PNG"),
        ("figures/figure-3.png", b"\x89PNG"),
        ("transcript.md", b"# Transcript"),
    ] {
        assert!(std::fs::read(out.join(name)).unwrap().starts_with(beginning), "{name}");
        let file_name = name.rsplit('/').next().unwrap();
        assert!(said.stderr.contains(file_name), "{name} is not told: {}", said.stderr);
    }
    assert_eq!(std::fs::read_to_string(out.join("sales_q1_2026.csv")).unwrap().lines().count(), 45_001);
    let transcript = std::fs::read_to_string(out.join("transcript.md")).unwrap();
    assert!(transcript.contains("2026-01 ") && !transcript.contains("nan%"), "{transcript}");
    let notebook: Value = serde_json::from_slice(&std::fs::read(out.join("transcript.ipynb")).unwrap()).unwrap();
    let programs = notebook["cells"].as_array().unwrap().iter().filter(|cell| cell["cell_type"] == "code").count();
    assert_eq!(programs, 8);
}
