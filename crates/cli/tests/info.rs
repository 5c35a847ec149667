//! The commands that show how things stand: `--help`, `doctor`, `config`, `template`, `bench`.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::path::Path;

use common::{aludel, aludel_by, run, said};
use serde_json::{Value, json};

/// To write it anew: `aludel --help > crates/cli/tests/help.txt`, at a width of 100.
#[test]
fn the_help_is_the_one_that_was_agreed_on() {
    let said = run(&["--help"]);
    assert_eq!(said.status, Some(0));
    assert_eq!(said.stdout, include_str!("help.txt"), "\n{}", said.stdout);
    for command in [
        "run",
        "ask",
        "demo",
        "serve",
        "mcp",
        "keys",
        "approvals",
        "audit",
        "backup",
        "doctor",
        "backends",
        "config",
        "sandbox",
        "template",
        "bench",
        "completions",
    ] {
        assert_eq!(run(&[command, "--help"]).status, Some(0), "{command}");
    }
    assert_eq!(run(&["no-such-command"]).status, Some(2));
}

#[test]
fn doctor_tells_what_this_host_can_do() {
    let said = run(&["doctor", "--json"]);
    assert_eq!(said.status, Some(0), "{said:#?}");
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(report["usable"], true);
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["kernel", "namespaces", "user ids", "control groups", "seccomp", "Landlock", "crashes", "template", "sandbox"]
    );
    assert!(checks.iter().all(|check| check["status"] == "ok" || check["status"] == "degraded"), "{checks:#?}");
    let output = run(&["doctor"]).stdout;
    assert!(names.iter().all(|name| output.contains(name)), "{output}");
}

#[test]
fn doctor_knows_a_chroot_where_no_sandbox_can_start() {
    if !rustix::process::geteuid().is_root() {
        return; // nobody else enters one
    }
    let directory = tempfile::tempdir().unwrap();
    // Directories alone, without the file by which a container is known. The mounts are gone with the namespace.
    let enter = "set -e; mount --make-rprivate /
for top in /*; do
    if [ -L $top ]; then cp -P $top \"$1\"; elif [ -d $top ]; then mkdir \"$1$top\"; mount --rbind $top \"$1$top\"; fi
done
exec chroot \"$@\"";
    let root = directory.path().to_str().unwrap();
    let mut command = aludel_by(Path::new("/"), &["unshare", "--mount", "sh", "-c", enter, "sh", root]);
    let doctor = said(command.arg("doctor").env("ALUDEL_SANDBOX_BACKEND", "local"));
    assert_eq!(doctor.status, Some(4), "{doctor:#?}");
    assert!(doctor.stdout.contains("in a chroot, Linux makes no user namespaces"), "{doctor:#?}");
}

#[test]
fn doctor_looks_for_the_templates_that_settings_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aludel.toml");
    let model = "[[model]]\nname = \"m\"\nurl = \"http://m/v1\"\ntemplate = \"none\"\n";
    for (settings, words) in [
        ("[sandbox]\ntemplate = \"none\"\n", "sandbox.template: there is no template `none`"),
        ("[sandbox]\ntemplates = [\"none\"]\n", "sandbox.templates: there is no template `none`"),
        ("[sandbox]\nkey_templates = { key_1 = \"none\" }\n", "sandbox.key_templates: there is no"),
        (model, "`template` of a model: there is no template `none`"),
    ] {
        std::fs::write(&file, settings).unwrap();
        let mut command = aludel(directory.path());
        command.args(["doctor", "--json", "--config"]).arg(&file).env("ALUDEL_SANDBOX_BACKEND", "local");
        let doctor = said(&mut command);
        let report: Value = serde_json::from_str(&doctor.stdout).unwrap();
        assert_eq!((doctor.status, &report["usable"]), (Some(4), &json!(false)), "{settings}: {doctor:#?}");
        let last = report["checks"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["name"], &last["status"]), (&json!("template"), &json!("missing")), "{settings}");
        assert!(last["detail"].as_str().unwrap().starts_with(words), "{settings}: {last}");
    }
}

#[test]
fn backends_tell_where_programs_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aludel.toml");
    let cases = [("auto", "local", 0), ("docker", "docker", 4), ("e2b", "e2b", 4), ("opensandbox", "opensandbox", 4)];
    for (backend, used, status) in cases {
        let text = format!("[sandbox]\nbackend = \"{backend}\"\ndocker.host = \"unix:///nowhere.sock\"\n");
        std::fs::write(&file, text).unwrap();
        let output =
            |more: &[&str]| said(aludel(directory.path()).args(["backends", "--config"]).arg(&file).args(more));
        let json = output(&["--json"]);
        let report: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!((json.status, &report["used"]), (Some(status), &json!(used)), "{json:?}");
        let ready: Vec<_> = report["backends"].as_array().unwrap().iter().map(|found| &found["ready"]).collect();
        assert_eq!(ready, [false, false, true, false]);
        if used != "local" {
            let doctor = said(aludel(directory.path()).args(["doctor", "--config"]).arg(&file));
            assert_eq!(doctor.status, Some(4), "{doctor:?}");
            assert!(doctor.stdout.starts_with(&format!("missing   {used}  ")), "{doctor:?}");
            assert!(doctor.stdout.contains("another sandbox.backend"), "{doctor:?}");
        }
        if used == "docker" {
            assert!(output(&[]).stdout.contains("nowhere.sock"));
        }
        if used == "e2b" {
            assert!(output(&[]).stdout.contains("set E2B_API_KEY"));
        }
        if used == "opensandbox" {
            assert!(output(&[]).stdout.contains("no answer from http://localhost:8080"));
        }
    }
}

#[test]
fn config_tells_every_value_with_its_origin() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aludel.toml");
    std::fs::write(
        &file,
        "[sandbox]\nmemory = \"2g\"\n[[model]]\nname = \"m\"\nurl = \"http://m/v1\"\nkey = \"sk-secret\"\n",
    )
    .unwrap();
    let mut command = aludel(directory.path());
    let text = said(command.env("ALUDEL_SANDBOX_POOL", "9").arg("config"));
    let line = |name: &str| text.stdout.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("configuration file").ends_with("aludel.toml"));
    assert!(line("sandbox.memory").contains("2g") && line("sandbox.memory").ends_with("aludel.toml:2"), "{text:#?}");
    assert!(line("sandbox.pool").ends_with("$ALUDEL_SANDBOX_POOL"), "{text:#?}");
    assert!(line("sandbox.idle").ends_with("default"), "{text:#?}");
    assert!(line("model.m.key").contains("(hidden)") && text.stderr.contains("stands in the file itself"), "{text:#?}");
    let json = said(command.arg("--json"));
    let values: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(values["values"]["sandbox.pool"], json!({ "value": "9", "origin": "$ALUDEL_SANDBOX_POOL" }));
    assert!(![text, json].iter().any(|said| format!("{said:?}").contains("sk-secret")));

    std::fs::write(&file, "[sandbox]\nmemroy = \"2g\"\n").unwrap();
    let wrong = said(aludel(directory.path()).arg("config"));
    assert_eq!(wrong.status, Some(2));
    assert!(wrong.stderr.contains("aludel.toml:2: there is no `sandbox.memroy`; did you mean `memory`?"), "{wrong:#?}");
}

#[test]
fn template_tells_what_is_in_it() {
    let said = run(&["template", "info"]);
    assert_eq!(said.status, Some(0), "{said:#?}");
    assert!(said.stdout.starts_with("Python 3.") && said.stdout.contains("\n  pandas "), "{said:#?}");
    let empty = tempfile::tempdir().unwrap();
    let said = run(&["template", "info", "--data", empty.path().to_str().unwrap()]);
    assert_eq!((said.status, said.stdout.contains("`aludel template build` makes it")), (Some(0), true), "{said:#?}");
}

#[test]
fn bench_measures() {
    let said = run(&["bench", "start", "-n", "3", "--json"]);
    assert_eq!(said.status, Some(0), "{said:#?}");
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    let median = |name: &str| report[name]["median_ms"].as_f64().unwrap();
    assert_eq!(report["on_demand"]["count"], 3);
    assert!(median("pooled") > 0.0 && median("on_demand") < median("new_interpreter"), "{report:#}");
    assert!(run(&["bench", "-n", "1"]).stdout.contains("to the first result, ms"));
}
