//! The shortest way to run programs.

use aludel_sandbox::{Interpreter, Limits};

#[tokio::test]
async fn local_sandbox_programs_run_with_their_variables_and_files() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/aludel-test");
    let limits = Limits { disk: 1 << 20, ..Limits::default() };
    let interpreter = Interpreter::builder().data(data).limits(limits).start().await.expect("an interpreter");
    assert_eq!(interpreter.run("x = 1\nx + 1").await.expect("it runs").text(), Some("2"));
    interpreter.write("a.txt", "abc").await.expect("it is written");
    let ran = interpreter.run("print(open('a.txt').read() * x)\nopen('b.txt', 'w').write('made')\n1 / 0").await;
    let ran = ran.expect("it runs");
    assert_eq!((ran.stdout.as_str(), ran.is_completed()), ("abc\n", false));
    assert_eq!(ran.error.expect("an error").name, "ZeroDivisionError");
    assert_eq!(ran.finished.files[0].path, "b.txt");
    assert_eq!(interpreter.read("b.txt").await.expect("it is read"), b"made");
    assert!(interpreter.read("nothing").await.is_err());
    assert!(interpreter.write("large", vec![0; 2 << 20]).await.is_err());
    interpreter.close().await.expect("it ends");
}

#[test]
fn local_sandbox_an_interpreter_ends_without_a_runtime() {
    // A place of its own, with the template of all: what is left there is this test's.
    let home = tempfile::tempdir().expect("a directory");
    let data = home.path();
    let templates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/aludel-test/templates");
    std::fs::create_dir_all(&templates).expect("a directory");
    std::os::unix::fs::symlink(templates, data.join("templates")).expect("a link");
    let started = || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let builder = Interpreter::builder().data(data).env("WORD", "said");
        let interpreter = runtime.block_on(builder.start()).expect("an interpreter");
        let ran = runtime.block_on(interpreter.run("import os\nos.environ['WORD']")).expect("it runs");
        assert_eq!(ran.text(), Some("'said'"));
        interpreter
    };
    let runs = || std::fs::read_dir(data.join("run")).expect("instances").count();
    // The runtime is gone by now.
    let (closed, dropped) = (started(), started());
    let before = runs();
    closed.close_blocking();
    assert_eq!(runs(), before - 1, "nothing of it is left");
    drop(dropped);
    // Nobody waits for that end, but it comes.
    for _ in 0..600 {
        if runs() == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{} instances are left", runs());
}
