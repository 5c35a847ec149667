//! File names from clients and programs, against a workspace full of traps: nothing outside is ever read, made or changed.
#![no_main]

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;

use aludel_sandbox::Workspace;

const SECRET: &str = "a secret of the host";

struct Place {
    _directory: tempfile::TempDir,
    outside: std::path::PathBuf,
    workspace: Box<dyn Workspace>,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("inside");
        let outside = directory.path().join("outside");
        for path in [inside.join("sub/deep"), outside.join("sub")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(outside.join("secret"), SECRET).unwrap();
        for (link, target) in [("up", ".."), ("out", "../outside"), ("secret", "../outside/secret"), ("abs", "/etc/passwd"), ("sub/a", "../../outside"), ("self", "self")] {
            symlink(target, inside.join(link)).unwrap();
        }
        let workspace = Box::new(aludel_sandbox::fuzzing::workspace(&inside));
        Self { _directory: directory, outside, workspace }
    }
}

thread_local! {
    static PLACE: RefCell<(u32, Place)> = RefCell::new((0, Place::new()));
}

libfuzzer_sys::fuzz_target!(|name: &str| {
    PLACE.with_borrow_mut(|(uses, place)| {
        *uses += 1;
        if *uses > 2000 {
            // What was made in it slows it down.
            *place = Place::new();
            *uses = 0;
        }
        if let Ok(contents) = place.workspace.read(name, 1 << 16) {
            assert!(contents != SECRET.as_bytes() && !contents.starts_with(b"root:"), "{name:?}");
        }
        let _refused = place.workspace.write(name, &mut &b"new"[..], 1 << 16);
        let _refused = place.workspace.remove(name);
        assert_eq!(fs::read_to_string(place.outside.join("secret")).unwrap(), SECRET, "{name:?}");
        assert_eq!(fs::read_dir(&place.outside).unwrap().count(), 2, "{name:?}");
        assert_eq!(fs::read_dir(place.outside.join("sub")).unwrap().count(), 0, "{name:?}");
    });
});
