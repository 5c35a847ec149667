//! Cells on a real kernel in a real sandbox.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::time::Duration;

use aludel_sandbox::{Backend, ExecutionEvent, MimeBundle, MimeData, Outcome, VariablesState};
use common::{limits, run, sandbox, shared};

#[tokio::test]
async fn cells_share_state_and_tell_what_they_do() {
    let sandbox = sandbox(shared().await, limits()).await;

    let result = run(&sandbox, "x = 40\nprint('hello')\nimport sys; print('oops', file=sys.stderr)").await;
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("hello\n", "oops\n"));
    assert_eq!(result.finished.outcome, Outcome::Completed);

    let result = run(&sandbox, "x + 2").await;
    let [ExecutionEvent::Result(bundle)] = result.events.as_slice() else { panic!("{result:?}") };
    assert_eq!(bundle.text(), Some("42"));

    let result = run(&sandbox, "import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')").await;
    assert_eq!(result.stdout, "awaited\n", "{result:?}");

    // C code and child processes write to the descriptors, not to sys.stdout.
    let result =
        run(&sandbox, "import os, subprocess\nos.write(1, b'raw ')\nsubprocess.run(['echo', 'child'])\nNone").await;
    assert_eq!(result.stdout, "raw child\n");

    let result = run(&sandbox, "import pandas as pd\npd.DataFrame({'a': [1]})").await;
    let [ExecutionEvent::Result(bundle)] = result.events.as_slice() else { panic!("{result:?}") };
    assert!(matches!(bundle.get("text/html"), Some(MimeData::Text(html)) if html.contains("<table")));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn errors_that_end_no_cell_are_told_too() {
    let sandbox = sandbox(shared().await, limits()).await;
    let script = "open('bad.py', 'w').write('print(\"start\")\\n1/0')\n\
                  open('odd.py', 'w').write('1 +')\nopen('ends.py', 'w').write('import sys; sys.exit(3)')\n\
                  class Odd:\n    def __repr__(self): raise KeyError('odd')\n\
                  class Half(int):\n    def _repr_html_(self): raise KeyError('half')\nNone";
    assert_eq!(run(&sandbox, script).await.finished.outcome, Outcome::Completed);
    for (code, name, place) in [
        ("%run bad.py", "ZeroDivisionError", "bad.py\", line 2"),
        ("%run odd.py", "SyntaxError", "odd.py\", line 1"),
        ("%run ends.py", "SystemExit", "3"),
        ("10**5000", "ValueError", "4300 digits"),
        ("display(Odd())\nprint('goes on')", "KeyError", "__repr__"),
        ("Half(7)", "KeyError", "_repr_html_"),
        ("%%capture\n1/0", "ZeroDivisionError", "line 1"),
        ("get_ipython().run_cell('1 +')\nNone", "SyntaxError", "1 +"),
        ("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.title(r'$\\foo{$'); plt.show()", "ValueError", "foo"),
        ("get_ipython().run_cell('1 +'); 1 / 0", "ZeroDivisionError", "line 1"),
    ] {
        let result = run(&sandbox, code).await;
        let Outcome::Failed(error) = &result.finished.outcome else { panic!("{code}: {result:?}") };
        assert!(error.name == name && error.traceback.contains(place), "{code}: {error:?}");
    }
    let result = run(&sandbox, "%history").await;
    assert!(result.stdout.starts_with("open('bad.py'"), "{result:?}");
    assert_eq!(result.finished.outcome, Outcome::Completed);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn what_is_valid_python_may_still_be_ipythons() {
    let sandbox = sandbox(shared().await, limits()).await;
    for (code, value) in [
        ("pwd", Some("'/mnt/data'")),
        ("pwd = 7", None),
        ("pwd", Some("7")),
        ("In [3]: 20 + 22", Some("42")),
        (">>> 20 + 23\n", Some("43")),
        ("44\n", Some("44")),
        // The comment takes it from the single lines; IPython looks for magics in those alone.
        ("# a comment\nls", None),
        ("lines = !echo 45\nint(lines[0])", Some("45")),
        ("exit", None),
        ("%autocall 2", None),
        ("exit_code = lambda: 46", None),
        ("exit_code", Some("46")),
    ] {
        let result = run(&sandbox, code).await;
        let results = result.events.iter().filter_map(|event| match event {
            ExecutionEvent::Result(bundle) => bundle.text(),
            _ => None,
        });
        assert_eq!(results.collect::<Vec<_>>(), Vec::from_iter(value), "{code}: {result:?}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_program_ends_by_exit_and_quit() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "open('leaves.py', 'w').write('def now(): exit(4)')").await;
    for (code, status) in [
        ("exit()", None),
        ("quit", None),
        ("x = 1\nquit(0)\n1 / 0", None),
        ("def leave():\n    exit(3)\nleave()", Some("3")),
        ("import leaves\nleaves.now()", Some("4")),
    ] {
        let result = run(&sandbox, code).await;
        let told = match &result.finished.outcome {
            Outcome::Completed => None,
            Outcome::Failed(error) if error.name == "SystemExit" => Some(error.value.as_str()),
            other => panic!("{code}: {other:?}"),
        };
        assert_eq!(told, status, "{code}");
    }
    sandbox.close().await.unwrap();
}

fn displays(events: &[ExecutionEvent]) -> Vec<&MimeBundle> {
    let bundle = |event| match event {
        &ExecutionEvent::Display(ref bundle) | &ExecutionEvent::Result(ref bundle) => Some(bundle),
        _ => None,
    };
    events.iter().filter_map(bundle).collect()
}

#[tokio::test]
async fn charts_are_pages_that_need_nothing_else() {
    let limits = aludel_sandbox::Limits { memory: 1 << 30, processes: 128, ..limits() };
    let sandbox = sandbox(shared().await, limits).await;
    for (code, word) in [
        ("import plotly.express as px\npx.bar(x=[1], y=[2])", "plotly.js v"),
        ("px.bar(x=[1], y=[2]).show()", "plotly.js v"),
        ("from bokeh.plotting import figure, show\np = figure()\n_ = p.line([1, 2], [3, 4])\nshow(p)", "root.Bokeh"),
        ("from bokeh.plotting import output_notebook\noutput_notebook()\nshow(p)", "root.Bokeh"),
    ] {
        let result = run(&sandbox, code).await;
        let [bundle] = *displays(&result.events) else { panic!("{code}: {result:?}") };
        let Some(("text/html", page)) = bundle.page() else { panic!("{code}: no page") };
        assert!(page.contains(word) && !page.contains("<script src") && page.contains("</html>"), "{code}");
    }
    // Most of a page is its library, so not all pages of a cell have one of their own.
    let result = run(&sandbox, "for _ in range(6): px.bar(x=[1], y=[2]).show()").await;
    let sizes: Vec<_> = displays(&result.events).iter().map(|bundle| bundle.page().unwrap().1.len() >> 20).collect();
    assert_eq!(sizes, [4, 4, 4, 4, 0, 0]);
    let code = "import altair\naltair.Chart(pd.DataFrame({'a': [1]})).mark_bar().encode(x='a')";
    let result = run(&sandbox, &format!("import pandas as pd\n{code}")).await;
    let [bundle] = *displays(&result.events) else { panic!("{result:?}") };
    assert!(matches!(bundle.get("text/html"), Some(MimeData::Text(page)) if page.contains("vega")), "{bundle:?}");
    assert!(matches!(bundle.image(), Some(("image/png", _))), "{bundle:?}");
    // Without its program for pictures, the page is what there is.
    let code = "import sys\nsys.modules['aludel_kernel_charts'].DRAW = 'raise SystemExit(1)'\naltair.Chart(pd.DataFrame()).mark_bar()";
    let result = run(&sandbox, code).await;
    let [bundle] = *displays(&result.events) else { panic!("{result:?}") };
    assert!(matches!(bundle.page(), Some(("text/html", page)) if page.contains("vega")), "{bundle:?}");
    let result =
        run(&sandbox, "from IPython.display import display_html\ndisplay_html('x' * (7 << 20), raw=True)").await;
    let [bundle] = *displays(&result.events) else { panic!("{result:?}") };
    assert_eq!(bundle.text(), Some("[HTML of 7 MB was left out: too large to show; write it to a file instead]"));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn an_exception_points_at_the_users_lines() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "import pandas as pd").await;
    let result = run(&sandbox, "def parse(values):\n    return pd.to_datetime(values, format='%Y-%m-%d')\n\nparse(['2026-01-31', '31.01.2026'])").await;
    let [ExecutionEvent::Error(error)] = result.events.as_slice() else { panic!("{result:?}") };
    assert_eq!(result.finished.outcome, Outcome::Failed(error.clone()));
    assert_eq!(error.name, "ValueError");
    for part in ["Cell 2, line 4", "Cell 2, line 2, in parse", "frames not shown]", "31.01.2026"] {
        assert!(error.traceback.contains(part), "no {part:?} in:\n{}", error.traceback);
    }
    assert!(!error.traceback.contains("/run/aludel"), "{}", error.traceback);

    let result = run(&sandbox, "1 +").await;
    let Outcome::Failed(error) = result.finished.outcome else { panic!("{result:?}") };
    assert_eq!(error.name, "SyntaxError");
    // The session goes on.
    assert_eq!(run(&sandbox, "print(pd.__name__)").await.stdout, "pandas\n");
}

#[tokio::test]
async fn both_streams_come_in_the_order_of_the_program() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "import subprocess, sys\nfor n in range(50):\n    print(n)\n    subprocess.run(['echo', 'child']) if n % 10 == 0 else None\n    print(n, file=sys.stderr)";
    let mut execution = sandbox.execute(code).await.unwrap();
    let (mut result, mut expected) = (String::new(), String::new());
    while let Some(event) = execution.next().await {
        match event {
            ExecutionEvent::Stdout(text) => result.push_str(&text),
            ExecutionEvent::Stderr(text) => result.push_str(&text.replace('\n', "!\n")),
            _ => {}
        }
    }
    for n in 0..50 {
        expected.push_str(&format!("{n}\n{}{n}!\n", if n % 10 == 0 { "child\n" } else { "" }));
    }
    assert_eq!(result, expected);
    // However often they change places: the rest comes, too, if not in this order.
    let result = run(&sandbox, "for n in range(3000): print(n); print(n, file=sys.stderr)").await;
    assert_eq!((result.stdout.lines().count(), result.stderr.lines().count()), (3000, 3000));
}

#[tokio::test]
async fn text_that_is_no_utf8_and_streams_that_are_gone_cost_nothing() {
    let sandbox = sandbox(shared().await, limits()).await;
    let raises = "kept = 1\nhalf = '\\ud83d'\nraise ValueError('bad: ' + half)";
    let Outcome::Failed(error) = run(&sandbox, raises).await.finished.outcome else { panic!("it raises") };
    assert_eq!((&*error.name, &*error.value), ("ValueError", "bad: \\ud83d"));
    run(&sandbox, "from IPython.display import display\ndisplay({'text/plain': half}, raw=True)\n{half: half}").await;
    for spoils in [
        "import sys; sys.stdout = None",
        "import sys; sys.stdout.close(); sys.stderr = None",
        "import sys; kept_buffer = sys.stdout.detach(); sys.stderr.detach()",
        "import sys\nclass Bad:\n    def __getattr__(self, name): raise SystemExit(name)\nsys.stdout = Bad()",
        "import json, os, struct; json.dumps = struct.pack = os.write = os.fstat = None; os.getpid = lambda: 5",
    ] {
        run(&sandbox, spoils).await;
        let result = run(&sandbox, "import sys; print(kept); print(2, file=sys.stderr)").await;
        assert_eq!((&*result.stdout, &*result.stderr), ("1\n", "2\n"), "{spoils}: {result:?}");
    }
}

#[tokio::test]
async fn pip_says_in_a_sentence_that_there_is_no_network() {
    let sandbox = sandbox(shared().await, limits()).await;
    let result =
        run(&sandbox, "!pip install some-package\n!python3 -m pip install -q pandas; echo $?\n!pip nonsense").await;
    assert_eq!(result.stderr.matches("There is no network in this sandbox").count(), 1, "{result:?}");
    assert!(result.stderr.contains("unknown command \"nonsense\"") && result.stdout == "0\n", "{result:?}");
    assert_eq!(result.stderr.lines().count(), 2, "{result:?}");
}

#[tokio::test]
async fn exit_is_told_by_its_code() {
    let sandbox = sandbox(shared().await, limits()).await;
    assert_eq!(run(&sandbox, "import sys; sys.exit(0)").await.finished.outcome, Outcome::Completed);
    let Outcome::Failed(error) = run(&sandbox, "sys.exit(3)").await.finished.outcome else { panic!("not failed") };
    assert_eq!((error.name.as_str(), error.value.as_str()), ("SystemExit", "3"));
}

#[tokio::test]
async fn a_chart_is_shown_once_and_its_file_is_reported() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2])\nplt.savefig('chart.png')\nprint('before')\nplt.show()\nprint('after')";
    let result = run(&sandbox, code).await;
    let images: Vec<_> = result
        .events
        .iter()
        .filter_map(|event| match event {
            ExecutionEvent::Display(bundle) => bundle.image(),
            _ => None,
        })
        .collect();
    let [("image/png", png)] = images.as_slice() else { panic!("{} images", images.len()) };
    assert!(png.starts_with(b"\x89PNG\r\n"));
    let [file] = result.finished.files.as_slice() else { panic!("{:?}", result.finished.files) };
    assert_eq!((file.path.as_str(), file.mime), ("chart.png", "image/png"));
    assert_eq!(sandbox.workspace().read("chart.png", 1 << 20).unwrap().len() as u64, file.size);

    // A figure that is the result is not shown a second time.
    let result = run(&sandbox, "fig, ax = plt.subplots()\nax.plot([1, 2])\nfig").await;
    assert_eq!(result.events.len(), 1, "{result:?}");
}

#[tokio::test]
async fn displays_come_in_order_with_the_prints() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "from IPython.display import display\nfor i in range(3):\n    print('line', i)\n    display(i)";
    let mut execution = sandbox.execute(code).await.unwrap();
    let mut order = String::new();
    while let Some(event) = execution.next().await {
        match event {
            ExecutionEvent::Stdout(text) => order.push_str(&text.replace('\n', ";")),
            ExecutionEvent::Display(bundle) => order.push_str(&format!("[{}];", bundle.text().unwrap())),
            _ => {}
        }
    }
    assert_eq!(order, "line 0;[0];line 1;[1];line 2;[2];");
}

#[tokio::test]
async fn a_large_csv_is_read() {
    let sandbox = sandbox(shared().await, limits()).await;
    let rows: String = (0..45_000).map(|row| format!("{row},2026-01-{:02},{}\n", row % 28 + 1, row % 97)).collect();
    let csv = format!("id,day,amount\n{rows}");
    sandbox.workspace().write("data/big.csv", &mut csv.as_bytes(), 1 << 30).unwrap();
    let result = run(
        &sandbox,
        "import pandas as pd\ndf = pd.read_csv('data/big.csv', parse_dates=['day'])\nprint(len(df), df.amount.sum())",
    )
    .await;
    let expected: u64 = (0..45_000).map(|row| row % 97).sum();
    assert_eq!(result.stdout, format!("45000 {expected}\n"), "{result:?}");
    // Earlier files are not reported as made.
    assert_eq!(result.finished.files, []);
    assert_eq!(result.finished.state, VariablesState::Kept);
}

#[tokio::test]
async fn forks_differ_in_what_must_be_random() {
    let code = "import random, uuid, os, numpy as np, ssl\nprint(random.random(), np.random.rand(), np.random.default_rng().random(), uuid.uuid4(), ssl.RAND_bytes(8).hex())";
    let one = run(&sandbox(shared().await, limits()).await, code).await.stdout;
    let two = run(&sandbox(shared().await, limits()).await, code).await.stdout;
    assert_eq!(one.split(' ').count(), 5, "{one}");
    for (one, two) in one.split(' ').zip(two.split(' ')) {
        assert_ne!(one, two);
    }
}

#[tokio::test]
async fn the_usual_libraries_work_inside() {
    let limits = aludel_sandbox::Limits { memory: 1 << 30, processes: 128, ..limits() };
    let sandbox = sandbox(shared().await, limits).await;
    for code in [
        "from concurrent.futures import ThreadPoolExecutor, ProcessPoolExecutor\nprint(sum(ThreadPoolExecutor(4).map(abs, range(9))))",
        "import multiprocessing as mp\nwith mp.Pool(2) as pool:\n    print(sum(pool.map(abs, range(9))))",
        "import numpy as np\na = np.random.rand(300, 300)\nprint(np.isfinite((a @ a).sum()))",
        "from sklearn.ensemble import RandomForestClassifier\nX = np.random.rand(200, 3)\nprint(RandomForestClassifier(20, n_jobs=2).fit(X, X[:, 0] > .5).score(X, X[:, 0] > .5) > .9)",
        "import pandas as pd\npd.DataFrame({'a': ['x', 'y']}).to_parquet('t.parquet')\nprint(pd.read_parquet('t.parquet').a.tolist())",
        "pd.DataFrame({'a': [1]}).to_excel('t.xlsx')\nprint(pd.read_excel('t.xlsx').a.tolist())",
        "import sqlite3\nc = sqlite3.connect('t.db')\nc.execute('create table t(a)')\nc.commit()\nprint('sqlite')",
        "import tempfile, shutil\nf = tempfile.NamedTemporaryFile()\nshutil.copy2('t.xlsx', '/tmp/copy.xlsx')\nprint('copied')",
        "import subprocess\nprint(subprocess.run('ls /mnt/data | wc -l', shell=True, capture_output=True, text=True, check=True).stdout)",
        "import statsmodels.api as sm, scipy.stats, seaborn, sympy, networkx, plotly, PIL, reportlab, docx, pptx, lxml, bs4, requests\nprint('imported')",
    ] {
        let result = run(&sandbox, code).await;
        assert_eq!(result.finished.outcome, Outcome::Completed, "{code}\n{result:#?}");
        assert!(!result.stdout.is_empty());
    }
}

#[tokio::test]
async fn a_fresh_interpreter_works_alike_with_an_address_layout_of_its_own() {
    let data = tempfile::tempdir().unwrap();
    let config = aludel_sandbox::LocalConfig {
        data: data.path().to_path_buf(),
        template: common::the_template(),
        limits: limits(),
        pool: 0,
        require: aludel_sandbox::Require::Default,
        start: aludel_sandbox::KernelStart::Fresh,
    };
    let local = aludel_sandbox::Local::start(config).await.unwrap();
    let mut layouts = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let sandbox = sandbox(&local, limits()).await;
        let result = run(&sandbox, "import pandas as pd\nprint(hash('a'), id(None), open('/proc/self/maps').readline()[:12])\npd.DataFrame({'a': [1]}).sum()").await;
        assert_eq!(result.finished.outcome, Outcome::Completed, "{result:?}");
        layouts.insert(result.stdout);
        let result = run(&sandbox, "import os\nos._exit(1)").await;
        assert_eq!(result.finished.state, aludel_sandbox::VariablesState::RolledBack);
        assert_eq!(run(&sandbox, "print(pd.__name__)").await.stdout, "pandas\n");
        sandbox.close().await.unwrap();
    }
    assert_eq!(layouts.len(), 2, "{layouts:?}");
    local.shutdown().await;
}

#[tokio::test]
async fn modules_of_the_workspace_are_found_and_hide_no_others() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "for name in ('mine', 'cmd', 'networkx'): open(f'{name}.py', 'w').write('where = 1')\n\
                import mine, cmd, networkx\nprint(mine.where, hasattr(cmd, 'Cmd'), hasattr(networkx, 'Graph'))";
    assert_eq!(run(&sandbox, code).await.stdout, "1 True True\n");
}

#[tokio::test]
async fn a_forked_child_is_no_second_kernel() {
    let sandbox = sandbox(shared().await, limits()).await;
    let result =
        run(&sandbox, "import os, sys\nchild = os.fork()\nif child: os.waitpid(child, 0)\nprint('on')\n7").await;
    assert_eq!((result.stdout.as_str(), result.events.len()), ("on\n7\non\n", 1), "{result:?}");
    for (end, status) in [("sys.exit(3)", 3), ("1 / 0", 1), ("pass", 0)] {
        let fork = format!("if os.fork() == 0: {end}\nelse: print(os.waitstatus_to_exitcode(os.wait()[1]))");
        let result = run(&sandbox, &fork).await;
        assert_eq!((result.stdout, result.finished.outcome), (format!("{status}\n"), Outcome::Completed), "{end}");
        assert_eq!(run(&sandbox, "print('next')").await.stdout, "next\n", "{end}");
    }
}

#[tokio::test]
async fn a_thread_that_shows_between_cells_takes_no_program() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "import threading, time\nfrom IPython.display import display\ngo_on = True\ndef show():\n    while go_on: display(1); time.sleep(0.001)\nthread = threading.Thread(target=show); thread.start(); time.sleep(0.1)";
    assert!(!run(&sandbox, code).await.events.is_empty());
    for round in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let result = run(&sandbox, &format!("print({round})\n'x' * 300_000")).await;
        assert_eq!((result.stdout, result.finished.state), (format!("{round}\n"), VariablesState::Kept));
    }
    assert_eq!(run(&sandbox, "go_on = False; thread.join(); print('over')").await.stdout, "over\n");
}

#[tokio::test]
async fn the_user_of_a_program_has_a_name() {
    let sandbox = sandbox(shared().await, limits()).await;
    let code = "import os, pwd, subprocess\nprint(pwd.getpwuid(os.getuid()).pw_name)\nprint(subprocess.run('whoami', capture_output=True, text=True).stdout)";
    assert_eq!(run(&sandbox, code).await.stdout, "sandbox\nsandbox\n\n");
}

#[tokio::test]
async fn of_displays_that_replace_one_another_the_last_is_shown() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "from IPython.display import clear_output, display").await;
    for (code, texts) in [
        ("for n in range(5):\n    clear_output(wait=True)\n    display(n)\n'end'", vec!["4", "'end'"]),
        ("for n in range(5):\n    display(n)\n    clear_output(wait=True)", vec!["0", "4"]),
        ("display(0)\nclear_output()\ndisplay(1)\ndisplay(2)\nclear_output()", vec!["0"]),
        (
            "h = display(0, display_id=True)\nfor n in range(5): h.update(n)\ndisplay('after')",
            vec!["0", "'after'", "4"],
        ),
        ("clear_output(); display(1)\n1 / 0", vec!["1", "division by zero"]),
        (
            "clear_output()\na = []; a.append(a)\ndisplay({'application/json': a}, raw=True)\n",
            vec!["Circular reference detected"],
        ),
        ("display(1)\ndisplay(2)", vec!["1", "2"]),
    ] {
        let result = run(&sandbox, code).await;
        let told = |event: &ExecutionEvent| match event {
            ExecutionEvent::Display(bundle) | ExecutionEvent::Result(bundle) => bundle.text().map(str::to_owned),
            ExecutionEvent::Error(error) => Some(error.value.clone()),
            _ => None,
        };
        let told: Vec<_> = result.events.iter().filter_map(told).collect();
        assert_eq!(told, texts, "{code}");
    }
}

#[tokio::test]
async fn a_first_cell_finds_nothing_of_earlier_ones() {
    let sandbox = sandbox(shared().await, limits()).await;
    assert_eq!(
        run(&sandbox, "print([_, __, ___, _i, _ii, _iii], _dh)").await.stdout,
        "['', '', '', '', '', ''] ['/mnt/data']\n"
    );
    run(&sandbox, "5").await;
    assert_eq!(run(&sandbox, "print([_, __, ___, _i, _iii])").await.stdout, "[5, '', '', '5', '']\n");
    run(&sandbox, "%cd -q /tmp").await;
    assert_eq!(run(&sandbox, "%cd -").await.stdout, "/mnt/data\n");
    assert_eq!(run(&sandbox, "%tb").await.stderr, "No traceback available to show.\n");
    run(&sandbox, "1 / 0").await;
    let told = run(&sandbox, "%tb").await.stderr;
    assert!(told.ends_with("ZeroDivisionError: division by zero\n") && told.contains("Cell 7, line 1"), "{told}");
    let many = "for n in range(300): get_ipython().run_cell(str(n))\n'last'";
    assert_eq!(run(&sandbox, many).await.stderr, "");
}

#[tokio::test]
async fn tasks_that_a_cell_left_go_on_between_cells() {
    let sandbox = sandbox(shared().await, limits()).await;
    let start = "import asyncio, os
rounds = 0
async def count():
    global rounds
    while True:
        rounds += 1
        print(end='.')
        await asyncio.sleep(0.01)
task = asyncio.create_task(count())
print(rounds)";
    assert_eq!(run(&sandbox, start).await.stdout.trim_end_matches('.'), "0\n");
    let go_on = async |cell: &str| {
        tokio::time::sleep(Duration::from_millis(300)).await;
        run(&sandbox, cell).await
    };
    let counted = go_on("before = rounds\nprint('\\n', rounds > 3)").await.stdout;
    assert!(counted.ends_with("\n True\n"), "{counted}");
    // The kernel that takes over has them, too.
    assert_eq!(go_on("os.kill(os.getpid(), 9)").await.finished.state, VariablesState::RolledBack);
    let counted = go_on("print('\\n', rounds > before + 3)").await.stdout;
    assert!(counted.ends_with("\n True\n"), "{counted}");
    // The loop of such cells is not in the way of programs that start their own, and one that ends a task with an exit ends nothing else.
    let ends = "async def end():
    await asyncio.sleep(0.05)
    raise SystemExit(3)
task.cancel(); ending = asyncio.ensure_future(end())";
    assert_eq!(go_on(ends).await.finished.outcome, Outcome::Completed);
    let own = "async def main(): return await asyncio.create_task(asyncio.sleep(0.01, 'own'))
print(asyncio.run(main()), asyncio.new_event_loop().run_until_complete(main()))";
    assert_eq!(go_on(own).await.stdout.trim_start_matches('.'), "own own\n");
    let older = "loop = asyncio.get_event_loop()\nprint(loop.run_until_complete(main()))";
    assert_eq!(go_on(older).await.stdout, "own\n");
    assert_eq!(go_on("loop = asyncio.get_event_loop(); t = loop.create_task(main())").await.stdout, "");
    assert_eq!(go_on("print(t.result(), loop.run_until_complete(main()))").await.stdout, "own own\n");
    let gathered = go_on("both = asyncio.gather(main(), main())").await;
    assert_eq!(gathered.finished.outcome, Outcome::Completed, "{gathered:?}");
    let result = go_on("print(both.result(), await both)").await;
    assert_eq!(result.stdout, "['own', 'own'] ['own', 'own']\n", "{result:?}");
}
