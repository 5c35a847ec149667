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
fn files_that_are_more_than_the_disk_are_refused_with_the_option_for_more() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("big.csv"), vec![b'1'; 9 << 20]).unwrap();
    let refused = said(aludel(directory.path()).args(["run", "-c", "1", "--file", "big.csv", "--disk", "8m"]));
    assert_eq!(refused.status, Some(3), "{refused:#?}");
    assert_eq!(refused.stderr.matches("big.csv").count(), 1, "{refused:#?}");
    assert!(refused.stderr.contains("Give it more with --disk SIZE"), "{refused:#?}");
}

#[test]
fn a_program_in_another_language_is_refused_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    for (name, language) in
        [("fit.R", "R"), ("a.sh", "Bash"), ("a.js", "JavaScript"), ("a.ts", "TypeScript"), ("A.java", "Java")]
    {
        std::fs::write(directory.path().join(name), "x = 1\n").unwrap();
        let refused = said(aludel(directory.path()).args(["run", "--no-server", name]));
        assert_eq!((refused.status, &*refused.stdout), (Some(2), ""), "{name}: {refused:#?}");
        assert!(refused.stderr.contains(&format!("{name} looks like a program in {language}")), "{refused:#?}");
    }
    // The first line tells more than the name.
    std::fs::write(directory.path().join("job.sh"), "#!/usr/bin/env python3\nprint(6 * 7)\n").unwrap();
    let ran = said(aludel(directory.path()).args(["run", "--no-server", "job.sh"]));
    assert_eq!((ran.status, &*ran.stdout), (Some(0), "42\n"), "{ran:#?}");
}

#[test]
fn hashes_are_those_of_the_seed() {
    let directory = tempfile::tempdir().unwrap();
    let code = r#"import subprocess, sys
print(hash('abc'), flush=True)
subprocess.run([sys.executable, '-c', "print(hash('abc'))"])"#;
    let hashes = |seed: &str| {
        let mut command = aludel(directory.path());
        let ran = said(command.args(["run", "--no-server", "-c", code]).env("ALUDEL_SANDBOX_HASH_SEED", seed));
        assert_eq!(ran.status, Some(0), "{ran:#?}");
        ran.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (first, again, other) = (hashes("7"), hashes("7"), hashes("random"));
    assert!(first == again && first[0] == first[1], "{first:?} {again:?}");
    assert_ne!(first[0], other[0]);
}

#[test]
fn a_program_ends_as_an_interpreter_does() {
    let directory = tempfile::tempdir().unwrap();
    let program = r"
import atexit, gzip, multiprocessing, threading, time
from concurrent.futures import ThreadPoolExecutor
open_file = open('log.txt', 'w'); open_file.write('never closed')
packed = gzip.open('a.gz', 'wt'); packed.write('hello')
def late():
    time.sleep(0.3); print('late'); open('late.txt', 'w').write('x')
threading.Thread(target=late).start()
ThreadPoolExecutor(1).submit(print, 'pooled')
multiprocessing.Process(target=print, args=('child',)).start()
_ = atexit.register(print, 'bye')
";
    std::fs::write(directory.path().join("a.py"), program).unwrap();
    std::fs::write(directory.path().join("b.py"), format!("{program}\n1 / 0")).unwrap();
    for (name, status) in [("a.py", 0), ("b.py", 1)] {
        let ran =
            said(aludel(directory.path()).args(["run", "--no-server", name, "--out", name.trim_end_matches(".py")]));
        assert_eq!(ran.status, Some(status), "{ran:#?}");
        let mut lines: Vec<&str> = ran.stdout.lines().collect();
        assert_eq!(lines.pop(), Some("bye"), "{ran:#?}");
        lines.sort_unstable();
        assert_eq!(lines, ["child", "late", "pooled"], "{ran:#?}");
        let made = directory.path().join(name.trim_end_matches(".py"));
        assert_eq!(std::fs::read(made.join("log.txt")).unwrap(), b"never closed");
        assert_eq!(std::fs::read(made.join("late.txt")).unwrap(), b"x");
        // With its last eight bytes, which have the length.
        assert!(std::fs::read(made.join("a.gz")).unwrap().ends_with(&[5, 0, 0, 0]));
    }
}

#[test]
fn a_module_of_a_program_reads_its_input() {
    let directory = tempfile::tempdir().unwrap();
    let project = directory.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("__main__.py"), "import solve").unwrap();
    std::fs::write(project.join("solve.py"), "print(sum(map(int, open(0).read().split())))").unwrap();
    let mut child = aludel(directory.path())
        .args(["run", "--no-server", "project"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"5 6\n").unwrap();
    let ran = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "11\n");
}

#[test]
fn a_misspelt_option_that_goes_to_the_program_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let run = |code: &str, arguments: &[&str]| {
        std::fs::write(directory.path().join("a.py"), code).unwrap();
        said(aludel(directory.path()).args(["run", "--no-server", "a.py"]).args(arguments))
    };
    let told = run("import sys; print(sys.argv[1:])", &["--fil", "x"]);
    assert_eq!((told.status, &*told.stdout), (Some(0), "['--fil', 'x']\n"), "{told:#?}");
    assert!(told.stderr.contains("--fil goes to the program; if --file was meant"), "{told:#?}");
    for (code, arguments) in [
        ("import sys; assert '--fil' in sys.argv", &["--fil", "x"][..]),
        ("1", &["--", "--fil", "x"]),
        ("1", &["--colour", "x"]),
        ("1", &["x", "--fil"]),
    ] {
        let untold = run(code, arguments);
        assert!(untold.status == Some(0) && !untold.stderr.contains("goes to"), "{code} {arguments:?}: {untold:#?}");
    }
}

#[test]
fn the_exit_status_tells_what_happened() {
    for (arguments, status, stdout, stderr) in [
        (vec!["-c", "print('hi')\n6 * 7"], 0, "hi\n42\n", ""),
        (vec!["-c", "import sys; sys.exit(0)"], 0, "", ""),
        (vec!["-c", "import os; os._exit(0)"], 0, "", ""),
        (vec!["-c", "1/0"], 1, "", "ZeroDivisionError: division by zero"),
        (vec!["-c", "x ="], 1, "", "SyntaxError"),
        (vec!["-c", "import sys; sys.exit(5)"], 1, "", "exit status 5"),
        (vec!["-c", "import os; os._exit(5)"], 1, "", "exit status 5"),
        (vec!["-c", "import os; os.kill(os.getpid(), 11)"], 1, "", "signal 11 (segmentation fault)."),
        (vec![], 2, "", "Usage: aludel run [OPTIONS] <FILE | DIR | - | -c CODE> [ARG]..."),
        (vec!["--file", "a.csv"], 2, "", "no program was given"),
        (vec!["-c", "1", "--env", "NO_SUCH_VARIABLE"], 2, "", "--env NO_SUCH_VARIABLE: it is not set here"),
        (vec!["-c", "1", "--env", "=1"], 2, "", "--env =1: not a name"),
        (vec!["/"], 2, "", "cannot run the directory /: __main__.py: No such file"),
        (vec!["-c", "open('f', 'w').write('x' * 9000000)", "--disk", "8m"], 1, "", "File too large"),
        (vec!["a.py", "-c", "1"], 2, "", "cannot be used with"),
        (vec!["-c", "import sys; print(sys.argv)", "a", "--b"], 0, "['-c', 'a', '--b']\n", ""),
        (vec!["-c", "import sys; sys.exit('no luck')"], 1, "", "no luck"),
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
    std::fs::write(directory.path().join("p.py"), "\u{feff}print('from a file')").unwrap();
    assert_eq!(said(aludel(directory.path()).args(["run", "p.py"])).stdout, "from a file\n");
    let mut child = aludel(directory.path()).args(["run", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all("print('aus der Röhre')".as_bytes()).unwrap();
    assert_eq!(Said::from(&child.wait_with_output().unwrap()).stdout, "aus der Röhre\n");
    std::fs::write(directory.path().join("p.py"), b"print('\xff')").unwrap();
    let wrong = said(aludel(directory.path()).args(["run", "p.py"]));
    assert!(wrong.status == Some(2) && wrong.stderr.contains("p.py is not UTF-8"), "{wrong:#?}");
}

#[test]
fn a_program_finds_what_python_gives_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let program = "import os, sys\nprint(sys.argv, __file__, __name__, [os.environ.get(n) for n in 'AB'])\n\
                   print(open(__file__).read() == open('p.py').read())\ndef f():\n    1/0\nif 'fail' in sys.argv: f()\n";
    std::fs::write(at("p.py"), program).unwrap();
    let run = |arguments: &[&str]| said(aludel(directory.path()).env("B", "b").arg("run").args(arguments));
    for (arguments, argv, variables) in [
        (vec!["p.py"], "['p.py']", "[None, None]"),
        (
            vec!["p.py", "--flag", "x", "--timeout", "soon"],
            "['p.py', '--flag', 'x', '--timeout', 'soon']",
            "[None, None]",
        ),
        (vec!["p.py", "--timeout", "9s", "--", "--timeout", "-h"], "['p.py', '--timeout', '-h']", "[None, None]"),
        (vec!["--env", "A=1=2", "--env", "B", "p.py", "-"], "['p.py', '-']", "['1=2', 'b']"),
        (vec!["--file", "p.py", "p.py"], "['p.py']", "[None, None]"),
    ] {
        let said = run(&arguments);
        assert_eq!(said.stdout, format!("{argv} /mnt/data/p.py __main__ {variables}\nTrue\n"), "{said:#?}");
    }
    let failed = run(&["p.py", "fail"]);
    assert!(failed.stderr.contains("File \"/mnt/data/p.py\", line 5, in f\n    1/0\n"), "{failed:#?}");
    assert_eq!(run(&["-c", "import sys; print(sys.argv)", "--", "-a", "b"]).stdout, "['-c', '-a', 'b']\n");

    for name in ["d/pkg", "d/data"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    std::fs::write(at("d/__main__.py"), "import helper, pkg.deep\nprint(helper.X, pkg.deep.Y, open('data/a').read())")
        .unwrap();
    // A module of the standard library has the same name.
    for (name, text) in
        [("d/helper.py", "X = 1"), ("d/pkg/deep.py", "from this import Y"), ("d/this.py", "Y = 2"), ("d/data/a", "3")]
    {
        std::fs::write(at(name), text).unwrap();
    }
    assert_eq!(run(&["d"]).stdout, "1 2 3\n");
    let moved = ["d/__main__.py", "--file", "d/helper.py", "d/this.py", "d/pkg", "d/data/a:data/"];
    assert_eq!(run(&moved).stdout, "1 2 3\n");
}

#[test]
fn a_program_reads_standard_input() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.csv");
    std::fs::write(&path, "ä,b\n1,2\n").unwrap();
    let run = |code: &str| {
        let input = std::fs::File::open(&path).unwrap();
        said(aludel(directory.path()).args(["run", "-c", code]).stdin(input))
    };
    assert_eq!(run("import sys, os; print(sys.stdin.read(), os.listdir())").stdout, "ä,b\n1,2\n []\n");
    assert_eq!(run("import subprocess\nr = subprocess.run(['cat'])  # stdin").stdout, "ä,b\n1,2\n");
    let ended = run("print(input(), input())\ninput()");
    assert!(ended.stdout == "ä,b 1,2\n" && ended.stderr.contains("EOFError: EOF when reading a line"), "{ended:#?}");
    std::fs::File::create(&path).unwrap().set_len((64 << 20) + 1).unwrap();
    assert_eq!(run("print(1)").stdout, "1\n", "nobody waits for what is not read");
    let long = run("import sys; sys.stdin");
    assert!(long.status == Some(2) && long.stderr.contains("at most 64 MB, or hand it over by --file"), "{long:#?}");
    let none = said(aludel(directory.path()).args(["run", "-c", "input()"]));
    assert!(none.status == Some(1) && none.stderr.contains("EOFError: EOF when reading a line"), "{none:#?}");
}

#[test]
fn a_notebook_is_run_and_comes_back_with_its_outputs() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let cell = |code: &str| json!({ "cell_type": "code", "id": "a", "metadata": {}, "source": code, "outputs": [], "execution_count": null });
    let write = |cells: &[serde_json::Value]| {
        let notebook = json!({ "cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5 });
        std::fs::write(at("n.ipynb"), notebook.to_string()).unwrap();
    };
    let first =
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nopen('a', 'w').close()\nplt.plot([1]); plt.show()";
    write(&[
        cell(first),
        cell("x = !echo $((1 + 1))\nx[0]"),
        cell("open('b', 'w').close()\n1/0"),
        cell("print('never')"),
    ]);
    let run = |arguments: &[&str]| said(aludel(directory.path()).args(["run", "n.ipynb"]).args(arguments));
    let said = run(&["--out", "made"]);
    assert_eq!((said.status, said.stdout.as_str()), (Some(1), "'2'\n"), "{said:#?}");
    for name in ["a", "b", "figures/figure-1.png", "n.ipynb"] {
        assert!(at("made").join(name).exists() && said.stderr.contains(&format!(": made/{name}")), "{name} {said:#?}");
    }
    let made: serde_json::Value = serde_json::from_slice(&std::fs::read(at("made/n.ipynb")).unwrap()).unwrap();
    let seen =
        |place: usize| (&made["cells"][place]["execution_count"], &made["cells"][place]["outputs"][0]["output_type"]);
    assert_eq!(seen(0), (&json!(1), &json!("display_data")));
    assert_eq!(seen(1), (&json!(2), &json!("execute_result")));
    assert_eq!(seen(2), (&json!(3), &json!("error")));
    assert_eq!(seen(3), (&json!(null), &json!(null)));
    write(&[cell(" ")]);
    let none = run(&[]);
    assert!(none.status == Some(2) && none.stderr.contains("none of its code cells has a program"), "{none:#?}");
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

#[test]
fn a_name_that_is_taken_costs_no_other_file() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("made")).unwrap();
    for name in ["made/data", "made/figures"] {
        std::fs::write(at(name), "before").unwrap();
    }
    let program = "import os\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>1</b>'))\nos.mkdir('data')\n\
                   for name in ['data/x.csv', 'z.txt']: open(name, 'w').write('new')\nprint('done')";
    let said = said(aludel(directory.path()).args(["run", "-c", program, "--out", "made"]));
    assert!(said.status == Some(4) && said.stdout.ends_with("done\n"), "{said:#?}");
    assert!(said.stderr.contains("cannot make made/figures: something else"), "{said:#?}");
    assert_eq!(std::fs::read_to_string(at("made/z.txt")).unwrap(), "new");
    assert_eq!(std::fs::read_to_string(at("made/data")).unwrap(), "before");
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
fn without_a_place_everything_is_kept_in_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let code = "import matplotlib.pyplot as plt\nopen('f.txt', 'w').write('abc')\nplt.plot([1]); plt.show()\n\
                from IPython.display import display, HTML, JSON\ndisplay(HTML('<b>'), JSON({'a': 1}))";
    for place in ["aludel-out", "aludel-out-2"] {
        let said = said(aludel(directory.path()).args(["run", "-c", code]));
        for line in ["file: {}/f.txt (3 bytes)\n", "image: {}/figures/figure-1.png\n", "page: {}/figures/page-1.html\n"]
        {
            assert!(said.stderr.contains(&line.replace("{}", place)), "{line} {said:#?}");
        }
        assert!(std::fs::read(at(place).join("figures/figure-1.png")).unwrap().starts_with(b"\x89PNG"));
        assert_eq!(std::fs::read_to_string(at(place).join("figures/data-1.json")).unwrap(), "{\"a\": 1}");
        assert_eq!(std::fs::read_to_string(at(place).join("f.txt")).unwrap(), "abc");
    }
    assert!(!said(aludel(directory.path()).args(["run", "-c", "1"])).stderr.contains("aludel-out"));
    assert!(!at("aludel-out-3").exists(), "there is nothing to keep");
    // Nothing can be made there.
    let said = said(aludel(Path::new("/proc")).args(["run", "-c", "open('f.txt', 'w').write('abc')"]));
    let file = said.stderr.lines().find_map(|line| line.strip_prefix("file: ")?.strip_suffix(" (3 bytes)")).unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "abc");
    std::fs::remove_dir_all(Path::new(file).parent().unwrap()).unwrap();
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
