//! The packages of a template: installed by pip, from a list with hashes.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use aludel_jail::COMPILED_SCRIPTS;

use super::command::run;
use super::pip_output::PipOutput;
use super::site::BuildSite;
use super::{BuildProgress, PYTHON, Package, at, host_python, tree};
use crate::{Error, KernelSpec};

/// The program `pip` inside.
const PIP: &str = "#!/usr/local/bin/python3\nimport runpy\n\nrunpy.run_module(\"pip\", run_name=\"__main__\")\n";

/// Makes the environment, in which there is nothing but pip.
pub(super) fn make_environment(site: &BuildSite<'_>) -> Result<(), Error> {
    let environment = site.environment();
    let mut venv = site.python.command();
    venv.args(["-I", "-m", "venv", "--clear"]).arg(&environment);
    run(&mut venv, "make a virtual environment", site.lock, &mut |_| Ok(()))?;
    // Up to Python 3.11 it comes with the environment, in an unlocked version.
    let mut uninstall = pip(site);
    uninstall.args(["uninstall", "--yes", "setuptools"]);
    run(&mut uninstall, "remove setuptools", site.lock, &mut |_| Ok(()))
}

/// Installs exactly the packages of `lock` into the environment. `options` add sources to pip's own configuration.
pub(super) fn install(
    site: &BuildSite<'_>,
    lock: &str,
    options: &PipOptions,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<(), Error> {
    let list = site.root.join("requirements.lock");
    fs::write(&list, options.lines.iter().map(|line| format!("{line}\n")).chain([lock.to_owned()]).collect::<String>())
        .map_err(at(&list))?;
    let mut output = PipOutput::new(lock.lines().filter(|line| line.contains("==")).count() as u64);
    let mut install = pip(site);
    install.args(["install", "--require-hashes", "--no-compile", "--no-deps", "--no-color", "--progress-bar", "off"]);
    options.add_to(&mut install);
    install.arg("--requirement").arg(&list);
    let mut line = |line: &str| {
        output.line(line, progress);
        Ok(())
    };
    run(&mut install, "install the packages", site.lock, &mut line)?;
    fs::remove_file(&list).map_err(at(&list))
}

/// Options of pip for one template.
#[derive(Debug, Default)]
pub(super) struct PipOptions {
    /// Directories of packages that pip looks into besides its index.
    pub(super) find_links: Vec<PathBuf>,
    /// True if packages may be built here, which runs their code.
    pub(super) builds: bool,
    /// The options of a requirements file, as they stand there.
    pub(super) lines: Vec<String>,
}

impl PipOptions {
    pub(super) fn add_to(&self, command: &mut Command) {
        if !self.builds {
            command.args(["--only-binary", ":all:"]);
        }
        for directory in &self.find_links {
            command.arg("--find-links").arg(directory);
        }
    }
}

/// pip of the environment.
pub(super) fn pip(site: &BuildSite<'_>) -> Command {
    let mut command = Command::new(site.environment().join("bin/python"));
    host_python::clean(&mut command).args(["-I", "-m", "pip", "--disable-pip-version-check", "--no-input"]);
    // Downloads may be larger than a small /tmp. The template's own is empty, and on the disk with enough space.
    command.env("TMPDIR", site.root.join("tmp"));
    command
}

/// Lists the installed packages, by name.
pub(super) fn list(site_packages: &Path) -> Result<Vec<Package>, Error> {
    let mut found = Vec::new();
    for entry in tree::entries(site_packages)? {
        let name = entry.file_name();
        // "pandas-3.0.0.dist-info"
        let parts = name.to_str().and_then(|name| name.strip_suffix(".dist-info")?.rsplit_once('-'));
        if let Some((name, version)) = parts {
            found.push(Package { name: name.replace('_', "-"), version: version.to_owned() });
        }
    }
    found.sort_by_key(|package| package.name.to_lowercase());
    Ok(found)
}

/// Compiles everything with the paths that it will have inside, so that tracebacks do not show the host's. The result is never compared
/// with its source, which is read-only.
pub(super) fn compile(site: &BuildSite<'_>) -> Result<(), Error> {
    let directories = [site.stdlib(), site.site_packages()];
    directories.iter().try_for_each(|directory| compile_directory(site, directory))
}

/// The same for packages that may contain files other than Python of this version: files that do not compile stay as they are.
pub(super) fn compile_leniently(site: &BuildSite<'_>) -> Result<(), Error> {
    compile_directory(site, &site.stdlib())?;
    match compile_directory(site, &site.site_packages()) {
        Ok(()) | Err(Error::Template(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn compile_directory(site: &BuildSite<'_>, directory: &Path) -> Result<(), Error> {
    run(
        &mut compiler(site, "unchecked-hash", &site.root, "/", directory),
        "compile the packages",
        site.lock,
        &mut |_| Ok(()),
    )
}

/// Compiles the kernel's scripts, so that a zygote that starts need not. Of a later version of them, what is compiled here is not used:
/// Python compares it with the script.
pub(super) fn compile_kernel(site: &BuildSite<'_>) -> Result<(), Error> {
    let compiled = site.root.join(COMPILED_SCRIPTS.trim_start_matches('/'));
    fs::create_dir_all(&compiled).map_err(at(&compiled))?;
    let directory = compiled.parent().unwrap_or(&compiled);
    let scripts = KernelSpec::python(PYTHON).scripts;
    let paths: Vec<PathBuf> = scripts.iter().map(|(name, _)| directory.join(name)).collect();
    for (path, (_, text)) in paths.iter().zip(&scripts) {
        fs::write(path, text).map_err(at(path))?;
    }
    let mut compiler = compiler(site, "checked-hash", directory, KernelSpec::SCRIPTS_DIRECTORY, directory);
    run(&mut compiler, "compile the kernel", site.lock, &mut |_| Ok(()))?;
    paths.iter().try_for_each(|path| fs::remove_file(path).map_err(at(path)))
}

/// Compiles everything below a directory, which will be at `inside` where `outside` is now.
fn compiler(site: &BuildSite<'_>, invalidation: &str, outside: &Path, inside: &str, directory: &Path) -> Command {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut command = site.python.command();
    command.args(["-I", "-m", "compileall", "-q", "-f", "-j", &jobs, "--invalidation-mode", invalidation]);
    command.args(["-p", inside, "-s"]).arg(outside).arg(directory);
    command
}

/// Rewrites the environment's paths from the build directory to those inside the template.
pub(super) fn settle(site: &BuildSite<'_>) -> Result<(), Error> {
    let environment = site.environment();
    let configuration = environment.join("pyvenv.cfg");
    let text = format!("home = /usr/bin\ninclude-system-site-packages = false\nversion = {}\n", site.python.version);
    fs::write(&configuration, text).map_err(at(&configuration))?;
    let programs = environment.join("bin");
    for entry in tree::entries(&programs)? {
        let name = entry.file_name();
        let name = name.to_string_lossy().to_lowercase();
        let path = entry.path();
        // All links are to the interpreter, whatever their names: in Python 3.14 there is one with the letter pi.
        if path.is_symlink() || name.starts_with("python") || name.starts_with("activate") {
            fs::remove_file(&path).map_err(at(&path))?;
        } else if name.starts_with("pip") {
            fs::write(&path, PIP).map_err(at(&path))?;
        } else {
            correct_script(&path, &environment.to_string_lossy())?;
        }
    }
    let pip = site.site_packages().join("pip/__main__.py");
    fs::write(&pip, include_str!("pip_main.py")).map_err(at(&pip))?;
    let name = site.python.name();
    let interpreter = format!("/usr/bin/{name}");
    for (link, target) in [(&*name, &*interpreter), ("python3", &*name), ("python", "python3")] {
        let path = programs.join(link);
        symlink(target, &path).map_err(at(&path))?;
    }
    Ok(())
}

/// Makes a script start with the interpreter inside. Skips programs that are not text.
fn correct_script(path: &Path, environment: &str) -> Result<(), Error> {
    match fs::read_to_string(path) {
        Ok(text) => fs::write(path, text.replace(environment, "/usr/local")).map_err(at(path)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(()),
        Err(error) => Err(at(path)(error)),
    }
}
