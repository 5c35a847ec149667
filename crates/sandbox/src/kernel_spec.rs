//! A language as data.

/// A kernel's language: how its programs are started, and how models know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSpec {
    /// The language, in lower case.
    pub language: String,
    /// The command that starts the zygote, as seen from inside: the interpreter and its arguments. The kernel's programs are in
    /// [`KernelSpec::PROGRAMS`].
    pub argv: Vec<String>,
    /// The environment, which is all that sandboxes inherit.
    pub env: Vec<(String, String)>,
    /// The kernel's programs: files in [`KernelSpec::PROGRAMS`], by name.
    pub programs: Vec<(String, String)>,
    /// The name of the tool that models are offered.
    pub tool_name: String,
    /// The words by which fenced code says that it is of this language.
    pub fences: Vec<String>,
}

/// The name of the tool that runs Python.
pub const PYTHON_TOOL: &str = "python";

/// What every process of a sandbox has in its environment.
const ENV: [(&str, &str); 7] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/tmp"),
    ("USER", "sandbox"),
    ("LOGNAME", "sandbox"),
    ("LANG", "C.UTF-8"),
    ("TZ", "UTC"),
    ("TMPDIR", "/tmp"),
];

/// What Python and its libraries have besides. Threads stay off until a kernel raises them: a fork copies one thread.
const PYTHON_ENV: [(&str, &str); 9] = [
    ("MPLCONFIGDIR", "/tmp/.matplotlib"),
    ("MPLBACKEND", "Agg"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("NUMEXPR_NUM_THREADS", "1"),
    // Arrow's allocator would start a thread when it is imported, and the zygote must have one only.
    ("JE_ARROW_MALLOC_CONF", "background_thread:false"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PYTHONUNBUFFERED", ""),
];

/// The kernel's programs for Python.
const PYTHON_PROGRAMS: [(&str, &str); 2] =
    [("zygote.py", include_str!("../kernel/zygote.py")), ("kernel.py", include_str!("../kernel/kernel.py"))];

impl KernelSpec {
    /// The directory of the kernel's programs, as seen from inside.
    pub const PROGRAMS: &str = "/run/aludel";

    /// Python, run by this interpreter.
    pub fn python(interpreter: &str) -> Self {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Self {
            language: "python".into(),
            // -s keeps a user's own packages out.
            argv: vec![interpreter.to_owned(), "-s".into(), format!("{}/zygote.py", Self::PROGRAMS)],
            env: ENV.iter().chain(&PYTHON_ENV).map(owned).collect(),
            programs: PYTHON_PROGRAMS.iter().map(owned).collect(),
            tool_name: PYTHON_TOOL.into(),
            fences: ["python", "py", "python3"].map(str::to_owned).into(),
        }
    }
}
