//! Shared libraries of the interpreter, the packages and the tools, as the host's loader finds them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::site::BuildSite;
use super::{at, included, tree};
use crate::Error;

/// Libraries that the C library loads at run time, so that no program lists them: one when a thread is cancelled, the others, on older
/// hosts, to look up users and host names.
const OPENED_BY_NAME: &[&str] = &["libgcc_s.so.1", "libnss_files.so.2"];

/// Files of one call of `ldd`.
const BATCH: usize = 200;

/// Copies every needed library to the directory of the host's C library, which the loader searches by default. The loader itself keeps its
/// path, which programs name. Libraries inside the template stay in their place. Each file of `included` may be a program.
pub(super) fn copy(site: &BuildSite<'_>, included: &[PathBuf]) -> Result<(), Error> {
    // The copied interpreter may find its library only from the original's place.
    let mut programs = vec![site.python.program.clone()];
    collect_programs(&site.root.join("usr"), &is_named_like_one, &mut programs)?;
    for path in included {
        collect_programs(&included::inside(&site.root, path), &|_| true, &mut programs)?;
    }
    programs.sort();
    programs.dedup();
    let mut needed: BTreeMap<String, PathBuf> = BTreeMap::new();
    for batch in programs.chunks(BATCH) {
        for library in libraries_of(batch)? {
            if let Some(name) = library.file_name().and_then(|name| name.to_str())
                && !library.starts_with(&site.root)
            {
                needed.entry(name.to_owned()).or_insert(library);
            }
        }
    }
    let libc = needed.get("libc.so.6").and_then(|path| path.parent()).map(Path::to_path_buf).ok_or_else(|| {
        Error::Template(format!(
            "{} is not linked against glibc, which the packages need; choose another interpreter with ALUDEL_PYTHON",
            site.python.program.display()
        ))
    })?;
    for name in OPENED_BY_NAME {
        let library = libc.join(name);
        if library.is_file() {
            needed.entry((*name).to_owned()).or_insert(library);
        }
    }
    for (name, source) in needed {
        let directory = if name.starts_with("ld-linux") { source.parent().unwrap_or(&libc) } else { &libc };
        // `/lib` and `/lib64` are links inside, so that both spellings of a path lead to the same place.
        let target = site.root.join(directory.strip_prefix("/").unwrap_or(directory));
        fs::create_dir_all(&target).map_err(at(&target))?;
        tree::copy_file(&source, &target.join(name))?;
    }
    Ok(())
}

/// The libraries that the loader would use for these files. A missing one belongs to an optional module, whose import will report it.
fn libraries_of(files: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let output = Command::new("ldd").args(files).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| Error::Template(format!("ldd: {error}; install it: apt-get install libc-bin")))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(library_of_line).collect())
}

/// Parses a line such as `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)`, or the loader's line without an arrow.
fn library_of_line(line: &str) -> Option<PathBuf> {
    let line = line.strip_prefix('\t')?;
    let path = line.split_once(" => ").map_or(line, |(_, path)| path);
    let path = path.rsplit_once(" (")?.0;
    path.starts_with('/').then(|| path.into())
}

/// Returns true if a file's name or directory is typical of programs and libraries.
fn is_named_like_one(path: &Path) -> bool {
    let is_library = path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"));
    is_library || path.parent().is_some_and(|directory| directory.ends_with("bin"))
}

/// Collects the files with the magic number of a program or library, among those that `may_be` one, in a directory or at the path itself.
fn collect_programs(path: &Path, may_be: &dyn Fn(&Path) -> bool, found: &mut Vec<PathBuf>) -> Result<(), Error> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if metadata.is_dir() {
        return tree::entries(path)?.iter().try_for_each(|entry| collect_programs(&entry.path(), may_be, found));
    }
    if metadata.is_file() && may_be(path) && is_elf(path) {
        found.push(path.to_path_buf());
    }
    Ok(())
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_lines_are_read() {
        let path = |line: &str| library_of_line(line).map(|path| path.display().to_string());
        assert_eq!(path("\tlibm.so.6 => /lib/x/libm.so.6 (0x00007f)").as_deref(), Some("/lib/x/libm.so.6"));
        assert_eq!(path("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)").as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(path("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(path("\tlibgone.so => not found"), None);
        assert_eq!(path("/some/file:"), None);
    }
}
