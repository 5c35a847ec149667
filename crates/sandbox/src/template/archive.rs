//! Templates as archives, for hosts that reach no package index.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use aludel_ignore::Ignore;
use sha2::{Digest, Sha256};

use super::build::free_bytes;
use super::command::run;
use super::recipe::PREFIX;
use super::{BUILDER, BuildLock, BuildProgress, LOCK, MANIFEST, Manifest, REQUIREMENTS, Template, UNFINISHED};
use super::{at, hex, imported_name, lock, make_directory, name_of, remove_unfinished, set_aside, tree};
use crate::Error;

/// The directory of the template that only root may enter; it is made anew.
const ROOT_HOME: &str = "root";

/// Bytes of the description and of the list of packages in an archive.
const MAX_TEXT: u64 = 4 << 20;

/// Bytes of the disk that an archive leaves free.
const KEPT_FREE: u64 = 1 << 30;

/// Records of 10 KiB between two looks at the room that is left.
const RECORDS: u64 = 1000;

/// Writes a template to a compressed archive, replacing a file of that name. Blocks.
pub fn export(template: &Template, file: &Path, progress: &mut dyn FnMut(BuildProgress)) -> Result<(), Error> {
    let unfinished = PathBuf::from(format!("{}.partial", file.display()));
    let null = File::open("/dev/null").map_err(at(Path::new("/dev/null")))?;
    let nothing = BuildLock { file: null, cancellation: None };
    progress(BuildProgress::Phase { name: "packing", total: 0 });
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--owner=0", "--group=0", "--numeric-owner", "--sort=name"]);
    tar.arg("--file").arg(&unfinished).arg(format!("--exclude=./{ROOT_HOME}")).arg("--directory").arg(&template.root);
    let packed = run(tar.arg("."), "write the archive", &nothing, &mut |_| Ok(()));
    if packed.is_err() {
        fs::remove_file(&unfinished).ignore("it may not exist, and the other error is the one to report");
    }
    packed?;
    fs::rename(&unfinished, file).map_err(at(file))
}

/// Unpacks an archive of [`export`]. The template has no name yet. Blocks.
pub fn import(data: &Path, file: &Path, progress: &mut dyn FnMut(BuildProgress)) -> Result<Template, Error> {
    import_as(data, file, progress, |manifest| {
        let (preload, arch) = (manifest.preload.join(","), std::env::consts::ARCH);
        Ok(name_of(PREFIX, &[&manifest.lock, &manifest.python, &preload, arch, "imported"]))
    })
}

/// Unpacks an archive of this version's default template as the default. Blocks.
pub fn import_default(data: &Path, file: &Path, progress: &mut dyn FnMut(BuildProgress)) -> Result<Template, Error> {
    import_as(data, file, progress, |manifest| {
        if manifest.lock != hex(Sha256::new_with_prefix(LOCK)) || manifest.builder != BUILDER {
            return Err(
                "it is not the default template of this version of aludel; give it a name of its own".to_owned()
            );
        }
        Ok(imported_name())
    })
}

/// Unpacks an archive into the directory that its description determines.
fn import_as(
    data: &Path,
    file: &Path,
    progress: &mut dyn FnMut(BuildProgress),
    name: impl Fn(&Manifest) -> Result<String, String>,
) -> Result<Template, Error> {
    let file = file.canonicalize().map_err(at(file))?;
    let directory = make_directory(data)?;
    let lock = lock(&directory, progress)?;
    remove_unfinished(&directory)?;
    let root = directory.join(format!("{UNFINISHED}{}", std::process::id()));
    progress(BuildProgress::Phase { name: "unpacking", total: 0 });
    let place = unpack(&file, &root, &lock, &mut || free_bytes(&root)).and_then(|manifest| {
        let name = name(&manifest).map_err(|why| Error::Template(format!("{}: {why}", file.display())))?;
        let place = directory.join(name);
        if Template::open(&place).is_none() {
            if place.exists() {
                set_aside(&place)?;
            }
            fs::rename(&root, &place).map_err(at(&place))?;
        }
        Ok(place)
    });
    remove_unfinished(&directory)?;
    let place = place?;
    Template::open(&place).ok_or_else(|| Error::Template(format!("{} cannot be opened", place.display())))
}

/// Unpacks into a new directory while [`KEPT_FREE`] of the `free` bytes of its disk stay free, and returns the template's description.
fn unpack(
    file: &Path,
    root: &Path,
    lock: &BuildLock,
    free: &mut dyn FnMut() -> Result<u64, Error>,
) -> Result<Manifest, Error> {
    fs::create_dir(root).map_err(at(root))?;
    let wrong = |why: &str| Error::Template(format!("{}: {why}", file.display()));
    // The stated size of an archive cannot be trusted, and a small one may fill the disk when unpacked.
    let mut require_room = |_: &str| match free()? {
        0..KEPT_FREE => Err(wrong("unpacked, it would fill the disk; make room or choose another data directory")),
        _ => Ok(()),
    };
    require_room("")?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--gzip", "--no-same-owner", "--no-same-permissions"])
        .arg(format!("--checkpoint={RECORDS}"));
    run(tar.arg("--file").arg(file).arg("--directory").arg(root), "unpack the archive", lock, &mut require_room)?;
    if !tree::is_plain(root)? || root.join(ROOT_HOME).is_symlink() {
        return Err(wrong("it has more than files, directories and links to them, as no template does"));
    }
    let manifest = read_inside(root, MANIFEST).map_err(|_| wrong("it is no archive of a template"))?;
    let manifest: Manifest = serde_json::from_slice(&manifest)
        .map_err(|error| wrong(&format!("its description cannot be read: {error}")))?;
    // Default templates of earlier versions have no list inside.
    if let Ok(list) = read_inside(root, REQUIREMENTS)
        && hex(Sha256::new_with_prefix(list)) != manifest.lock
    {
        return Err(wrong("its list of packages is not the one that it was made from"));
    }
    tree::normalize(root)?;
    let home = root.join(ROOT_HOME);
    fs::create_dir_all(&home)
        .and_then(|()| fs::set_permissions(&home, fs::Permissions::from_mode(0o700)))
        .map_err(at(&home))?;
    Ok(manifest)
}

/// Reads a file of a foreign template: a link in its path may lead to any file of the host.
fn read_inside(root: &Path, path: &str) -> io::Result<Vec<u8>> {
    let mut place = root.to_path_buf();
    for name in Path::new(path) {
        place.push(name);
        if place.symlink_metadata()?.is_symlink() {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    if place.metadata()?.len() > MAX_TEXT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    fs::read(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ignore(_: BuildProgress) {}

    #[test]
    fn an_archive_becomes_the_same_template_elsewhere() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("one/templates/named-1");
        let list = "x==1 --hash=sha256:0\n";
        for (path, text) in [
            (
                MANIFEST,
                format!(
                    r#"{{"python":"3.11.2","packages":[],"lock":"{}","bytes":7}}"#,
                    hex(Sha256::new_with_prefix(list))
                ),
            ),
            (REQUIREMENTS, list.to_owned()),
            ("root/secret", "mine".to_owned()),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        let (archive, other) = (home.path().join("ml.tar.gz"), home.path().join("two"));
        export(&Template::open(&root).unwrap(), &archive, &mut ignore).unwrap();
        let imported = import(&other, &archive, &mut ignore).unwrap();
        assert_eq!(imported.python_version(), "3.11.2");
        assert_eq!(fs::read_to_string(imported.root().join(REQUIREMENTS)).unwrap(), list);
        assert!(imported.root().join(ROOT_HOME).is_dir() && !imported.root().join("root/secret").exists());
        assert_eq!(import(&other, &archive, &mut ignore).unwrap().root(), imported.root());

        let error = import_default(&other, &archive, &mut ignore).unwrap_err().to_string();
        assert!(error.contains("not the default template of this version"), "{error}");

        fs::write(root.join(REQUIREMENTS), "another\n").unwrap();
        export(&Template::open(&root).unwrap(), &archive, &mut ignore).unwrap();
        let error = import(&other, &archive, &mut ignore).unwrap_err().to_string();
        assert!(error.contains("not the one that it was made from"), "{error}");
        // This version's default template is the default there, and is not pruned.
        let lock = hex(Sha256::new_with_prefix(LOCK));
        let manifest =
            format!(r#"{{"python":"3.11.2","packages":[],"lock":"{lock}","bytes":7,"builder":"{BUILDER}"}}"#);
        fs::write(root.join(MANIFEST), manifest).unwrap();
        fs::write(root.join(REQUIREMENTS), LOCK).unwrap();
        export(&Template::open(&root).unwrap(), &archive, &mut ignore).unwrap();
        let third = home.path().join("three");
        let default = import_default(&third, &archive, &mut ignore).unwrap();
        assert_eq!(super::super::ensure(&third, false, &mut ignore).unwrap().root(), default.root());
        drop(default);
        assert_eq!(super::super::prune(&third).unwrap(), 0);
        assert!(matches!(super::super::state(std::slice::from_ref(&third)), super::super::TemplateState::Ready(_)));

        fs::write(&archive, "x").unwrap();
        let error = import(&other, &archive, &mut ignore).unwrap_err().to_string();
        assert!(error.starts_with("could not unpack the archive"), "{error}");
        let left = fs::read_dir(other.join("templates")).unwrap().flatten();
        assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().starts_with(UNFINISHED)));
    }

    #[test]
    fn an_archive_does_not_fill_the_disk() {
        let home = tempfile::tempdir().unwrap();
        let (tree, archive, lock) = (
            home.path().join("tree"),
            home.path().join("a.tar.gz"),
            BuildLock { file: tempfile::tempfile().unwrap(), cancellation: None },
        );
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("zeros"), vec![0; 64 << 20]).unwrap();
        let mut tar = Command::new("tar");
        assert!(
            tar.args(["--create", "--gzip", "--file"])
                .arg(&archive)
                .arg("--directory")
                .arg(home.path())
                .arg("tree")
                .status()
                .unwrap()
                .success()
        );
        let mut looks = 0;
        let mut free = || {
            looks += 1;
            Ok(if looks < 3 { KEPT_FREE } else { KEPT_FREE - 1 })
        };
        let root = home.path().join("root");
        let error = unpack(&archive, &root, &lock, &mut free).unwrap_err().to_string();
        assert!(error.contains("would fill the disk"), "{error}");
        let unpacked = fs::metadata(root.join("tree/zeros")).unwrap().len();
        assert!((1..64 << 20).contains(&unpacked), "{unpacked}");
    }

    #[test]
    fn an_archive_leads_to_nothing_of_the_host() {
        let home = tempfile::tempdir().unwrap();
        let (victim, outside) = (home.path().join("victim"), home.path().join("outside.json"));
        fs::create_dir(&victim).unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o755)).unwrap();
        let manifest = r#"{"python":"3.11.2","packages":[],"lock":"0","bytes":7}"#;
        fs::write(&outside, manifest).unwrap();
        let archive_of = |name: &str, make: &dyn Fn(&Path)| {
            let (tree, archive) = (home.path().join(name), home.path().join(format!("{name}.tar.gz")));
            fs::create_dir_all(tree.join("usr/lib/aludel")).unwrap();
            make(&tree);
            let mut tar = Command::new("tar");
            tar.args(["--create", "--gzip", "--file"]).arg(&archive).arg("--directory").arg(&tree);
            assert!(tar.arg(".").status().unwrap().success());
            archive
        };
        let described = |tree: &Path| fs::write(tree.join(MANIFEST), manifest).unwrap();
        let archives = [
            archive_of("home", &|tree| {
                described(tree);
                std::os::unix::fs::symlink(&victim, tree.join(ROOT_HOME)).unwrap();
            }),
            archive_of("description", &|tree| std::os::unix::fs::symlink(&outside, tree.join(MANIFEST)).unwrap()),
            archive_of("directory", &|tree| {
                fs::remove_dir(tree.join("usr/lib/aludel")).unwrap();
                fs::create_dir(tree.join("there")).unwrap();
                fs::write(tree.join("there/template.json"), manifest).unwrap();
                std::os::unix::fs::symlink("../../there", tree.join("usr/lib/aludel")).unwrap();
            }),
            archive_of("pipe", &|tree| {
                assert!(Command::new("mkfifo").arg(tree.join(MANIFEST)).status().unwrap().success());
            }),
            archive_of("long", &|tree| File::create(tree.join(MANIFEST)).unwrap().set_len(MAX_TEXT + 1).unwrap()),
        ];
        let other = home.path().join("other");
        for archive in &archives {
            let error = import(&other, archive, &mut ignore).unwrap_err().to_string();
            assert!(error.contains("as no template does") || error.contains("no archive of a template"), "{error}");
        }
        assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o7777, 0o755);
        // The control.
        import(&other, &archive_of("plain", &described), &mut ignore).unwrap();
    }
}
