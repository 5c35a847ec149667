use std::os::unix::fs::symlink;

use super::site::BuildSite;
use super::*;

fn interpreter(program: &str, version: &str) -> HostPython {
    let facts = format!(
        r#"{{"program":"{program}","version":"{version}","major":3,"minor":11,"platlibdir":"lib","stdlib":"/l","has_venv":true,"soabi":"m"}}"#
    );
    serde_json::from_str(&facts).unwrap()
}

#[test]
fn every_package_of_the_list_is_locked_by_hash_and_names_no_index() {
    // An entry is a line that is not indented, followed by its hashes.
    let entries: Vec<Vec<&str>> = LOCK.lines().fold(Vec::new(), |mut entries, line| {
        match (line.starts_with(' '), entries.last_mut()) {
            (true, Some(entry)) => entry.push(line.trim()),
            _ => entries.push(vec![line]),
        }
        entries
    });
    assert!(entries.len() > 50);
    for entry in entries {
        let (requirement, hashes) = entry.split_first().unwrap();
        assert!(requirement.contains("=="), "{requirement}");
        assert!(!hashes.is_empty(), "{requirement}");
        for hash in hashes {
            let hash = hash.trim_end_matches(" \\").strip_prefix("--hash=sha256:").unwrap_or_else(|| panic!("{hash}"));
            assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{requirement}: {hash}");
        }
    }
    for foreign in ["://", " @ ", "index-url", "find-links"] {
        assert!(!LOCK.contains(foreign), "{foreign}");
    }
}

#[test]
fn every_package_that_was_asked_for_is_locked() {
    let asked = include_str!("../../templates/default/requirements.in");
    for name in asked.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        assert!(LOCK.lines().any(|line| line.starts_with(&format!("{name}=="))), "{name}");
    }
}

#[test]
fn a_template_is_named_by_what_went_into_it() {
    let name_of = |program, version| name(&interpreter(program, version));
    let one = name_of("/no/python3.11", "3.11.2");
    assert_eq!(one, name_of("/no/python3.11", "3.11.2"));
    assert_ne!(one, name_of("/no/python3.11", "3.11.3"));
    assert_eq!(one, name_of("/other/python3.11", "3.11.2"), "the same packages, from another place");
    let digits = one.strip_prefix("default-").unwrap();
    assert!(digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
}

/// Python 3.14 makes a link with the letter pi.
#[test]
fn links_of_the_environment_lead_to_the_interpreter_inside() {
    let top = tempfile::tempdir().unwrap();
    let python = interpreter("/no/python3.11", "3.11.2");
    let lock = lock(top.path(), &mut |_| ()).unwrap();
    let site = BuildSite { python: &python, root: top.path().join("root"), lock: &lock };
    let programs = site.environment().join("bin");
    fs::create_dir_all(&programs).unwrap();
    fs::create_dir_all(site.site_packages().join("pip")).unwrap();
    for link in ["python", "python3", "python3.11", "𝜋thon"] {
        symlink("/no/python3.11", programs.join(link)).unwrap();
    }
    for program in ["activate", "pip3", "f2py"] {
        fs::write(programs.join(program), format!("#!{}\n", programs.join("python").display())).unwrap();
    }
    packages::settle(&site).unwrap();
    let mut found: Vec<String> = fs::read_dir(&programs)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let target = fs::read_link(entry.path()).map(|target| target.display().to_string());
            let text = target.or_else(|_| fs::read_to_string(entry.path())).unwrap();
            format!("{}: {}", entry.file_name().display(), text.lines().next().unwrap())
        })
        .collect();
    found.sort();
    let expected = [
        "f2py: #!/usr/local/bin/python",
        "pip3: #!/usr/local/bin/python3",
        "python3.11: /usr/bin/python3.11",
        "python3: python3.11",
        "python: python3",
    ];
    assert_eq!(found, expected);
}

fn make(directory: &Path, name: &str) -> PathBuf {
    let root = directory.join(name);
    let manifest = root.join(MANIFEST);
    fs::create_dir_all(manifest.parent().unwrap()).unwrap();
    fs::write(manifest, r#"{"python":"3.11.2","packages":[],"lock":"","bytes":7}"#).unwrap();
    root
}

#[test]
fn an_unfinished_build_is_removed_and_a_template_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (unfinished, finished) = (make(directory.path(), ".building-1"), make(directory.path(), "default-0"));
    remove_unfinished(directory.path()).unwrap();
    assert!(!unfinished.exists() && finished.exists());
}

#[test]
fn a_lock_of_somebody_who_removes_nothing_does_not_hide_a_template() {
    let home = tempfile::tempdir().unwrap();
    let root = make(home.path(), "named-1");
    // As every user can who may read a shared template.
    let stranger = File::open(&root).unwrap();
    stranger.lock().unwrap();
    assert!(Template::open(&root).is_some());
    // A removal renames it; then there is none.
    let removing = thread::spawn({
        let root = root.clone();
        move || {
            thread::sleep(Duration::from_millis(100));
            set_aside(&root).unwrap();
        }
    });
    assert!(Template::open(&root).is_none());
    removing.join().unwrap();
}

#[test]
fn a_template_in_use_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let root = make(directory.path(), "default-0");
    let template = Template::open(&root).unwrap();
    let clone = template.clone();
    drop(template);
    assert!(!remove_unused(&root).unwrap());
    assert_eq!(clone.bytes(), 7);

    // A template that is replaced while in use is removed when it no longer is.
    let aside = set_aside(&root).unwrap();
    remove_unfinished(directory.path()).unwrap();
    assert!(aside.join(MANIFEST).exists());
    drop(clone);
    remove_unfinished(directory.path()).unwrap();
    assert!(!aside.exists());
}

#[test]
fn a_template_without_its_description_is_none() {
    let directory = tempfile::tempdir().unwrap();
    assert!(Template::open(&directory.path().join("default-0")).is_none());
    fs::write(make(directory.path(), "default-0").join(MANIFEST), "{").unwrap();
    assert!(Template::open(&directory.path().join("default-0")).is_none());
}

#[test]
fn builders_wait_for_one_another_and_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let held = lock(directory.path(), &mut |progress| panic!("{progress:?}")).unwrap();
    let (sender, heard) = std::sync::mpsc::channel();
    let path = directory.path().to_path_buf();
    let second = std::thread::spawn(move || lock(&path, &mut |progress| sender.send(progress).unwrap()).map(drop));
    assert_eq!(heard.recv().unwrap(), BuildProgress::Phase { name: "waiting for another build", total: 0 });
    drop(held);
    second.join().unwrap().unwrap();
}
