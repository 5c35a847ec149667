//! Sessions with Python in the local sandbox: behaviour that depends on a real file system.

use aludel_testkit::Keeper;

use super::*;

async fn enter(data: &Path) -> TestSessions {
    let store = Store::open(data).await.unwrap();
    let backend = aludel_testkit::local(data, settings().limits).await;
    TestSessions::on(backend, store, settings())
}

async fn content(place: &TestSessions, session: &Session, file: &SessionFile) -> Vec<u8> {
    let record = place.store.session_file(&me(), session.id(), &file.id).await.unwrap().unwrap();
    place.store.read_blob(&record.blob).await.unwrap().read_whole(1 << 20).await.unwrap()
}

fn bytes_of_all() -> Vec<u8> {
    (0..=255).collect::<Vec<u8>>().repeat(999)
}

#[tokio::test]
async fn what_programs_make_outlives_the_session_and_the_server() {
    let data = tempfile::tempdir().unwrap();
    let place = enter(data.path()).await;
    let session = place.open(auto()).await;
    let code = "import os\nos.makedirs('d')\nopen('d/all.bin','wb').write(bytes(range(256)) * 999)\n\
                open('old.txt','w').write('1')\nopen('gone.txt','w').write('x')\nx = 1";
    let (_, made) = run(&session, code).await;
    assert_eq!(paths(&made), ["/mnt/data/d/all.bin", "/mnt/data/gone.txt", "/mnt/data/old.txt"]);
    let all = bytes_of_all();
    assert_eq!(content(&place, &session, &made[0]).await, all);
    assert_eq!((made[0].bytes, made[0].mime.as_str()), (all.len() as u64, "application/octet-stream"));
    let figure = session.add_figure(b"\x89PNG", "image/png").await.unwrap();
    assert!(figure.path.starts_with("/mnt/data/cfile_") && figure.path.ends_with(".png"));
    let (_, changed) =
        run(&session, "import os\nos.remove('gone.txt')\nopen('old.txt','w').write('22')\nos.utime('d/all.bin')").await;
    assert_eq!(paths(&changed), ["/mnt/data/d/all.bin", "/mnt/data/old.txt"]);
    assert_eq!(changed[1].id, made[2].id, "a file keeps its id when it changes");
    let (text, unchanged) = run(&session, "print(x, sorted(os.listdir('.')))").await;
    assert_eq!((text.as_str(), unchanged), ("1 ['d', 'old.txt']\n", Vec::new()));
    let id = session.id().clone();
    let kept = session.files().await.unwrap();
    assert_eq!(kept.len(), 3);
    // The session is never ended, as when the process is killed.
    std::mem::forget(session.sandbox().await.unwrap());
    drop((session, place));

    let place = enter(data.path()).await;
    let session = place.open(SessionChoice::Explicit(id)).await;
    assert_eq!(session.files().await.unwrap(), kept);
    let code = "import os\nprint(sorted(os.listdir('.')), open('old.txt').read(), len(open('d/all.bin','rb').read()))\n\
                print('x' in dir())\nopen('d/more', 'w').write('owned by the program')";
    let (text, _) = run(&session, code).await;
    assert_eq!(text, format!("['d', 'old.txt'] 22 {}\nFalse\n", all.len()));
    assert_eq!(content(&place, &session, &figure).await, b"\x89PNG");
    let all_files = session.files().await.unwrap();
    assert_eq!(all_files.iter().filter(|file| kept.contains(file)).count(), 3);
}

/// A file with a hole or several names takes no room in the workspace, but would in the store.
#[tokio::test]
async fn files_that_take_no_room_inside_do_not_fill_the_store() {
    let data = tempfile::tempdir().unwrap();
    let place = enter(data.path()).await;
    let session = place.open(auto()).await;
    let (_, made) =
        run(&session, "import os\nopen('a', 'wb').truncate(20 << 20)\nfor n in 'bcd': os.link('a', n)").await;
    assert_eq!(paths(&made), ["/mnt/data/a"]);
    let (_, made) = run(&session, "os.link('a', 'e'); open('f', 'w').write('small')").await;
    assert_eq!(paths(&made), ["/mnt/data/a", "/mnt/data/f"]);
    let (_, made) = run(&session, "for n in 'abcde': os.remove(n)\nopen('g', 'wb').write(bytes(20 << 20))").await;
    assert_eq!(paths(&made), ["/mnt/data/g"]);
}

#[tokio::test]
async fn what_a_program_leaves_cannot_lead_the_host_astray() {
    let data = tempfile::tempdir().unwrap();
    let place = enter(data.path()).await;
    let session = place.open(auto()).await;
    let code = "import os\n\
                os.symlink('/etc/passwd', 'link')\nos.symlink('/etc', 'dir')\nos.mkfifo('pipe')\n\
                open('new\\nline\\x1b[2J.txt', 'w').write('odd')\nopen(b'\\xff\\xfe.txt', 'w').write('not UTF-8')\n\
                open('good.txt', 'w').write('good')\nos.link('good.txt', 'same.txt')\n\
                open('sparse', 'wb').truncate(30 << 20)";
    let (_, made) = run(&session, code).await;
    assert_eq!(
        paths(&made),
        ["/mnt/data/good.txt", "/mnt/data/new\nline\u{1b}[2J.txt", "/mnt/data/same.txt", "/mnt/data/sparse"]
    );
    let (_, changed) = run(&session, "os.remove('good.txt'); os.symlink('/etc/shadow', 'good.txt')").await;
    // The link count of its other name is one less.
    assert_eq!(paths(&changed), ["/mnt/data/same.txt"]);
    assert!(!paths(&session.files().await.unwrap()).contains(&"/mnt/data/good.txt"));
    session.end().await;
    assert_eq!(run(&session, "import os; print(len(os.listdir('.')))").await.0, "3\n");
}

#[tokio::test]
async fn more_files_than_an_execution_reports_are_kept_all_the_same() {
    let data = tempfile::tempdir().unwrap();
    let place = enter(data.path()).await;
    let session = place.open(auto()).await;
    let code = "for n in range(1200): open(f'{n}.txt', 'w').write(str(n))";
    assert_eq!(run(&session, code).await.1.len(), 1000);
    session.end().await;
    let text = run(&session, "import os; print(len(os.listdir('.')), open('777.txt').read())").await.0;
    assert_eq!(text, "1200 777\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_the_warden_and_the_zygote() {
    let data = tempfile::tempdir().unwrap();
    let place = enter(data.path()).await;
    let session = place.open(auto()).await;
    run(&session, "open('old', 'w').write('stored')").await;
    for keeper in [Keeper::Warden, Keeper::Zygote] {
        run(&session, "x = 1").await;
        let endless = "open('late', 'w').write('as well'); print('on', flush=True)\nwhile True: pass";
        let mut running = session.execute(endless).await.unwrap();
        assert_eq!(running.next().await, Some(ExecutionEvent::Stdout("on\n".into())));
        let started = std::time::Instant::now();
        keeper.kill(data.path());
        let (_, lost) = finish(running).await;
        assert!(matches!(lost.outcome, Outcome::KernelDied(_)), "{keeper:?} {lost:?}");
        assert_eq!(lost.state, VariablesState::Lost);
        session.store_changes(&lost.files).await.unwrap();
        let (text, end) = execute(&session, "print(open('old').read(), open('late').read(), 'x' in dir())").await;
        println!("{keeper:?}: the next program ended {} ms after the kill", started.elapsed().as_millis());
        assert_eq!((text.as_str(), end.state), ("stored as well False\n", VariablesState::Restarted));
    }
    assert_eq!(place.sessions.in_use(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn time_of_processes_that_a_program_left_is_counted() {
    let data = tempfile::tempdir().unwrap();
    let place = enter(data.path()).await;
    let counted = async || {
        place.sessions.meter().flush().await;
        place.store.metered(0).await.unwrap().iter().map(|day| day.work.program_ms).sum::<u64>()
    };
    let session = place.open(auto()).await;
    run(&session, "print(1)").await;
    session.end().await;
    assert!(counted().await < 200, "a sandbox that is made and ended: {} ms", counted().await);
    let burning = "import os\nif os.fork() == 0:\n    while True: pass";
    // By its owner, and by the loss of all that holds it.
    run(&session, burning).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    session.end().await;
    let before = counted().await;
    assert!((400..3000).contains(&before), "{before} ms");
    let temporary = place.sessions.open_temporary(&me(), "test", settings().limits).await.unwrap();
    finish(temporary.sandbox().execute(burning).await.unwrap()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(temporary);
    let mut more = 0;
    for _ in 0..100 {
        more = counted().await - before;
        if more > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!((400..3000).contains(&more), "{more} ms");
}
