//! Templates of one's own, built and used by the program.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::path::Path;
use std::process::Command;

use common::{aludel, data, said};

/// Makes a wheel of one module, which a template can have without an index that knows it.
fn wheel(directory: &Path, package: &str, text: &str) {
    const MAKE: &str = "
import sys, zipfile
directory, name, text = sys.argv[1:]
with zipfile.ZipFile(f'{directory}/{name}-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr(f'{name}.py', text)
    info = f'{name}-1.0.dist-info'
    wheel.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n')
    wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(f'{info}/RECORD', '')
";
    let made = Command::new("python3").args(["-c", MAKE]).arg(directory).args([package, text]).status().unwrap();
    assert!(made.success());
}

#[test]
fn local_sandbox_a_template_of_ones_own_has_its_packages() {
    let (home, data) = (tempfile::tempdir().unwrap(), data());
    let run = |arguments: &[&str]| said(aludel(home.path()).arg("--data").arg(data.path()).args(arguments));
    wheel(home.path(), "aludel_own_test", "answer = 6 * 7");
    std::fs::write(home.path().join("list.txt"), "aludel-own-test\n").unwrap();
    let build = ["template", "build", "--name", "own-test", "--requirements", "list.txt", "--find-links", "."];
    let built = run(&[&build[..], &["--preload", "aludel_own_test"]].concat());
    assert_eq!(built.status, Some(0), "{}", built.stderr);
    assert!(built.stdout.contains("/named-"), "{}", built.stdout);

    let program =
        "import sys, aludel_own_test as own, importlib.util\nprint(own.answer, importlib.util.find_spec('pandas'))";
    let ran = run(&["run", "--no-server", "--template", "own-test", "-c", program]);
    assert_eq!((ran.status, &*ran.stdout), (Some(0), "42 None\n"), "{}", ran.stderr);
    let listed = run(&["template", "ls"]);
    assert!(
        listed.stdout.lines().any(|line| line.starts_with("own-test ") && line.ends_with("  preloads aludel_own_test"))
    );

    let exported = run(&["template", "export", "own-test", "--output", "own.tar.gz"]);
    assert_eq!(exported.stdout, "own.tar.gz\n", "{}", exported.stderr);
    let imported = run(&["template", "import", "own.tar.gz", "--name", "own-test-2"]);
    assert_eq!(imported.status, Some(0), "{}", imported.stderr);
    assert_eq!(run(&["run", "--no-server", "--template", "own-test-2", "-c", program]).stdout, "42 None\n");
    assert_eq!(run(&["template", "rm", "own-test-2"]).status, Some(0));
    assert_eq!(run(&["template", "rm", "own-test-2"]).status, Some(2));

    let nothing = run(&["template", "build", "--name", "own-test"]);
    assert_eq!(nothing.status, Some(2), "{}", nothing.stderr);
    assert!(nothing.stderr.contains("--requirements <FILE>|--with-default"), "{}", nothing.stderr);

    let debian = run(&[&build[..], &["--apt", "graphviz"]].concat());
    assert_eq!(debian.status, Some(2), "{}", debian.stderr);
    assert!(debian.stderr.contains("takes no Debian packages"), "{}", debian.stderr);

    let none = run(&["run", "--no-server", "--template", "none", "-c", "1"]);
    assert_eq!(none.status, Some(2), "{}", none.stderr);
    assert!(none.stderr.contains("there is no template `none`; there are: own-test"), "{}", none.stderr);
}
