//! A language as data.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use crate::Language;

/// A kernel's language: the way to start it, and its description for models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSpec {
    /// The language, in lower case.
    pub language: String,
    /// The language as people write it.
    pub title: String,
    /// The command that starts the zygote, as seen from inside: the interpreter and its arguments. The kernel's scripts are in
    /// [`KernelSpec::SCRIPTS_DIRECTORY`].
    pub argv: Vec<String>,
    /// The environment, which is all that sandboxes inherit.
    pub env: Vec<(String, String)>,
    /// The kernel's scripts: files in [`KernelSpec::SCRIPTS_DIRECTORY`], by name.
    pub scripts: Vec<(String, String)>,
    /// Further languages with known kernels. There may be others.
    pub further: Vec<Language>,
    /// True if a copy of the kernel from before a cell takes over when the cell ends the kernel.
    pub checkpoints: bool,
    /// The name of the tool that models are offered.
    pub tool_name: String,
    /// The properties of the kernel that models learn.
    pub description: String,
    /// The advice about its use that models are given.
    pub advice: String,
    /// The info strings of fenced code in this language, the usual one first.
    pub fences: Vec<String>,
}

/// The name of the tool that runs Python.
pub const PYTHON_TOOL: &str = "python";

/// The environment of every process of a sandbox.
const ENV: [(&str, &str); 7] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/tmp"),
    ("USER", "sandbox"),
    ("LOGNAME", "sandbox"),
    ("LANG", "C.UTF-8"),
    ("TZ", "UTC"),
    ("TMPDIR", "/tmp"),
];

/// Environment variables with the number of threads on which libraries compute.
pub(crate) const THREAD_VARIABLES: [&str; 5] =
    ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LOKY_MAX_CPU_COUNT"];

/// Environment variables for Python and its libraries. Threads stay off until a kernel enables them: a fork copies only one thread.
const PYTHON_ENV: [(&str, &str); 10] = [
    ("MPLCONFIGDIR", "/tmp/.matplotlib"),
    ("MPLBACKEND", "Agg"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("NUMEXPR_NUM_THREADS", "1"),
    // Of joblib, which would look for the machine's processors in `/proc`.
    ("LOKY_MAX_CPU_COUNT", "1"),
    // Arrow's allocator would start a thread on import, and the zygote must have only one.
    ("JE_ARROW_MALLOC_CONF", "background_thread:false"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PYTHONUNBUFFERED", ""),
];

/// The program that forks kernels, or a trial kernel.
const ZYGOTE: (&str, &str) = ("zygote.py", include_str!("../kernel/zygote.py"));
/// The zygote's memory.
const HEAP: (&str, &str) = ("zygote_heap.py", include_str!("../kernel/zygote_heap.py"));
/// Objects without counts of references.
const IMMORTAL: (&str, &str) = ("zygote_immortal.py", include_str!("../kernel/zygote_immortal.py"));
/// Forks without hooks.
const FORK: (&str, &str) = ("kernel_fork.py", include_str!("../kernel/kernel_fork.py"));
/// Speaks with the host.
const CHANNEL: (&str, &str) = ("kernel_channel.py", include_str!("../kernel/kernel_channel.py"));

/// The kernel's scripts for Python.
const PYTHON_SCRIPTS: [(&str, &str); 23] = [
    ZYGOTE,
    HEAP,
    IMMORTAL,
    FORK,
    CHANNEL,
    ("kernel.py", include_str!("../kernel/kernel.py")),
    ("kernel_charts.py", include_str!("../kernel/kernel_charts.py")),
    ("kernel_checkpoint.py", include_str!("../kernel/kernel_checkpoint.py")),
    ("kernel_errors.py", include_str!("../kernel/kernel_errors.py")),
    ("kernel_exit.py", include_str!("../kernel/kernel_exit.py")),
    ("kernel_fonts.py", include_str!("../kernel/kernel_fonts.py")),
    ("kernel_jupyter.py", include_str!("../kernel/kernel_jupyter.py")),
    ("kernel_limits.py", include_str!("../kernel/kernel_limits.py")),
    ("kernel_output.py", include_str!("../kernel/kernel_output.py")),
    ("kernel_pages.py", include_str!("../kernel/kernel_pages.py")),
    ("kernel_preload.py", include_str!("../kernel/kernel_preload.py")),
    ("kernel_shell.py", include_str!("../kernel/kernel_shell.py")),
    ("kernel_tasks.py", include_str!("../kernel/kernel_tasks.py")),
    ("kernel_tools.py", include_str!("../kernel/kernel_tools.py")),
    ("kernel_input.py", include_str!("../kernel/kernel_input.py")),
    ("kernel_width.py", include_str!("../kernel/kernel_width.py")),
    ("forms.py", include_str!("../kernel/forms.py")),
    (FILES_PROGRAM, include_str!("../kernel/files.py")),
];

/// The program among them that serves files by path.
pub(crate) const FILES_PROGRAM: &str = "files.py";

/// Files of a template that describe its kernels of further languages.
const FURTHER: [(&str, &str); 4] = [
    ("usr/local/bin/deno", "javascript"),
    ("usr/local/share/jupyter/kernels/javascript", "javascript"),
    ("usr/local/share/jupyter/kernels/ir", "r"),
    ("usr/share/jupyter/kernels/ir", "r"),
];

/// The kernel of a backend that names none.
static DEFAULT: LazyLock<Arc<KernelSpec>> = LazyLock::new(|| Arc::new(KernelSpec::python("python3")));

impl KernelSpec {
    /// The directory of the kernel's scripts, as seen from inside.
    pub const SCRIPTS_DIRECTORY: &str = "/run/aludel";

    /// The kernel of a backend that names none.
    pub(crate) fn default_kernel() -> &'static Arc<Self> {
        &DEFAULT
    }

    /// The word that opens a fenced block of the language.
    pub fn fence(&self) -> &str {
        self.fences.first().unwrap_or(&self.language)
    }

    /// The same kernel for a single program: it imports only what the program imports. It starts in a third of the time; the program's
    /// imports come on top.
    #[must_use]
    pub fn lean(mut self) -> Self {
        self.argv.push("--lean".into());
        self
    }

    /// The same kernel with this seed of Python's hashes, and all Python that its programs start.
    #[must_use]
    pub fn with_hash_seed(mut self, seed: u32) -> Self {
        self.env.push(("PYTHONHASHSEED".into(), seed.to_string()));
        self
    }

    /// The same kernel with these modules imported ahead.
    #[must_use]
    pub(crate) fn preloading(mut self, modules: &[String]) -> Self {
        if !modules.is_empty() {
            self.argv.push(format!("--preload={}", modules.join(",")));
        }
        self
    }

    /// The same kernel in the template of this directory.
    #[must_use]
    pub(crate) fn within(mut self, root: &Path) -> Self {
        let there = FURTHER.iter().filter(|(file, _)| root.join(file).exists());
        self.further = there.filter_map(|(_, language)| language.parse().ok()).collect();
        self.further.dedup();
        self
    }

    /// Python without a package, for a trial of a sandbox.
    pub(crate) fn trial(interpreter: &str) -> Self {
        let scripts = [ZYGOTE, HEAP, IMMORTAL, FORK, CHANNEL, ("kernel.py", include_str!("../kernel/trial.py"))];
        let scripts = scripts.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        Self { scripts, checkpoints: false, ..Self::python(interpreter).lean() }
    }

    /// Python, run by this interpreter.
    pub fn python(interpreter: &str) -> Self {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Self {
            language: "python".into(),
            title: "Python".into(),
            // -s leaves out the user's own packages.
            argv: vec![interpreter.to_owned(), "-s".into(), format!("{}/zygote.py", Self::SCRIPTS_DIRECTORY)],
            env: ENV.iter().chain(&PYTHON_ENV).map(owned).collect(),
            scripts: PYTHON_SCRIPTS.iter().map(owned).collect(),
            further: Vec::new(),
            checkpoints: true,
            tool_name: PYTHON_TOOL.into(),
            description: "Runs Python in a stateful notebook: variables persist between calls, top-level await works, \
                the last expression's value is shown."
                .into(),
            advice: "Show charts with plt.show() and save what the user should keep.".into(),
            fences: ["python", "py", "python3"].map(str::to_owned).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel");

    #[test]
    fn a_template_with_a_kernel_has_its_language_once() {
        let root = tempfile::tempdir().unwrap();
        let further = || KernelSpec::python("").within(root.path()).further;
        assert!(further().is_empty());
        for (file, language) in FURTHER {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
            let further = further();
            assert_eq!(further.last().map(Language::as_str), Some(language));
            assert!(further.len() <= 2 && further[0].as_str() == "javascript");
        }
    }

    #[test]
    fn each_part_of_the_kernel_program_is_carried_into_the_sandbox() {
        for entry in Path::new(DIRECTORY).read_dir().unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.starts_with("kernel") || name.starts_with("zygote") {
                assert!(PYTHON_SCRIPTS.iter().any(|(program, _)| *program == name), "{name}");
            }
        }
    }

    #[test]
    fn the_kernel_programs_own_tests_pass() {
        let run = "import sys, unittest; sys.path.insert(0, '.'); unittest.main(None, argv=['', 'discover', '-p', 'tests_*.py'])";
        let ran = Command::new("python3").args(["-I", "-B", "-c", run]).current_dir(DIRECTORY).output().unwrap();
        let output = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && output.contains("OK") && !output.contains("Ran 0"), "{output}");
    }
}
