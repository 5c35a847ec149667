//! The program itself, run by this machine's Python, without a sandbox.

use std::path::Path;
use std::process::Stdio;

use super::*;

/// Starts the program with this directory as home.
fn start(home: &Path) -> Files {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel/files.py");
    let mut child = tokio::process::Command::new("python3")
        .args(["-I", "-S", program])
        .env("HOME", home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (signal, mut signalled) = mpsc::unbounded_channel();
    let (sender, ended) = oneshot::channel();
    tokio::spawn(async move {
        signalled.recv().await;
        child.kill().await.unwrap();
        let _nobody = sender.send(None);
    });
    Files::over(Process {
        stdin: stdin.map(|stdin| Box::new(stdin) as _),
        stdout: Box::new(stdout.unwrap()),
        stderr: Box::new(stderr.unwrap()),
        signal: Box::new(move |_| {
            let _ended = signal.send(());
        }),
        id: 0,
        resize: None,
        ended,
    })
}

#[tokio::test]
async fn what_a_caller_that_left_has_opened_is_closed() {
    let home = tempfile::tempdir().unwrap();
    let files = start(home.path());
    write(&files, "a", b"1").await;
    // More than may be open at once. Some are sent and leave before the answer, some before they are sent.
    for number in 0..1500 {
        let opening = async {
            match number % 3 {
                0 => drop(files.open("a", 0).await),
                1 => drop(files.create("b", BTreeMap::new()).await),
                _ => drop(files.watch(".", false, false).await),
            }
        };
        tokio::select! {
            biased;
            () = opening => {}
            () = async { for _ in 0..number % 5 { tokio::task::yield_now().await } } => {}
        }
    }
    while !files.0.pending.0.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(read(&files, "a", 0).await, b"1");
    let watch = files.watch(".", false, false).await.unwrap();
    drop(watch);
}

fn problem<T: std::fmt::Debug>(result: Result<T, FilesError>) -> Problem {
    match result.unwrap_err() {
        FilesError::Refused { problem, .. } => problem,
        FilesError::Sandbox(error) => panic!("{error}"),
    }
}

async fn write(files: &Files, path: &str, content: &[u8]) -> PathInfo {
    let mut file = files.create(path, BTreeMap::new()).await.unwrap();
    file.write(Bytes::copy_from_slice(content)).await.unwrap();
    file.finish().await.unwrap()
}

async fn read(files: &Files, path: &str, offset: u64) -> Vec<u8> {
    let mut file = files.open(path, offset).await.unwrap();
    let mut content = Vec::new();
    loop {
        let chunk = file.read().await.unwrap();
        if chunk.is_empty() {
            return content;
        }
        content.extend_from_slice(&chunk);
    }
}

#[tokio::test]
async fn files_are_written_read_listed_moved_and_removed() {
    let home = tempfile::tempdir().unwrap();
    let files = start(home.path());
    let large: Vec<u8> = (0..600_000_u32).flat_map(u32::to_le_bytes).collect();
    let written = write(&files, "sub/a.bin", &large).await;
    assert_eq!(written.path, format!("{}/sub/a.bin", home.path().display()));
    assert_eq!((written.name.as_str(), written.size, written.mode), ("a.bin", 2_400_000, 0o100_644));
    assert_eq!(read(&files, "~/sub/../sub/a.bin", 0).await, large);
    assert_eq!(read(&files, "sub/a.bin", 2_399_998).await, large[2_399_998..]);
    // Shorter than before: nothing of the old content remains.
    write(&files, "sub/a.bin", b"short").await;
    assert_eq!(read(&files, &written.path, 0).await, b"short");

    files.make_directory("sub/deep/er").await.unwrap();
    let names = |entries: Vec<PathInfo>| entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>();
    assert_eq!(names(files.list("sub", 1).await.unwrap()), ["a.bin", "deep"]);
    assert_eq!(names(files.list("", 3).await.unwrap()), ["sub", "a.bin", "deep", "er"]);
    assert_eq!(problem(files.make_directory("sub").await), Problem::Exists);
    assert_eq!(problem(files.list("sub/a.bin", 1).await), Problem::NotADirectory);
    assert_eq!(problem(files.open("sub", 0).await), Problem::IsADirectory);
    assert_eq!(problem(files.create("sub", BTreeMap::new()).await), Problem::IsADirectory);
    assert_eq!(problem(files.stat("nothing").await), Problem::NotFound);
    assert_eq!(problem(files.stat("\0").await), Problem::Invalid);

    let moved = files.rename("sub/a.bin", "other/b.bin").await.unwrap();
    assert_eq!(moved.name, "b.bin");
    assert_eq!(problem(files.rename("sub/a.bin", "c").await), Problem::NotFound);
    files.remove("other").await.unwrap();
    files.remove("other").await.unwrap();
    assert_eq!(problem(files.stat("other/b.bin").await), Problem::NotFound);
}

#[tokio::test]
async fn links_are_told_with_what_they_lead_to_and_odd_names_do_no_harm() {
    let home = tempfile::tempdir().unwrap();
    let files = start(home.path());
    write(&files, "file", b"1234").await;
    std::os::unix::fs::symlink("file", home.path().join("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", home.path().join("broken")).unwrap();
    let link = files.stat("link").await.unwrap();
    assert_eq!(link.target.as_deref(), Some(&*format!("{}/file", home.path().canonicalize().unwrap().display())));
    assert_eq!((link.mode & 0o170_000, link.target_mode), (0o120_000, Some(0o100_644)));
    assert_eq!(files.stat("broken").await.unwrap().target_mode, None);
    let odd = <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(vec![0xff]);
    std::fs::write(home.path().join(odd), "").unwrap();
    assert_eq!(files.list("", 1).await.unwrap().last().unwrap().name, "?");
    // A pipe without a writer does not block.
    rustix::fs::mknodat(rustix::fs::CWD, home.path().join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    assert_eq!(problem(files.open("pipe", 0).await), Problem::Invalid);
    assert_eq!(problem(files.create("pipe", BTreeMap::new()).await), Problem::Invalid);
}

#[tokio::test]
async fn changes_are_told_as_they_happen() {
    let home = tempfile::tempdir().unwrap();
    let files = start(home.path());
    files.make_directory("watched/below").await.unwrap();
    let mut watch = files.watch("watched", true, true).await.unwrap();
    assert_eq!(watch.changes().await.unwrap(), (Vec::new(), 0));
    write(&files, "watched/below/new", b"x").await;
    let (changes, dropped) = watch.changes().await.unwrap();
    let kinds: Vec<_> = changes.iter().map(|change| (change.kind, change.name.as_str())).collect();
    let expected = [ChangeKind::Create, ChangeKind::Chmod, ChangeKind::Write].map(|kind| (kind, "below/new"));
    assert_eq!((kinds, dropped), (expected.into(), 0));
    assert_eq!(changes[2].entry.as_ref().unwrap().size, 1);
    let (next, ()) = tokio::join!(watch.next(), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        files.remove("watched/below/new").await.unwrap();
    });
    assert_eq!(next.unwrap().0[0].kind, ChangeKind::Remove);
    // A file in a new directory is reported even if it was made before that directory was watched.
    files.make_directory("watched/more").await.unwrap();
    write(&files, "watched/more/late", b"y").await;
    let names: Vec<_> = watch.changes().await.unwrap().0.into_iter().map(|change| change.name).collect();
    assert!(names.contains(&"more".to_owned()) && names.contains(&"more/late".to_owned()), "{names:?}");
    assert_eq!(problem(files.watch("nothing", false, false).await), Problem::NotFound);
}

#[tokio::test]
async fn whatever_the_program_says_is_bounded() {
    for said in [
        b"\xff\xff\xff\xff\0\0\0\0".as_slice(),
        b"\0\0\0\0\0\0\0\0",
        b"\0\0\0\x06\0\0\0\x03{}",
        b"\0\0\0\x06\0\0\0\x02{]",
        b"\0\0\0\x08\0\0\0\x02{}",
        b"",
    ] {
        assert!(read_answer(&mut { said }).await.is_err(), "{said:?}");
    }
    let (answer, data) = read_answer(&mut b"\0\0\0\x0e\0\0\0\x08{\"id\":1}ab".as_slice()).await.unwrap();
    assert_eq!((answer.id, &*data), (1, b"ab".as_slice()));
    let home = tempfile::tempdir().unwrap();
    let files = start(home.path());
    files.0.over.cancel();
    assert!(matches!(files.stat("").await, Err(FilesError::Sandbox(Error::KernelGone(_)))));
    assert!(!files.is_alive());
}
