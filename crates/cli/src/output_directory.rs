//! Files and figures of programs, on their way out.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use aludel_engine::sessions::SessionSandbox;
use aludel_sandbox::{FileEntry, Limits, MimeBundle, MimeData};
use anyhow::Context;

use crate::exit::usage;

/// The subdirectory for displayed images.
pub(crate) const FIGURES: &str = "figures";

/// The default directory. If one of an earlier run exists, a number is added.
const UNNAMED: &str = "aludel-out";
/// The highest number of such a directory.
const MAX_UNNAMED: u32 = 10_000;

/// Saved files that the error of another one names.
const MAX_NAMED: usize = 5;

/// The longest name of a file, bytes; most filesystems take 255.
const LONGEST: usize = 240;

/// The directory for a program's files.
///
/// Names come from untrusted code, so their effects are limited: nothing is written outside of the directory, through a symbolic link,
/// hidden or executable. A file of an earlier run is replaced atomically.
#[derive(Debug)]
pub(crate) struct OutputDirectory {
    root: OutputRoot,
    /// The numbers of the last image, page for a browser and piece of data, of this run or an earlier one: they are numbered because they
    /// have no names, and none is replaced.
    shown: [usize; 3],
    /// Files that this run wrote; they are never overwritten.
    taken: BTreeSet<PathBuf>,
    /// The reason for which the first displayed value is missing that could not be saved.
    unsaved: Option<anyhow::Error>,
}

#[derive(Debug)]
enum OutputRoot {
    Given(PathBuf),
    /// The default: made for the first file in the working directory, or else in that of temporary files.
    Unnamed(Option<PathBuf>),
    /// Nothing is wanted.
    Nowhere,
}

/// A file that was copied out.
#[derive(Debug)]
pub(crate) struct SavedFile {
    /// Its entry in the workspace.
    pub(crate) entry: FileEntry,
    /// Its present path; `None` to write no files.
    pub(crate) path: Option<PathBuf>,
}

/// The files of a workspace, on their way out.
pub(crate) trait OutputFiles {
    /// The limits of the workspace.
    fn limits(&self) -> &Limits;

    /// Those that are there.
    async fn files(&mut self) -> anyhow::Result<Vec<FileEntry>>;

    /// Opens a file of at most `limit` bytes.
    async fn open(&mut self, path: &str, limit: u64) -> anyhow::Result<impl Read + Send + 'static>;
}

impl OutputFiles for SessionSandbox {
    fn limits(&self) -> &Limits {
        Self::limits(self)
    }

    async fn files(&mut self) -> anyhow::Result<Vec<FileEntry>> {
        Ok(Self::files(self).await?)
    }

    async fn open(&mut self, path: &str, limit: u64) -> anyhow::Result<impl Read + Send + 'static> {
        Ok(self.open_file(path, limit).await?.0)
    }
}

impl OutputDirectory {
    /// A directory that the user named. It is made when something is written.
    pub(crate) fn directory(path: PathBuf) -> Self {
        let directory = path.join(FIGURES);
        let shown = FileKind::ALL.map(|form| last(&directory, form.prefix()));
        Self { root: OutputRoot::Given(path), shown, taken: BTreeSet::new(), unsaved: None }
    }

    /// A directory that the user named and that must exist, so it is made at once.
    pub(crate) fn existing(path: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&path).map_err(|error| unwritable(&path, &error))?;
        tempfile::tempfile_in(&path).map_err(|error| unwritable(&path, &error))?;
        Ok(Self::directory(path))
    }

    /// A new directory for this run, since none was named. It is made when something is written.
    pub(crate) fn unnamed() -> Self {
        Self { root: OutputRoot::Unnamed(None), shown: [0; 3], taken: BTreeSet::new(), unsaved: None }
    }

    /// No directory: files are gone with the sandbox.
    pub(crate) fn nowhere() -> Self {
        Self { root: OutputRoot::Nowhere, shown: [0; 3], taken: BTreeSet::new(), unsaved: None }
    }

    /// Returns true if files are wanted.
    pub(crate) fn keeps_files(&self) -> bool {
        !matches!(self.root, OutputRoot::Nowhere)
    }

    /// Allows files written so far to be replaced by newer versions.
    pub(crate) fn begin_again(&mut self) {
        self.taken.clear();
    }

    /// Returns the number of the last figure; the next one gets the next number.
    pub(crate) fn figures(&self) -> usize {
        self.shown[FileKind::Image as usize]
    }

    /// Saves a displayed value, if a file shows it better than its text: an image, a page for a browser, or data. The program goes on if
    /// that fails; the next [`OutputDirectory::copy`] reports it.
    pub(crate) fn figure(&mut self, bundle: &MimeBundle) -> Option<(FileKind, PathBuf)> {
        let (form, ending, data) =
            FileKind::of(bundle).filter(|(_, _, data)| self.keeps_files() && !data.is_empty())?;
        let number = &mut self.shown[form as usize];
        *number += 1;
        let name = format!("{FIGURES}/{}{number}.{ending}", form.prefix());
        match self.write(&name, data) {
            Ok(path) => Some((form, path)),
            Err(error) => {
                self.unsaved.get_or_insert(error);
                None
            }
        }
    }

    /// Returns true if a displayed value could not be saved.
    pub(crate) fn has_unsaved(&self) -> bool {
        self.unsaved.is_some()
    }

    /// Copies files out of the workspace. Files that no longer exist are skipped. The error is the first one, of displayed values, too; the
    /// other files are there all the same.
    pub(crate) async fn copy(
        &mut self,
        from: &mut impl OutputFiles,
        files: &[FileEntry],
    ) -> anyhow::Result<Vec<SavedFile>> {
        let wanted: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let there = from.files().await.context("cannot list the workspace")?;
        let (mut saved, mut left, mut failed) = (Vec::new(), from.limits().disk, self.unsaved.take());
        for entry in there.into_iter().filter(|entry| wanted.contains(entry.path.as_str())) {
            let path = match &self.root {
                OutputRoot::Nowhere => None,
                OutputRoot::Given(_) | OutputRoot::Unnamed(_) => {
                    let copied = async {
                        let path = self.place(&entry.path)?;
                        let bytes = copy_out(from, &entry.path, &path, left).await;
                        let bytes = bytes.with_context(|| format!("cannot write {}", path.display()))?;
                        anyhow::Ok((path, bytes))
                    };
                    match copied.await.with_context(|| format!("cannot copy {}", crate::terminal::name(&entry.path))) {
                        Ok((path, bytes)) => {
                            left = left.saturating_sub(bytes);
                            Some(path)
                        }
                        Err(error) => {
                            failed.get_or_insert(error);
                            continue;
                        }
                    }
                }
            };
            saved.push(SavedFile { entry, path });
        }
        match failed {
            None => Ok(saved),
            Some(error) => Err(beside(error, &saved)),
        }
    }

    /// Writes a file of our own.
    pub(crate) fn write(&mut self, name: &str, data: &[u8]) -> anyhow::Result<PathBuf> {
        let path = self.place(name)?;
        write_whole(&path, data).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn root(&mut self) -> anyhow::Result<PathBuf> {
        match &mut self.root {
            OutputRoot::Given(path) | OutputRoot::Unnamed(Some(path)) => Ok(path.clone()),
            OutputRoot::Unnamed(none) => Ok(none.insert(make_unnamed()?).clone()),
            OutputRoot::Nowhere => anyhow::bail!("files are not wanted"),
        }
    }

    /// Returns the path for a file of this name, after making its directory.
    pub(crate) fn place(&mut self, name: &str) -> anyhow::Result<PathBuf> {
        let root = self.root()?;
        let mut parts = harmless(name);
        let last = parts.pop().unwrap_or_else(|| "_".to_owned());
        std::fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
        let mut directory = root;
        for part in parts {
            directory.push(part);
            make_directory(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let path = free(&directory.join(last), |path| self.taken.contains(path) || path.is_dir());
        self.taken.insert(path.clone());
        Ok(path)
    }
}

/// The form of a displayed value that is saved as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// PNG or JPEG.
    Image,
    /// HTML or SVG.
    Page,
    /// JSON, such as that of a Plotly or Vega-Lite chart.
    Data,
}

impl FileKind {
    const ALL: [Self; 3] = [Self::Image, Self::Page, Self::Data];

    /// The form as people call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Page => "page",
            Self::Data => "data",
        }
    }

    /// The beginning of the names of its files.
    fn prefix(self) -> &'static str {
        match self {
            Self::Image => "figure-",
            Self::Page => "page-",
            Self::Data => "data-",
        }
    }

    /// Returns the form in which a value is saved, with the file's extension and content. A table also has HTML, but is shown as text.
    fn of(bundle: &MimeBundle) -> Option<(Self, &'static str, &[u8])> {
        if let Some((mime, data)) = bundle.image() {
            return Some((Self::Image, if mime == "image/jpeg" { "jpg" } else { "png" }, data));
        }
        let is_chart = |mime: &str| mime.starts_with("application/vnd.") && mime.ends_with("+json");
        let chart = bundle.0.iter().find(|(mime, _)| is_chart(mime));
        let page = bundle.page().map(|(mime, page)| (mime == "text/html", page.as_bytes()));
        let page = page.or_else(|| Some((true, content(chart.and(bundle.get("text/html"))?))));
        if let Some((is_html, page)) = page {
            return Some((Self::Page, if is_html { "html" } else { "svg" }, page));
        }
        let data =
            chart.map(|(_, data)| data).or_else(|| bundle.get("application/json").filter(|_| bundle.is_object()));
        Some((Self::Data, "json", content(data?)))
    }
}

fn content(data: &MimeData) -> &[u8] {
    match data {
        MimeData::Text(text) => text.as_bytes(),
        MimeData::Binary(bytes) => bytes,
    }
}

/// Makes the default directory.
fn make_unnamed() -> anyhow::Result<PathBuf> {
    for number in 1..=MAX_UNNAMED {
        let name = if number == 1 { UNNAMED.to_owned() } else { format!("{UNNAMED}-{number}") };
        match std::fs::create_dir(&name) {
            Ok(()) => return Ok(name.into()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => break,
        }
    }
    let made =
        tempfile::Builder::new().prefix("aludel-").tempdir().context("cannot make a directory; name one by --out")?;
    Ok(made.keep())
}

/// Returns the highest number of a figure in a directory, 0 if there is none.
fn last(directory: &Path, prefix: &str) -> usize {
    let numbers = std::fs::read_dir(directory).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix(prefix)?.split(['.', '-']).next()?.parse::<u32>().ok()
    });
    numbers.max().unwrap_or(0) as usize
}

fn unwritable(path: &Path, error: &io::Error) -> anyhow::Error {
    usage(format!("--out {}: {error}", path.display()))
}

/// The parts of a path, each of which is a plain visible name.
fn harmless(path: &str) -> Vec<String> {
    let parts = Path::new(path).components().filter_map(|component| match component {
        Component::Normal(part) => Some(part.to_string_lossy()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
    });
    parts
        .map(|part| {
            let part: String =
                part.chars().map(|letter| if crate::terminal::is_harmless(letter) { letter } else { '_' }).collect();
            // A leading dot would hide the file or make a `.bashrc` of it; a dash would make it an option.
            let part = if part.starts_with(['.', '-']) { format!("_{part}") } else { part };
            shortened(&part)
        })
        .collect()
}

/// A name that leaves room for a number, with its ending.
fn shortened(name: &str) -> String {
    if name.len() <= LONGEST {
        return name.to_owned();
    }
    let (stem, ending) = name.rsplit_once('.').filter(|(_, ending)| ending.len() <= 16).unwrap_or((name, ""));
    let dot = if ending.is_empty() { "" } else { "." };
    format!(
        "{}{dot}{ending}",
        stem.get(..stem.floor_char_boundary(LONGEST - dot.len() - ending.len())).unwrap_or_default()
    )
}

/// Makes a directory unless it exists. A symbolic link does not count: it might lead outside.
fn make_directory(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::other("something else of that name is there")),
        Err(_) => std::fs::create_dir(path),
    }
}

/// The path, or the next similar one that is free: `a.png`, `a-2.png`.
fn free(path: &Path, taken: impl Fn(&Path) -> bool) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    let mut candidate = path.to_path_buf();
    for number in 2.. {
        if !taken(&candidate) {
            break;
        }
        candidate = path.with_file_name(format!("{stem}-{number}{ending}"));
    }
    candidate
}

/// Copies a file of at most `limit` bytes out of the workspace. Returns its size.
async fn copy_out(made: &mut impl OutputFiles, from: &str, to: &Path, limit: u64) -> anyhow::Result<u64> {
    let mut file = made.open(from, limit).await?;
    let to = to.to_path_buf();
    Ok(tokio::task::spawn_blocking(move || write_whole(&to, &mut file)).await??)
}

/// Writes a file that atomically replaces an existing one. Returns its size.
fn write_whole(path: &Path, mut data: impl Read) -> io::Result<u64> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().permissions(readable()).tempfile_in(directory)?;
    let bytes = io::copy(&mut data, &mut file)?;
    file.persist(path)?;
    Ok(bytes)
}

/// An error of one file, with the others that are there.
fn beside(error: anyhow::Error, saved: &[SavedFile]) -> anyhow::Error {
    let paths: Vec<_> = saved.iter().filter_map(|file| file.path.as_deref()).map(|path| path.display()).collect();
    let named: Vec<_> = paths.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    match paths.len().saturating_sub(MAX_NAMED) {
        0 if named.is_empty() => error,
        0 => error.context(format!("not all files are saved, but {}", named.join(", "))),
        more => error.context(format!("not all files are saved, but {} and {more} more", named.join(", "))),
    }
}

/// Permissions of ordinary files; the umask takes its part.
fn readable() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside_and_visible() {
        for (name, parts) in [
            ("a/b.csv", vec!["a", "b.csv"]),
            ("../../etc/passwd", vec!["etc", "passwd"]),
            ("/etc/passwd", vec!["etc", "passwd"]),
            (".bashrc", vec!["_.bashrc"]),
            (".git/hooks/x", vec!["_.git", "hooks", "x"]),
            ("-rf", vec!["_-rf"]),
            ("a\u{1b}[2J\nb", vec!["a_[2J_b"]),
            ("..", vec![]),
        ] {
            assert_eq!(harmless(name), parts, "{name}");
        }
    }

    #[test]
    fn nothing_of_this_run_is_overwritten_and_the_past_is() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("a.txt"), "before").unwrap();
        let mut out = OutputDirectory::directory(home.path().to_path_buf());
        let paths = ["a.txt", "./a.txt", "b/a.txt"].map(|name| out.write(name, name.as_bytes()).unwrap());
        let names = paths.each_ref().map(|path| path.strip_prefix(home.path()).unwrap().to_str().unwrap());
        assert_eq!(names, ["a.txt", "a-2.txt", "b/a.txt"]);
        assert_eq!(std::fs::read_to_string(&paths[0]).unwrap(), "a.txt");
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 3);
    }

    #[test]
    fn long_names_keep_their_ending_and_leave_room_for_a_number() {
        let long = format!("{}é.csv", "x".repeat(250));
        let short = shortened(&long);
        assert!(short.len() <= LONGEST && short.ends_with("x.csv"), "{short}");
        assert_eq!(shortened(&"é".repeat(127)).len(), LONGEST);
        let home = tempfile::tempdir().unwrap();
        let mut out = OutputDirectory::directory(home.path().to_path_buf());
        for _ in 0..2 {
            out.write(&long, b"x").unwrap();
        }
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 2);
    }

    #[test]
    fn figures_of_an_earlier_run_stay() {
        let home = tempfile::tempdir().unwrap();
        let shown = MimeBundle(vec![("image/png".into(), aludel_sandbox::MimeData::Binary(b"png".to_vec()))]);
        for run in 0..2 {
            let mut out = OutputDirectory::directory(home.path().to_path_buf());
            for figure in 1..3 {
                let (_, path) = out.figure(&shown).unwrap();
                assert_eq!(path, home.path().join(format!("{FIGURES}/figure-{}.png", run * 2 + figure)));
            }
        }
    }

    #[test]
    fn pages_and_data_are_saved_and_tables_are_not() {
        let home = tempfile::tempdir().unwrap();
        let mut out = OutputDirectory::directory(home.path().to_path_buf());
        let mut saved = |forms: &[(&str, &str)]| {
            let forms = forms.iter().map(|(mime, text)| ((*mime).to_owned(), MimeData::Text((*text).to_owned())));
            let saved = out.figure(&MimeBundle(forms.collect()));
            saved.map(|(_, path)| path.file_name().unwrap().to_str().unwrap().to_owned())
        };
        let (name, chart) = (("text/plain", "<a.B object>"), ("application/vnd.plotly.v1+json", "{}"));
        assert_eq!(saved(&[name, ("text/html", "<b>1</b>")]).as_deref(), Some("page-1.html"));
        assert_eq!(saved(&[("image/svg+xml", "<svg/>")]).as_deref(), Some("page-2.svg"));
        assert_eq!(saved(&[name, ("application/json", "{}")]).as_deref(), Some("data-1.json"));
        assert_eq!(saved(&[("text/plain", "Figure({\n})"), chart]).as_deref(), Some("data-2.json"));
        assert_eq!(saved(&[("text/plain", "Chart(...)"), chart, ("text/html", "<p>")]).as_deref(), Some("page-3.html"));
        assert_eq!(saved(&[("text/plain", "   a\n0  1"), ("text/html", "<table/>")]), None);
        assert_eq!(saved(&[("text/plain", "[1]"), ("application/json", "[1]")]), None);
    }

    #[test]
    fn links_are_not_followed() {
        let (home, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(elsewhere.path(), home.path().join("sub")).unwrap();
        let target = elsewhere.path().join("target");
        std::os::unix::fs::symlink(&target, home.path().join("link")).unwrap();
        let mut out = OutputDirectory::directory(home.path().to_path_buf());
        assert!(out.write("sub/a.txt", b"x").is_err());
        out.write("link", b"x").unwrap();
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        assert!(home.path().join("link").symlink_metadata().unwrap().is_file());
    }
}
