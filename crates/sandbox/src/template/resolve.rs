//! Resolution of a person's requirements to a list of exact versions and hashes, by pip. Installs nothing, and runs no code of a package
//! unless packages may be built.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::command::run;
use super::packages::{PipOptions, pip};
use super::recipe::Recipe;
use super::site::BuildSite;
use super::{BuildProgress, LOCK, at};
use crate::Error;

/// The package that the kernel needs to run cells, besides the requirements.
const KERNEL: &str = "ipython>=8,<10\n";
/// Bytes of the longest requirements file.
const MAX_REQUIREMENTS: u64 = 1 << 20;
/// Packages that one template may have.
const MAX_PACKAGES: usize = 2000;
/// Options of a requirements file that say where packages are; the installation needs them too.
const OPTIONS: &[&str] = &[
    "-i ",
    "--index-url",
    "--extra-index-url",
    "--no-index",
    "-f ",
    "--find-links",
    "--trusted-host",
    "--prefer-binary",
    "--pre",
];

/// pip's report, as far as it is needed.
#[derive(Debug, Deserialize)]
struct Report {
    install: Vec<ReportItem>,
}

#[derive(Debug, Deserialize)]
struct ReportItem {
    download_info: Download,
    /// True if the requirement names a file, not a version.
    #[serde(default)]
    is_direct: bool,
    metadata: Metadata,
}

#[derive(Debug, Deserialize)]
struct Download {
    url: String,
    /// Absent for a directory or a repository.
    archive_info: Option<Archive>,
}

#[derive(Debug, Deserialize)]
struct Archive {
    /// `sha256=…`, as older versions have it.
    hash: Option<String>,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    version: String,
}

/// Returns the list for a recipe, and pip's options to install it.
pub(super) fn resolve(
    site: &BuildSite<'_>,
    recipe: &Recipe,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<(String, PipOptions), Error> {
    let text = recipe.requirements.as_deref().map(read).transpose()?.unwrap_or_default();
    let mut given = RequirementsFile::of(&text);
    let options = PipOptions {
        find_links: recipe.find_links.clone(),
        builds: recipe.allow_source,
        lines: text.lines().map(str::trim).filter(|line| is_option(line)).map(str::to_owned).collect(),
    };
    let (kernel, report) = (site.root.join("kernel.in"), site.root.join("report.json"));
    let ours = if recipe.with_default { given.take_default(LOCK) } else { String::new() };
    fs::write(&kernel, KERNEL.to_owned() + &ours).map_err(at(&kernel))?;
    let mut command = pip(site);
    command.args(["install", "--dry-run", "--ignore-installed", "--no-color", "--progress-bar", "off", "--report"]);
    command.arg(&report);
    options.add_to(&mut command);
    let bare = site.root.join("requirements.in");
    command.arg("--requirement").arg(&kernel);
    if text.contains("--hash=") {
        // With hashes, pip would demand one for each package that the kernel needs as well. They are compared below.
        fs::write(&bare, &given.bare).map_err(at(&bare))?;
        command.arg("--requirement").arg(&bare);
    } else if let Some(file) = recipe.requirements.as_ref().filter(|file| file.is_file()) {
        command.arg("--requirement").arg(file);
    } else if !text.is_empty() {
        // A pipe, which can be read once.
        fs::write(&bare, &text).map_err(at(&bare))?;
        command.arg("--requirement").arg(&bare);
    }
    progress(BuildProgress::Phase { name: "resolving the requirements", total: 0 });
    let mut done = 0;
    let mut line = |line: &str| {
        if let Some(rest) = line.trim().strip_prefix("Collecting ") {
            done += 1;
            progress(BuildProgress::Step { done, what: rest.split([' ', ';']).next().unwrap_or(rest).to_owned() });
        }
        Ok(())
    };
    run(&mut command, "resolve the requirements", site.lock, &mut line).map_err(|error| mend(error, recipe))?;
    let said = fs::read(&report).map_err(at(&report))?;
    let said: Report = serde_json::from_slice(&said).map_err(|error| at(&report)(error.into()))?;
    for file in [&kernel, &report, &bare] {
        match fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at(file)(error)),
            _ => {}
        }
    }
    Ok((list(said, &given)?, options))
}

/// Adds the way out where a package may have no wheel.
fn mend(error: Error, recipe: &Recipe) -> Error {
    match error {
        Error::Template(words) if !recipe.allow_source && words.contains("No matching distribution") => {
            Error::Template(format!("{words}\nA package without a wheel for this Python needs --allow-source."))
        }
        Error::Template(words) if recipe.with_default && words.contains("conflicting dependencies") => {
            Error::Template(format!(
                "{words}\nThe packages of the default template come in its versions (--with-default) unless the file of --requirements names \
                 others."
            ))
        }
        error => error,
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let file = File::open(path).map_err(at(path))?;
    let mut text = String::new();
    file.take(MAX_REQUIREMENTS + 1).read_to_string(&mut text).map_err(at(path))?;
    if text.len() as u64 > MAX_REQUIREMENTS {
        return Err(Error::Template(format!("{}: a requirements file has at most 1 MiB", path.display())));
    }
    Ok(text)
}

fn is_option(line: &str) -> bool {
    OPTIONS.iter().any(|option| line.starts_with(option))
}

/// A requirements file and the hashes in it.
#[derive(Debug, Default)]
struct RequirementsFile {
    /// The same without hashes.
    bare: String,
    /// The hashes of SHA-256 by package.
    hashes: BTreeMap<String, BTreeSet<String>>,
    /// The packages with a version or a place of their own.
    versioned: BTreeSet<String>,
}

impl RequirementsFile {
    fn of(text: &str) -> Self {
        let mut given = Self::default();
        for line in text.replace("\\\r\n", " ").replace("\\\n", " ").lines() {
            let is_hash = |word: &&str| word.starts_with("--hash=");
            let name: String = line.trim().chars().take_while(|letter| is_of_name(*letter)).collect();
            for hash in line.split_whitespace().filter(is_hash) {
                let hashes = given.hashes.entry(normal(&name)).or_default();
                hashes.extend(hash.strip_prefix("--hash=sha256:").map(str::to_ascii_lowercase));
            }
            let words: Vec<&str> = line.split_whitespace().filter(|word| !is_hash(word)).collect();
            if words.join(" ").split([';', '#']).next().is_some_and(|package| package.contains(['=', '<', '>', '@'])) {
                given.versioned.insert(normal(&name));
            }
            given.bare.push_str(&words.join(" "));
            given.bare.push('\n');
        }
        given
    }

    /// Takes over the hashes of the default template's `lock`, and returns its lines without them. Leaves out the packages to which this
    /// file gives a version.
    fn take_default(&mut self, lock: &str) -> String {
        let Self { bare, hashes, .. } = Self::of(lock);
        let is_ours = |name: &str| !self.versioned.contains(name);
        let lines = bare.lines().filter(|line| is_ours(line.split("==").next().unwrap_or(line)));
        let lines = lines.map(|line| format!("{line}\n")).collect();
        self.hashes.extend(hashes.into_iter().filter(|(name, _)| is_ours(name)));
        lines
    }
}

/// The list from pip's report: a line for each package, sorted by name.
fn list(report: Report, given: &RequirementsFile) -> Result<String, Error> {
    if report.install.len() > MAX_PACKAGES {
        return Err(Error::Template(format!("the requirements need more than {MAX_PACKAGES} packages")));
    }
    let lines = report.install.into_iter().map(|item| entry(item, given)).collect::<Result<BTreeSet<_>, _>>()?;
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

fn entry(item: ReportItem, given: &RequirementsFile) -> Result<String, Error> {
    let ReportItem { download_info: Download { url, archive_info }, is_direct, metadata: Metadata { name, version } } =
        item;
    let unusable = |why: &str| Err(Error::Template(format!("{}: {why}", printable(&name))));
    let is_version = |letter: char| is_of_name(letter) || matches!(letter, '+' | '!');
    if name.is_empty() || !name.chars().all(is_of_name) || !version.chars().all(is_version) {
        return unusable("its name or version is not one of a package");
    }
    let Some(archive) = archive_info else {
        return unusable(
            "a directory or repository cannot be locked by hash; make a wheel of it and name that, or its \
                         directory by --find-links",
        );
    };
    let old = archive.hash.as_deref().and_then(|hash| hash.strip_prefix("sha256="));
    let hash = archive.hashes.get("sha256").map(String::as_str).or(old).unwrap_or_default();
    if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return unusable("pip tells no SHA-256 of it");
    }
    if given.hashes.get(&normal(&name)).is_some_and(|known| !known.contains(hash)) {
        return unusable("the file that pip would install has none of the hashes that the requirements name");
    }
    if is_direct {
        if url.chars().any(|letter| letter.is_whitespace() || letter.is_control()) {
            return unusable("its address has a space; rename the file");
        }
        return Ok(format!("{name} @ {url} --hash=sha256:{hash}"));
    }
    Ok(format!("{name}=={version} --hash=sha256:{hash}"))
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
}

/// A package's name as indexes compare it.
fn normal(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

fn printable(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn listed(items: &str, given: &str) -> Result<String, String> {
        let report = serde_json::from_str(&format!(r#"{{"version": "1", "install": [{items}]}}"#)).unwrap();
        list(report, &RequirementsFile::of(given)).map_err(|error| error.to_string())
    }

    fn item(name: &str, archive: &str, is_direct: bool) -> String {
        format!(
            r#"{{"download_info": {{"url": "file:///w/x.whl", {archive}}}, "is_direct": {is_direct},
                "metadata": {{"name": "{name}", "version": "1.0+cpu"}}}}"#
        )
    }

    #[test]
    fn a_report_becomes_a_list_with_hashes() {
        let new = format!(r#""archive_info": {{"hash": "sha256=0", "hashes": {{"sha256": "{HASH}"}}}}"#);
        let old = format!(r#""archive_info": {{"hash": "sha256={HASH}"}}"#);
        let items = format!("{}, {}", item("b", &old, true), item("A_x", &new, false));
        assert_eq!(
            listed(&items, "").unwrap(),
            format!("A_x==1.0+cpu --hash=sha256:{HASH}\nb @ file:///w/x.whl --hash=sha256:{HASH}\n")
        );
        for (archive, words) in [
            (r#""vcs_info": {"vcs": "git"}"#, "make a wheel of it"),
            (r#""archive_info": {}"#, "no SHA-256"),
            (r#""archive_info": {"hash": "sha256=--option"}"#, "no SHA-256"),
        ] {
            let error = listed(&item("x", archive, false), "").unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(listed(&item("x --option", &new, false), "").is_err());
    }

    #[test]
    fn a_hash_that_was_given_must_be_the_one_that_is_installed() {
        let archive = format!(r#""archive_info": {{"hash": "sha256={HASH}"}}"#);
        let given = |hash: &str| {
            format!("# a comment\nA.x==1.0+cpu ; python_version > '3' \\\n    --hash=sha256:{hash}\nother\n")
        };
        assert_eq!(
            RequirementsFile::of(&given(HASH)).bare,
            "# a comment\nA.x==1.0+cpu ; python_version > '3'\nother\n"
        );
        assert!(listed(&item("a-X", &archive, false), &given(HASH)).is_ok());
        let other = listed(&item("a-X", &archive, false), &given(&HASH.replace('0', "1"))).unwrap_err();
        assert_eq!(other, "a-X: the file that pip would install has none of the hashes that the requirements name");
        assert!(listed(&item("another", &archive, false), &given("1")).is_ok(), "what has no hash gets the index's");
    }

    #[test]
    fn a_package_without_a_wheel_tells_the_way_out() {
        let recipe = |allow_source| Recipe {
            requirements: Some("r".into()),
            with_default: false,
            python: None,
            find_links: Vec::new(),
            preload: Vec::new(),
            allow_source,
            include: Vec::new(),
        };
        let said = |words: &str, allow_source| mend(Error::Template(words.into()), &recipe(allow_source)).to_string();
        assert!(said("No matching distribution found for x", false).ends_with("needs --allow-source."));
        assert_eq!(said("No matching distribution found for x", true), "No matching distribution found for x");
        assert_eq!(said("No space left", false), "No space left");
    }

    #[test]
    fn the_default_packages_come_in_their_versions_unless_the_file_names_others() {
        let lock = format!(
            "a-b==1.0 ; python_version < '3.11' \\\n    --hash=sha256:{HASH}\na-b==2.0 \\\n    --hash=sha256:{HASH}\n\
             c==1.0 \\\n    --hash=sha256:{HASH}\nd==1.0 \\\n    --hash=sha256:{HASH}\n"
        );
        let mut given = RequirementsFile::of("A_b>=3\nc  # == as it is\nd ; python_version > '3'\nother==1\n");
        assert_eq!(given.take_default(&lock), "c==1.0\nd==1.0\n");
        assert_eq!(given.hashes.keys().collect::<Vec<_>>(), ["c", "d"]);
        let all = RequirementsFile::default().take_default(&lock);
        assert_eq!(all, "a-b==1.0 ; python_version < '3.11'\na-b==2.0\nc==1.0\nd==1.0\n");
    }

    #[test]
    fn options_about_places_are_kept_for_the_installation() {
        let kept = ["--index-url https://x", "-f wheels", "--extra-index-url=https://y", "--pre"];
        assert!(kept.iter().all(|line| is_option(line)));
        assert!(!["-r other.txt", "numpy", "--hash=x", "-c x", "idna"].iter().any(|line| is_option(line)));
    }
}
