//! `aludel serve` and `aludel keys`, as the built program.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};

use aludel_store::{Store, Tenant, TurnId, TurnRecord, TurnState};
use aludel_testkit::{Keeper, Scripted, ScriptedUpstream};
use common::{aludel, aludel_by, audit_log, data, left, runs, said, signal, wait_until};

/// Starts a server and waits until it says where it listens.
fn serve(data: &Path) -> (Child, String) {
    started(aludel(data).args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data))
}

/// Waits until a server says where it listens.
fn started(command: &mut Command) -> (Child, String) {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on http://").unwrap_or_else(|| {
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        panic!("{line:?} {errors}")
    });
    (child, address.to_owned())
}

/// One request; the whole answer as text.
fn ask(address: &str, request: &str, key: Option<&str>, body: &str) -> String {
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head =
        format!("{request} HTTP/1.1\r\nhost: {address}\r\n{key}content-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_server_starts_serves_and_ends_and_what_it_was_told_is_there_afterwards() {
    let data = data();
    let (mut child, address) = serve(data.path());
    assert!(ask(&address, "GET /v1/models", None, "").contains("\"demo\""));
    let made = ask(&address, "POST /v1/containers", None, "{\"name\":\"kept\"}");
    assert!(made.starts_with("HTTP/1.1 200 ") && made.contains("\"kept\""), "{made}");
    let second = said(aludel(data.path()).args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data.path()));
    assert!(second.status != Some(0) && second.stderr.contains("another server is using"), "{second:#?}");
    assert!(has_descendants(data.path()), "the control: a live server has a warden");
    // Nothing is prepared for this.
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(|| !has_descendants(data.path()), "a killed server leaves processes behind");

    let (mut child, address) = serve(data.path());
    assert!(ask(&address, "GET /v1/containers", None, "").contains("\"kept\""));
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(TcpStream::connect(&address).is_err());
}

/// A command that has begun to build its template, from an index of packages that never answers.
fn building(data: &Path, arguments: &[&str], was_begun: impl FnOnce()) -> (Child, TcpStream) {
    let index = TcpListener::bind("127.0.0.1:0").unwrap();
    index.set_nonblocking(true).unwrap();
    let mut command = aludel(data);
    command.args(arguments).arg("--data").arg(data);
    command.env("PIP_INDEX_URL", format!("http://{}/simple", index.local_addr().unwrap()));
    command.env("ALUDEL_SANDBOX_SHARED", data.join("none")).env("ALUDEL_SANDBOX_BACKEND", "local");
    let child = command.spawn().unwrap();
    let mut pip = None;
    let mut asked = || {
        pip = pip.take().or_else(|| Some(index.accept().ok()?.0));
        pip.is_some()
    };
    wait_until(&mut asked, "nothing is built");
    was_begun();
    let pip = pip.unwrap();
    pip.set_nonblocking(false).unwrap();
    (child, pip)
}

/// Asserts that nothing of a build is left.
fn nothing_is_left(data: &Path, mut pip: TcpStream) {
    // Ends with its reader.
    let _reset = pip.read_to_end(&mut Vec::new());
    let left = std::fs::read_dir(data.join("templates")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != ".lock").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_server_that_builds_its_template_answers_and_ends_when_it_is_asked() {
    let data = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let (mut child, pip) = building(data.path(), &["serve", "--listen", &address], || {
        assert!(ask(&address, "GET /healthz", None, "").starts_with("HTTP/1.1 200 "));
        let ready = ask(&address, "GET /readyz", None, "");
        assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("its template is being built"), "{ready}");
    });
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    nothing_is_left(data.path(), pip);

    // The second does not wait, and says so.
    let (mut child, _pip) = building(data.path(), &["serve", "--listen", &address], || {});
    signal(&child, "TERM");
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_build_that_is_interrupted_leaves_nothing() {
    let data = tempfile::tempdir().unwrap();
    let (mut child, pip) = building(data.path(), &["template", "build", "--force"], || {});
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    nothing_is_left(data.path(), pip);
}

#[test]
fn a_full_disk_is_told() {
    if !rustix::process::geteuid().is_root() {
        // A small disk takes root.
        return;
    }
    let data = data();
    let templates = std::fs::canonicalize(data.path().join("templates")).unwrap();
    let on_disk = |size: &str, filled: &str| {
        let make = format!(
            "mount -t tmpfs -o size={size} none {data} && ln -s {templates} {data}/templates && {filled} && exec \"$@\"",
            data = data.path().display(),
            templates = templates.display()
        );
        let mut command = aludel_by(Path::new("/"), &["unshare", "--mount", "sh", "-c", &make, "sh"]);
        command.env("ALUDEL_SERVER_DATA", data.path()).env("ALUDEL_SANDBOX_BACKEND", "local");
        command
    };
    let once_and_read_only = format!("\"$1\" keys create a && mount -o remount,ro {}", data.path().display());
    let listed = said(on_disk("44m", &once_and_read_only).args(["keys", "list"]));
    let told = listed.stderr.contains("must be writable") && listed.stderr.contains("Read-only file system");
    assert!(listed.status == Some(4) && told, "{listed:#?}");
    let (mut child, address) = started(on_disk("44m", "true").args(["serve", "--listen", "127.0.0.1:0"]));
    let ready = ask(&address, "GET /readyz", None, "");
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    let fill = format!("/proc/{}/root{}/fill", child.id(), data.path().display());
    std::fs::write(&fill, vec![1; 36 << 20]).unwrap();
    let ready = ask(&address, "GET /readyz", None, "");
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("state is full"), "{ready}");
    std::fs::remove_file(&fill).unwrap();
    assert!(ask(&address, "GET /readyz", None, "").starts_with("HTTP/1.1 200 "));

    // Nothing can be stored, and all can be deleted.
    let made = ask(&address, "POST /v1/containers", None, r#"{"name": "kept"}"#);
    let id = made.split('"').find(|word| word.starts_with("cntr_")).unwrap();
    let made = ask(&address, "POST /v1/containers", None, r#"{"name": "second"}"#);
    let second = made.split('"').find(|word| word.starts_with("cntr_")).unwrap();
    let mut filled = std::fs::File::create(&fill).unwrap();
    while filled.write_all(&[1; 1024]).is_ok() {}
    let refused = ask(&address, "POST /v1/containers", None, r#"{"name": "more"}"#);
    assert!(refused.starts_with("HTTP/1.1 507 "), "{refused}");
    let deleted = ask(&address, &format!("DELETE /v1/containers/{id}"), None, "");
    assert!(deleted.starts_with("HTTP/1.1 200 "), "{deleted}");
    // The room that was kept for it is for deletions still.
    let refused = ask(&address, "POST /v1/containers", None, r#"{"name": "more"}"#);
    assert!(refused.starts_with("HTTP/1.1 507 "), "{refused}");
    let deleted = ask(&address, &format!("DELETE /v1/containers/{second}"), None, "");
    assert!(deleted.starts_with("HTTP/1.1 200 "), "{deleted}");
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let fill = format!("{{ head -c 2m /dev/zero > {}/fill || true; }} 2>/dev/null", data.path().display());
    let doctor = said(on_disk("1m", &fill).arg("doctor"));
    assert_eq!(doctor.status, Some(4), "{doctor:#?}");
    let words = doctor.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("make room on the disk of") && !words.contains("sysctl"), "{doctor:#?}");
    let ran = said(on_disk("1m", &fill).args(["run", "-c", "print(1)"]));
    assert!(ran.status == Some(4) && ran.stderr.contains("make room on the disk of"), "{ran:#?}");

    let out = data.path().join("out");
    let small = format!("mkdir {0} && mount -t tmpfs -o size=1m none {0}", out.display());
    let code = "for name, size in [('a', 1), ('b', 3 << 20), ('c', 1)]: open(name, 'wb').write(bytes(size))";
    let ran = said(on_disk("44m", &small).args(["run", "-c", code, "--out"]).arg(&out));
    let told = format!("not all files are saved, but {0}/a, {0}/c: cannot copy b: ", out.display());
    assert!(ran.status == Some(4) && ran.stderr.contains(&told), "{ran:#?}");
}

/// Asks for a response of a model that may run programs, and returns the answer.
fn respond(address: &str, key: &str, model: &str, previous: Option<&str>) -> String {
    let previous = previous.map(|id| format!(r#","previous_response_id":"{id}""#)).unwrap_or_default();
    let body = format!(
        r#"{{"model":"{model}","input":"Go","tools":[{{"type":"code_interpreter","container":{{"type":"auto"}}}}]{previous}}}"#
    );
    let answer = ask(address, "POST /v1/responses", Some(key), &body);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn local_sandbox_a_server_outlives_its_warden_and_its_tenants_go_on() {
    let marker = format!("{}.25", 88_000_000 + u64::from(std::process::id()));
    let sleep = format!("import subprocess\nopen('b', 'w').write('late')\nsubprocess.run(['sleep', '{marker}'])");
    let idle = ScriptedUpstream::start(vec![
        Scripted::Python("open('a', 'w').write('kept')\nx = 1"),
        Scripted::Text("Made."),
        Scripted::Python("print(open('a').read(), 'x' in dir())"),
        Scripted::Text("Read."),
    ])
    .await;
    let busy = ScriptedUpstream::start(vec![
        Scripted::Python(Box::leak(sleep.into_boxed_str())),
        Scripted::Python("print(open('b').read())"),
        Scripted::Text("Read."),
    ])
    .await;
    let data = data();
    let models =
        format!("[[model]]\nname='idle'\nurl='{}'\n[[model]]\nname='busy'\nurl='{}'\n", idle.url(), busy.url());
    std::fs::write(data.path().join("aludel.toml"), models).unwrap();
    let key = |name: &str| {
        let made = said(aludel(data.path()).args(["keys", "create", name, "--data"]).arg(data.path()));
        made.stdout.trim_end().to_owned()
    };
    let (idle_key, busy_key) = (key("idle"), key("busy"));
    let (mut child, address) = serve(data.path());
    let first = respond(&address, &idle_key, "idle", None);
    let id = first.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let running = std::thread::spawn({
        let (address, key) = (address.clone(), busy_key.clone());
        move || respond(&address, &key, "busy", None)
    });
    wait_until(|| runs(&marker), "the program does not run");

    Keeper::Warden.kill(data.path());
    let killed = std::time::Instant::now();
    let ready = || ask(&address, "GET /readyz", Some(&idle_key), "");
    wait_until(|| ready().starts_with("HTTP/1.1 503 "), "nobody noticed");
    assert!(ready().contains("the warden ended"), "{}", ready());
    let second = respond(&address, &idle_key, "idle", Some(&id));
    println!("a response came {} ms after the kill", killed.elapsed().as_millis());
    assert!(second.contains("Read."), "{second}");
    let seen = idle.requests()[3]["messages"].to_string();
    assert!(seen.contains("kept False") && seen.contains("The session was restarted"), "{seen}");
    assert!(running.join().unwrap().contains("Read."));
    let seen = busy.requests()[1]["messages"].to_string();
    assert!(seen.contains("All variables are lost; the files are kept."), "{seen}");
    assert!(busy.requests()[2]["messages"].to_string().contains("late"));
    assert!(ready().starts_with("HTTP/1.1 200 "), "{}", ready());
    assert!(!runs(&marker), "a program outlived its warden");
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(errors.contains("there is no warden any more"), "{errors}");
    assert_eq!(std::fs::read_dir(data.path().join("run")).unwrap().count(), 0);
}

/// Returns true if a process works in the run directory of this data directory.
fn has_descendants(data: &Path) -> bool {
    !descendants(data).is_empty()
}

/// The processes that work there, as their directories in `/proc`.
fn descendants(data: &Path) -> Vec<std::path::PathBuf> {
    let data = data.as_os_str().as_encoded_bytes();
    let has_mounted = |process: &std::path::PathBuf| {
        let mounts = std::fs::read(process.join("mountinfo")).unwrap_or_default();
        mounts.windows(data.len()).any(|window| window == data)
    };
    let is_process = |process: &std::path::PathBuf| {
        process.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit())
    };
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    entries.filter(is_process).filter(has_mounted).collect()
}

#[test]
fn keys_are_made_listed_and_revoked_while_the_server_runs() {
    let data = data();
    let keys =
        |arguments: &[&str]| said(aludel(data.path()).arg("keys").args(arguments).arg("--data").arg(data.path()));
    let refused = said(aludel(data.path()).args(["serve", "--listen", "0.0.0.0:0", "--data"]).arg(data.path()));
    assert!(refused.status == Some(2) && refused.stderr.contains("aludel keys create"), "{refused:#?}");
    let (mut child, address) = serve(data.path());
    let made = keys(&["create", "laptop"]);
    let key = made.stdout.trim_end();
    assert!(made.status == Some(0) && key.starts_with("sk-aludel-"), "{made:#?}");
    let listed = keys(&["list"]);
    assert!(listed.stdout.contains("laptop") && listed.stdout.contains("active") && !listed.stdout.contains(key));
    assert!(ask(&address, "GET /v1/models", None, "").starts_with("HTTP/1.1 401 "));
    assert!(ask(&address, "GET /v1/models", Some(key), "").starts_with("HTTP/1.1 200 "));
    let id = listed.stdout.split_whitespace().next().unwrap();
    let is_served = |key: &str| ask(&address, "GET /v1/models", Some(key), "").starts_with("HTTP/1.1 200 ");
    let rotate = |until: &[&str]| keys(&[["rotate", "laptop"].as_slice(), until].concat()).stdout.trim_end().to_owned();
    let second = rotate(&["--former-until", "1h"]);
    assert!(second != key && is_served(&second) && is_served(key), "both secrets are served for a time");
    let third = rotate(&[]);
    assert!(is_served(&third), "{third}");
    wait_until(|| !is_served(&second) && !is_served(key), "a former secret is served for long");
    let key = third.as_str();
    let early = keys(&["erase", id]);
    assert!(early.status == Some(2) && early.stderr.contains("revoke"), "{early:#?}");
    assert_eq!(keys(&["revoke", id]).status, Some(0));
    let listed: serde_json::Value = serde_json::from_str(&keys(&["list", "--json"]).stdout).unwrap();
    assert!(
        listed["state"] == "revoked" && listed["name"] == "laptop" && listed["per_day"]["tokens"].is_null(),
        "{listed}"
    );
    assert!(keys(&["list"]).stdout.contains("revoked") && keys(&["rotate", id]).status == Some(2));
    let is_refused = || ask(&address, "GET /v1/models", Some(key), "").starts_with("HTTP/1.1 401 ");
    wait_until(is_refused, "a key is served long after it was revoked");
    for nobody in ["key_0", "laptop"] {
        let unknown = keys(&["revoke", nobody]);
        assert!(unknown.status == Some(2) && unknown.stderr.contains(nobody), "{unknown:#?}");
    }
    keys(&["create", "phone"]);
    keys(&["create", "phone"]);
    let two = keys(&["revoke", "phone"]);
    assert!(two.status == Some(2) && two.stderr.contains("several keys are called phone"), "{two:#?}");
    let id = keys(&["list"]).stdout.lines().last().unwrap().split_whitespace().next().unwrap().to_owned();
    assert_eq!(keys(&["revoke", &id]).status, Some(0));
    assert!(keys(&["revoke", "phone"]).stdout.starts_with("revoked key_"), "the other one has the name alone");

    let short = keys(&["create", "guest", "--expires", "1s"]);
    let guest = short.stdout.trim_end();
    let says_so = || ask(&address, "GET /v1/models", Some(guest), "").contains("has expired");
    wait_until(says_so, "a key is served long after it expired");
    assert!(keys(&["list"]).stdout.lines().any(|line| line.contains("expired") && line.contains("guest   until 20")));
    assert!(keys(&["expire", "guest", "2200-01-01"]).stdout.contains("expires at 2200-01-01T00:00:00Z"));
    let is_served = || ask(&address, "GET /v1/models", Some(guest), "").starts_with("HTTP/1.1 200 ");
    wait_until(is_served, "a key that was given more time is refused");
    assert!(keys(&["expire", "guest", "never"]).stdout.contains("never expires"));
    assert!(
        keys(&["limit", "guest", "--tokens", "9", "--requests", "0"]).stdout.ends_with("0 requests, 9 tokens a day\n")
    );
    let says_so = || ask(&address, "POST /v1/conversations", Some(guest), "{}").contains("budget of 0 requests a day");
    wait_until(says_so, "a budget that is used up is not seen");
    assert!(keys(&["limit", "guest", "--requests", "none"]).stdout.ends_with(" 9 tokens a day\n"));
    assert!(keys(&["list"]).stdout.contains("guest   9 tokens a day"));
    let over = keys(&["create", "late", "--expires", "2020-01-01"]);
    assert!(over.status == Some(2) && over.stderr.contains("is over already"), "{over:#?}");

    let with_key = |key: &str| {
        let mut command = aludel(data.path());
        command.args(["keys", "create", "moved", "--key", "env:OLD_KEY", "--data"]).arg(data.path());
        said(command.env("OLD_KEY", key))
    };
    let short = with_key("sk-1234");
    assert!(short.status == Some(2) && short.stderr.contains("too short"), "{short:#?}");
    let old = "sk-0123456789abcdefghijkl";
    let moved = with_key(old);
    assert!(moved.status == Some(0) && !moved.stdout.contains(old), "{moved:#?}");
    let is_served = || ask(&address, "GET /v1/models", Some(old), "").starts_with("HTTP/1.1 200 ");
    wait_until(is_served, "a key that was brought along is not served");
    assert_eq!(with_key(old).status, Some(2));
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_a_server_kept_is_not_looked_for_in_vain() {
    let data = data();
    for arguments in [&["audit", "--verify"][..], &["keys", "list"], &["approvals", "list"]] {
        let mistyped = said(aludel(data.path()).args(arguments).arg("--data").arg(data.path()));
        assert!(mistyped.status == Some(2) && mistyped.stderr.contains("no server has kept anything"), "{mistyped:#?}");
    }
    assert!(!data.path().join("state").exists(), "a look makes nothing");
    assert_eq!(said(aludel(data.path()).args(["keys", "create", "--data"]).arg(data.path())).status, Some(0));
    let verified = said(aludel(data.path()).args(["audit", "--verify", "--data"]).arg(data.path()));
    assert_eq!((verified.status, verified.stdout.as_str()), (Some(0), "0 entries, unchanged\n"));
}

#[test]
fn all_that_is_wrong_with_the_models_is_told_at_once() {
    let data = data();
    let models = "[[model]]\nname='a'\nurl='http://a/v1'\nkey='env:NOT_SET_A'\nfallback=['b']\n\
                  [[model]]\nname='b'\nurl='http://b/v1'\nkey='env:NOT_SET_B'\n";
    std::fs::write(data.path().join("aludel.toml"), models).unwrap();
    let refused = said(aludel(data.path()).args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data.path()));
    assert_eq!(refused.status, Some(2), "{refused:#?}");
    for variable in ["NOT_SET_A", "NOT_SET_B"] {
        assert_eq!(refused.stderr.matches(variable).count(), 1, "{refused:#?}");
    }
}

#[test]
fn a_reload_says_what_it_did_not_do() {
    let data = data();
    let file = data.path().join("aludel.toml");
    let model = |name: &str| format!("[[model]]\nname='{name}'\nurl='http://127.0.0.1:1/v1'\n");
    std::fs::write(&file, model("first")).unwrap();
    let (mut child, address) = serve(data.path());
    let mut output = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |words: &str| output.find(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words:?}"));
    std::fs::remove_file(&file).unwrap();
    // Scripts for the logs of other servers send these.
    signal(&child, "USR1");
    signal(&child, "USR2");
    signal(&child, "HUP");
    assert!(until("nothing was reloaded").contains("aludel.toml"));
    assert!(ask(&address, "GET /v1/models", None, "").contains("\"first\""));
    std::fs::write(&file, model("second") + "[approval]\nmode='always'\n").unwrap();
    signal(&child, "HUP");
    assert!(until("models reloaded").contains("second"));
    assert!(until("approval was not reloaded").contains("with its rules"));
    assert!(until("need a restart").contains("approval.mode"));
    assert!(ask(&address, "GET /v1/models", None, "").contains("\"second\""));
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Asks for a program that goes on until somebody ends it, and waits until it runs.
async fn ask_beside(data: &Path) -> (Child, BufReader<std::process::ChildStderr>, ScriptedUpstream) {
    let slow = "open('kept', 'w').write('x')\nprint('on', flush=True)\nimport time\ntime.sleep(600)";
    let upstream = ScriptedUpstream::start(vec![Scripted::Python(slow)]).await;
    let mut command = aludel(data);
    command.args(["ask", "Go", "--timeout", "600s", "--model", "m", "--url", &upstream.url(), "--data"]).arg(data);
    let mut child = command.spawn().unwrap();
    let mut shown = BufReader::new(child.stderr.take().unwrap());
    let mut work = String::new();
    while work.lines().next_back().is_none_or(|line| line.trim() != "on") {
        assert!(shown.read_line(&mut work).unwrap() > 0, "{work}");
    }
    (child, shown, upstream)
}

/// The turn of the last program in the audit log.
async fn last_turn(data: &Path) -> TurnRecord {
    let store = Store::open_beside(&data.join("state")).await.unwrap();
    let last = store.audit_log(0, 1000).await.unwrap().pop().unwrap();
    let turn = store.turn(&Tenant::terminal(), &TurnId::parse(&last.request).unwrap()).await.unwrap();
    assert_eq!(turn.as_ref().unwrap().session.as_ref(), Some(&last.session));
    turn.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_asked_beside_a_server_that_leaves_it_alone() {
    const CUT_OFF: &str = "The server ended while it ran; its outcome is not known.";
    let data = data();
    let (mut server, address) = serve(data.path());
    let (mut asking, mut shown, _upstream) = ask_beside(data.path()).await;
    assert!(ask(&address, "GET /v1/containers", None, "").contains("\"data\":[]"), "the session is nobody else's");
    assert_eq!(left(data.path()).await[0], 1, "the control: there is one");
    let started = ["started", "nobody is asked", ""].map(str::to_owned);
    assert_eq!(audit_log(data.path()).await, std::slice::from_ref(&started));
    let turn = last_turn(data.path()).await;
    assert_eq!((&*turn.dialect, turn.state, turn.epoch), ("terminal", TurnState::Running, 1));

    signal(&server, "TERM");
    assert_eq!(server.wait().unwrap().code(), Some(0));
    let (mut server, address) = serve(data.path());
    // A server that answers has recovered.
    assert!(ask(&address, "GET /v1/models", None, "").contains("\"demo\""));
    assert_eq!(audit_log(data.path()).await.len(), 1, "it runs");
    let beside = last_turn(data.path()).await;
    assert_eq!((beside.state, beside.epoch, beside.owner), (TurnState::Running, 1, turn.owner));
    assert!(asking.try_wait().unwrap().is_none());
    signal(&asking, "INT");
    let mut work = String::new();
    shown.read_to_string(&mut work).unwrap();
    assert_eq!(asking.wait().unwrap().code(), Some(130), "{work}");
    assert!(data.path().join("aludel-out/kept").exists(), "{work}");
    let log = audit_log(data.path()).await;
    assert_eq!((log.len(), &*log[1][0]), (2, "ended"));
    assert!(log[1][2] != CUT_OFF, "{log:?}");
    assert_eq!(left(data.path()).await, [1, 1], "what was made, for --continue");
    let ended = last_turn(data.path()).await;
    assert_eq!((ended.state, ended.epoch), (TurnState::Ended, 1));

    // One that is killed is ended at the next start, with its program and its session.
    let (mut asking, _, _upstream) = ask_beside(data.path()).await;
    asking.kill().unwrap();
    asking.wait().unwrap();
    signal(&server, "TERM");
    assert_eq!(server.wait().unwrap().code(), Some(0));
    let (mut server, address) = serve(data.path());
    assert!(ask(&address, "GET /v1/models", None, "").contains("\"demo\""));
    assert_eq!(audit_log(data.path()).await[2..], [started, ["ended", "", CUT_OFF].map(str::to_owned)]);
    assert_eq!(left(data.path()).await, [1, 1], "the conversation before it is still kept");
    let ended = last_turn(data.path()).await;
    assert_eq!((ended.state, ended.epoch), (TurnState::Ended, 2));
    signal(&server, "TERM");
    assert_eq!(server.wait().unwrap().code(), Some(0));
}
