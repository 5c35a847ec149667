//! `aludel run`.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Said, aludel, aludel_by, run, said, signal, wait_until};
use serde_json::json;

#[test]
fn the_exit_status_tells_what_happened() {
    for (arguments, status, stdout, stderr) in [
        (vec!["-c", "print('hi')\n6 * 7"], 0, "hi\n42\n", ""),
        (vec!["-c", "import sys; sys.exit(0)"], 0, "", ""),
        (vec!["-c", "import os; os._exit(0)"], 0, "", ""),
        (vec!["-c", "1/0"], 1, "", "ZeroDivisionError: division by zero"),
        (vec!["-c", "x ="], 1, "", "SyntaxError"),
        (vec!["-c", "import sys; sys.exit(5)"], 1, "", "SystemExit: 5"),
        (vec!["-c", "import os; os._exit(5)"], 1, "", "exit status 5"),
        (vec!["-c", "import os; os.kill(os.getpid(), 11)"], 1, "", "signal 11 (segmentation fault)."),
        (vec![], 2, "", "Usage: aludel run [OPTIONS] <FILE | - | -c CODE>"),
        (vec!["a.py", "-c", "1"], 2, "", "cannot be used with"),
        (vec!["no-such-file.py"], 2, "", "cannot read the program no-such-file.py: No such file"),
        (
            vec!["-c", "1", "--timeout", "soon"],
            2,
            "",
            "--timeout: sandbox.timeout = \"soon\" does not begin with a number",
        ),
        (vec!["-c", "1", "--memory", "1m"], 2, "", "--memory: sandbox.memory = \"1m\" is too little"),
        (vec!["-c", "1", "--file", "nothing.csv"], 2, "", "--file nothing.csv: No such file"),
        (vec!["-c", "1", "--out", "/proc/nowhere"], 2, "", "--out /proc/nowhere"),
        (vec!["-c", "1", "--config", "none.toml"], 2, "", "cannot read the configuration none.toml: No such file"),
        (
            vec!["-c", "while True: pass", "--timeout", "500ms"],
            3,
            "",
            "after 0.5 s, the time limit of one execution. Give it more with --timeout",
        ),
        (vec!["-c", "x = bytearray(1 << 30)", "--memory", "200m"], 3, "", "Give it more with --memory SIZE"),
        (vec!["-c", "1", "--data", "/proc/nowhere"], 4, "", "cannot make the data directory /proc/nowhere (--data)"),
    ] {
        let said = run(&[vec!["run"], arguments.clone()].concat());
        assert_eq!(said.status, Some(status), "{arguments:?}\n{said:#?}");
        assert!(said.stdout == stdout && said.stderr.contains(stderr), "{arguments:?}\n{said:#?}");
        assert!(!said.stderr.contains("variables are lost"), "there is no next program: {said:#?}");
    }
}

#[test]
fn programs_get_the_usual_signals_whoever_started_aludel() {
    let directory = tempfile::tempdir().unwrap();
    let program =
        "import signal; print(*(signal.getsignal(s).name for s in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)))";
    let starter = ["env", "--ignore-signal=HUP,TERM,USR1"];
    let said = said(aludel_by(directory.path(), &starter).args(["run", "-c", program]));
    assert_eq!(said.stdout, "SIG_DFL SIG_DFL SIG_DFL\n", "{said:#?}");
}

#[test]
fn a_program_comes_from_a_file_or_standard_input() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("p.py"), "print('from a file')").unwrap();
    assert_eq!(said(aludel(directory.path()).args(["run", "p.py"])).stdout, "from a file\n");
    let mut child = aludel(directory.path()).args(["run", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all("print('aus der Röhre')".as_bytes()).unwrap();
    assert_eq!(Said::from(&child.wait_with_output().unwrap()).stdout, "aus der Röhre\n");
    std::fs::write(directory.path().join("p.py"), b"print('\xff')").unwrap();
    let wrong = said(aludel(directory.path()).args(["run", "p.py"]));
    assert!(wrong.status == Some(2) && wrong.stderr.contains("p.py is not UTF-8"), "{wrong:#?}");
}

#[test]
fn files_go_in_and_what_was_made_comes_out() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("data.csv"), "a\n1\n2\n").unwrap();
    std::fs::create_dir(at("made")).unwrap();
    std::fs::write(at("made/old.txt"), "before").unwrap();
    std::fs::write(at("made/other.txt"), "untouched").unwrap();
    let program = "import os, stat\nimport pandas as pd\nimport matplotlib.pyplot as plt\n\
                   df = pd.read_csv('data.csv')\nos.mkdir('d')\ndf.to_csv('d/out.csv')\n\
                   open('old.txt', 'w').write('after')\nopen('.bashrc', 'w').write('#')\nos.chmod('old.txt', 0o777)\n\
                   os.symlink('/etc/passwd', 'link')\nopen('gone.txt', 'w').close(); os.remove('gone.txt')\n\
                   open('a\\x1b[2J\\nb', 'w').write('')\nplt.plot(df.a); plt.show()\nprint(df.a.sum())\n";
    std::fs::write(at("p.py"), program).unwrap();
    let said = said(aludel(directory.path()).args(["run", "p.py", "--file", "data.csv", "--out", "made"]));
    assert_eq!((said.status, said.stdout.as_str()), (Some(0), "3\n"), "{said:#?}");
    let mut names: Vec<_> = walk(&at("made"), "");
    names.sort();
    assert_eq!(names, ["_.bashrc", "a_[2J_b", "d/out.csv", "figures/figure-1.png", "old.txt", "other.txt"]);
    assert_eq!(std::fs::read_to_string(at("made/old.txt")).unwrap(), "after");
    assert!(std::fs::read(at("made/figures/figure-1.png")).unwrap().starts_with(b"\x89PNG"));
    assert_eq!(std::fs::metadata(at("made/old.txt")).unwrap().permissions().mode() & 0o111, 0, "nothing executable");
    assert!(said.stderr.contains("image: made/figures/figure-1.png") && said.stderr.contains("file: made/d/out.csv"));
    assert_eq!(std::fs::read_to_string(at("data.csv")).unwrap(), "a\n1\n2\n");
}

/// A file with a hole, or with many names, takes no room inside, but would outside.
#[test]
fn no_more_comes_out_than_the_workspace_may_hold() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("aludel.toml"), "[sandbox]\ndisk = \"16m\"\n").unwrap();
    let program = "import os\nopen('a', 'wb').truncate(10 << 20)\nfor n in 'bcd': os.link('a', n)";
    let said = said(aludel(directory.path()).args(["run", "-c", program, "--out", "made"]));
    assert!(said.status == Some(4) && said.stderr.contains("sandbox.disk"), "{said:#?}");
    assert_eq!(walk(&directory.path().join("made"), ""), ["a"]);
}

#[test]
fn without_a_place_files_are_named_and_images_still_kept() {
    let said = run(&[
        "run",
        "-c",
        "import matplotlib.pyplot as plt\nopen('f.txt', 'w').write('abc')\nplt.plot([1]); plt.show()",
    ]);
    assert!(
        said.stderr.contains("file: f.txt (3 bytes)\n") && said.stderr.contains("keep them with --out DIR"),
        "{said:#?}"
    );
    let image = said.stderr.lines().find_map(|line| line.strip_prefix("image: ")).unwrap();
    assert!(std::fs::read(image).unwrap().starts_with(b"\x89PNG"));
    std::fs::remove_dir_all(Path::new(image).ancestors().nth(2).unwrap()).unwrap();
}

#[test]
fn json_is_one_event_a_line_and_ends_with_the_status() {
    let said = run(&[
        "run",
        "--json",
        "-c",
        "import sys\nprint('x')\nprint('y', file=sys.stderr)\nopen('f.txt', 'w').write('abc')",
    ]);
    let lines = said.lines();
    let of = |name: &str| lines.iter().find(|line| line["type"] == name).unwrap();
    assert_eq!(said.types().last().unwrap(), "ended");
    assert_eq!(*of("stdout"), json!({ "type": "stdout", "text": "x\n" }));
    assert_eq!(*of("stderr"), json!({ "type": "stderr", "text": "y\n" }));
    assert_eq!(*of("result"), json!({ "type": "result", "data": { "text/plain": "3" }, "image": null }));
    let finished = of("finished");
    assert_eq!((&finished["outcome"], &finished["state"]), (&json!("completed"), &json!("kept")));
    assert_eq!(finished["files"], json!([{ "path": "f.txt", "size": 3, "mime": "text/plain" }]));
    let ended = of("ended");
    assert_eq!((&ended["exit"], &ended["message"]), (&json!(0), &json!(null)));
    assert_eq!(ended["files"], json!([{ "path": "f.txt", "size": 3, "mime": "text/plain" }]));

    let said = run(&["run", "--json", "--timeout", "300ms", "-c", "import time\ntime.sleep(60)"]);
    let lines = said.lines();
    let [.., finished, ended] = lines.as_slice() else { panic!("{said:#?}") };
    assert_eq!((&finished["outcome"], &finished["limit"]), (&json!("limit"), &json!("time")));
    assert_eq!((said.status, &ended["exit"]), (Some(3), &json!(3)));
    assert!(ended["message"].as_str().unwrap().contains("stopped after 0.3 s"));

    let said = run(&["run", "--json", "nothing.py"]);
    assert_eq!((said.types(), said.status), (vec!["ended".to_owned()], Some(2)));
    assert!(said.lines()[0]["message"].as_str().unwrap().contains("nothing.py"));
}

/// Starts a program that prints `on` when it has got somewhere, and waits for that.
fn started(directory: &Path, code: &str, arguments: &[&str]) -> std::process::Child {
    let mut child = aludel(directory).args(["run", "-c", code]).args(arguments).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    child
}

#[test]
fn output_comes_while_the_program_runs_and_ctrl_c_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["INT", "TERM"] {
        let code = "open('kept', 'w').write('x')\nimport time\nprint('on', flush=True)\ntime.sleep(60)";
        let child = started(directory.path(), code, &["--out", "out"]);
        let start = Instant::now();
        signal(&child, name);
        let said = Said::from(&child.wait_with_output().unwrap());
        assert!(start.elapsed() < Duration::from_secs(25), "nobody waits for its time limit");
        assert_eq!(said.status, Some(130), "{said:#?}");
        assert!(said.stderr.contains("The program was interrupted"), "{said:#?}");
        assert!(directory.path().join("out/kept").exists(), "{said:#?}");
        std::fs::remove_dir_all(directory.path().join("out")).unwrap();
    }
}

#[test]
fn a_second_ctrl_c_does_not_wait() {
    let directory = tempfile::tempdir().unwrap();
    // It takes note of the first interrupt, and goes on.
    let code = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n\
                print('on', flush=True)\nsignal.sigwait([signal.SIGINT])\nprint('one', flush=True)\nwhile True: time.sleep(1)";
    let mut child = started(directory.path(), code, &[]);
    signal(&child, "INT");
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    signal(&child, "INT");
    let said = Said::from(&child.wait_with_output().unwrap());
    assert_eq!(said.status, Some(130), "{said:#?}");
    assert!(!said.stderr.contains("The program was interrupted"), "nobody waited for its end: {said:#?}");
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = started(directory.path(), "print('on')\nwhile True: print('y' * 70)", &["--timeout", "90s"]);
    drop(child.stdout.take());
    let start = Instant::now();
    let said = Said::from(&child.wait_with_output().unwrap());
    assert!(start.elapsed() < Duration::from_secs(60), "nobody waits for its time limit");
    assert_eq!((said.status, said.stderr.as_str()), (Some(141), ""), "{said:#?}");
}

#[test]
fn killed_it_leaves_nothing_behind() {
    let data = tempfile::tempdir().unwrap();
    // The template is shared; only the instance's directory is this test's own.
    std::os::unix::fs::symlink(aludel_testkit::data().join("templates"), data.path().join("templates")).unwrap();
    let marker = format!("{}.3", 71_000_000 + u64::from(std::process::id()));
    let at = data.path().to_str().unwrap();
    let code = format!("print('on', flush=True)\nimport subprocess\nsubprocess.run(['sleep', '{marker}'])");
    let mut child = started(data.path(), &code, &["--data", at]);
    wait_until(|| processes_with(&marker) == 1, "the program did not start");
    let instance = std::fs::read_dir(data.path().join("run")).unwrap().next().unwrap().unwrap().path();
    let groups = std::fs::read_to_string(instance.join("cgroups")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(|| processes_with(&marker) == 0, "the program outlived aludel");
    assert_eq!(said(aludel(data.path()).args(["run", "-c", "1", "--data", at])).status, Some(0));
    wait_until(|| !instance.exists() && groups.lines().all(|group| !Path::new(group).exists()), "something was left");
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(at));
}

fn processes_with(argument: &str) -> usize {
    let pids =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes()))
    })
    .count()
}

fn walk(directory: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .flat_map(|entry| {
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() { walk(&entry.path(), &format!("{name}/")) } else { vec![name] }
        })
        .collect()
}
