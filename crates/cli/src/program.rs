//! A program from the command line, with all that it is given.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use aludel_agent::size;
use aludel_sandbox::{CommandLine, KernelOptions};
use anyhow::Context as _;

use crate::config::HostEnvironment;
use crate::exit::usage;
use crate::inputs::{InputFile, Inputs};
use crate::notebook::Notebook;

/// Bytes of a program. A kernel takes no more at once.
const MAX_PROGRAM: u64 = 16 << 20;
/// Bytes of a notebook, with the outputs of an earlier run.
const MAX_NOTEBOOK: u64 = 64 << 20;
/// Bytes of standard input.
const MAX_INPUT: u64 = 64 << 20;
/// Bytes of all arguments, and of all environment variables.
const MAX_ARGUMENTS: usize = 128 << 10;
/// The name of the stdin file in the workspace, until the kernel has opened it.
const INPUT: &str = ".aludel-stdin";
/// The program of a directory, as for `python DIRECTORY`.
const MAIN: &str = "__main__.py";
/// Endings of programs in other languages, and their names.
const OTHER_LANGUAGES: [(&str, &str); 36] = [
    ("bash", "Bash"),
    ("bat", "Batch"),
    ("c", "C"),
    ("cc", "C++"),
    ("cjs", "JavaScript"),
    ("clj", "Clojure"),
    ("cpp", "C++"),
    ("cs", "C#"),
    ("dart", "Dart"),
    ("ex", "Elixir"),
    ("exs", "Elixir"),
    ("fish", "Fish"),
    ("go", "Go"),
    ("groovy", "Groovy"),
    ("hs", "Haskell"),
    ("java", "Java"),
    ("jl", "Julia"),
    ("js", "JavaScript"),
    ("jsx", "JavaScript"),
    ("kt", "Kotlin"),
    ("kts", "Kotlin"),
    ("lua", "Lua"),
    ("mjs", "JavaScript"),
    ("mts", "TypeScript"),
    ("php", "PHP"),
    ("pl", "Perl"),
    ("ps1", "PowerShell"),
    ("r", "R"),
    ("rb", "Ruby"),
    ("rs", "Rust"),
    ("scala", "Scala"),
    ("sh", "Bash"),
    ("sql", "SQL"),
    ("swift", "Swift"),
    ("ts", "TypeScript"),
    ("zsh", "Zsh"),
];
/// Words of programs that ask at a terminal.
const ASKERS: [&str; 2] = ["input(", "breakpoint("];
/// Words of programs that read standard input.
const READERS: [&str; 4] = ["stdin", "input(", "fileinput", "open(0"];

/// The source of a program.
pub(crate) enum ProgramSource {
    /// The command line.
    Text(String),
    /// A file, a directory with a `__main__.py`, or, for `-`, stdin.
    Path(PathBuf),
}

/// A program that can be run.
pub(crate) struct LoadedProgram {
    /// Its text, in pieces that run one after another until one fails: the cells of a notebook, or one piece.
    pub(crate) cells: Vec<String>,
    /// The notebook that it is, and its name.
    pub(crate) notebook: Option<(String, Notebook)>,
    /// The files that it works on, itself among them.
    pub(crate) inputs: Vec<InputFile>,
    /// Command line and environment for its kernel.
    pub(crate) options: KernelOptions,
    /// True if it may ask the person at the terminal.
    pub(crate) asks: bool,
    /// Stdin, which one of the files refers to.
    _input: Option<File>,
}

impl LoadedProgram {
    /// Reads a program and its stdin. `files` were checked, `arguments` are without its name.
    pub(crate) fn read(
        source: ProgramSource,
        arguments: Vec<String>,
        environment: Vec<(String, String)>,
        files: Vec<InputFile>,
    ) -> anyhow::Result<Self> {
        if arguments.iter().map(String::len).sum::<usize>() > MAX_ARGUMENTS {
            return Err(usage(format!("the program's arguments are too long; at most {}", size(MAX_ARGUMENTS as u64))));
        }
        let mut inputs = Inputs(files);
        let mut notebook = None;
        let (code, name, script, reads_input) = match source {
            ProgramSource::Text(code) => (code, "-c".to_owned(), None, true),
            ProgramSource::Path(path) if path.as_os_str() == "-" => {
                (read(&path, io::stdin().lock(), MAX_PROGRAM)?, "-".to_owned(), None, false)
            }
            ProgramSource::Path(path) if path.extension().is_some_and(|ending| ending == "ipynb") => {
                let file = File::open(&path).map_err(|error| unreadable(&path, &error))?;
                let read = Notebook::read(&read(&path, file, MAX_NOTEBOOK)?);
                let mut read = read.map_err(|error| usage(format!("{}: {error}", path.display())))?;
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let code = read.programs().join("\n");
                if code.is_empty() {
                    return Err(usage(format!("{}: none of its code cells has a program", path.display())));
                }
                notebook = Some((name.clone(), read));
                (code, name, None, true)
            }
            ProgramSource::Path(path) => {
                let (code, script) = from_file(&path, &mut inputs)?;
                if let Some(language) = other_language(&path, &code) {
                    return Err(usage(format!(
                        "{shown} looks like a program in {language}, and `aludel run` runs Python; if it is Python, hand it over by \
                         `aludel run - < {shown}`. The guide's page on sandboxes (Languages) tells how others run",
                        shown = path.display()
                    )));
                }
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
                (code, name.or_else(|| script.clone()).unwrap_or_default(), script, true)
            }
        };
        let names_input = reads_input
            && (READERS.iter().any(|word| code.contains(word))
                || arguments.iter().any(|word| word == "-")
                || inputs.0.iter().any(module_reads_input));
        let asks = reads_input && io::stdin().is_terminal() && ASKERS.iter().any(|word| code.contains(word));
        let input = if names_input { standard_input()? } else { None };
        if let Some(file) = &input {
            inputs.push(InputFile::new(INPUT, format!("/proc/self/fd/{}", file.as_raw_fd())), "standard input")?;
        }
        let cells = match &mut notebook {
            Some((_, notebook)) => notebook.programs(),
            None => vec![code],
        };
        let command_line = Some(CommandLine {
            arguments: std::iter::once(name).chain(arguments).collect(),
            script,
            input: input.is_some().then(|| INPUT.to_owned()),
            cells: cells.len(),
        });
        let options = KernelOptions { environment, command_line, ..KernelOptions::default() };
        Ok(Self { cells, notebook, inputs: inputs.0, options, asks, _input: input })
    }
}

/// Returns true if a file is a module of Python that reads standard input.
fn module_reads_input(file: &InputFile) -> bool {
    if !file.name().ends_with(".py") {
        return false;
    }
    let mut text = Vec::new();
    let read = File::open(file.path()).and_then(|file| file.take(MAX_PROGRAM).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    read.is_ok() && READERS.iter().any(|word| text.contains(word))
}

/// The language of a program that is not in Python, by the ending of its name; `None` if its first line names Python.
fn other_language(path: &Path, code: &str) -> Option<&'static str> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    let (_, language) = OTHER_LANGUAGES.iter().find(|(known, _)| *known == ending)?;
    let interpreter = code.lines().next().filter(|line| line.starts_with("#!")).unwrap_or_default();
    let is_python = path.is_dir() || interpreter.contains("python");
    (!is_python).then_some(language)
}

/// Reads a program from a file or a directory, and adds it to the files. Returns its text and, for a regular file, its name there.
fn from_file(path: &Path, inputs: &mut Inputs) -> anyhow::Result<(String, Option<String>)> {
    let shown = path.display();
    if path.is_dir() {
        let main = path.join(MAIN);
        let file = File::open(&main).map_err(|error| {
            usage(format!(
                "cannot run the directory {shown}: {MAIN}: {error}; or give a program in it, and --file {shown}"
            ))
        })?;
        let code = read(&main, file, MAX_PROGRAM)?;
        inputs.add(path, Some("."), &shown.to_string())?;
        return Ok((code, Some(MAIN.to_owned())));
    }
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let code = read(path, file, MAX_PROGRAM)?;
    let name = path.file_name().and_then(|name| name.to_str()).filter(|_| is_regular);
    if let Some(name) = name {
        inputs.add(path, Some(name), &shown.to_string())?;
    }
    Ok((code, name.map(str::to_owned)))
}

/// Reads the text of a program.
fn read(path: &Path, from: impl Read, most: u64) -> anyhow::Result<String> {
    let (mut bytes, shown) = (Vec::new(), path.display());
    match from.take(most + 1).read_to_end(&mut bytes) {
        Ok(read) if read as u64 > most => {
            return Err(usage(format!("the program {shown} is too long; at most {}", size(most))));
        }
        Ok(_) => {}
        Err(error) => return Err(unreadable(path, &error)),
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|error| usage(format!("the program {shown} is not UTF-8: {error}")))?;
    // Editors of Windows begin files with this mark, which Python skips.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

fn unreadable(path: &Path, error: &io::Error) -> anyhow::Error {
    usage(format!("cannot read the program {}: {error}", path.display()))
}

/// Reads stdin to its end. A terminal and `/dev/null` count as none.
fn standard_input() -> anyhow::Result<Option<File>> {
    let stdin = io::stdin();
    let is_device = || std::fs::metadata("/proc/self/fd/0").is_ok_and(|metadata| metadata.file_type().is_char_device());
    if stdin.is_terminal() || is_device() {
        return Ok(None);
    }
    let mut file = tempfile::tempfile().context("cannot keep standard input")?;
    let bytes = io::copy(&mut stdin.lock().take(MAX_INPUT + 1), &mut file).context("cannot read standard input")?;
    if bytes > MAX_INPUT {
        return Err(usage(format!(
            "standard input is too long; at most {}, or hand it over by --file",
            size(MAX_INPUT)
        )));
    }
    file.rewind().context("cannot keep standard input")?;
    Ok((bytes > 0).then_some(file))
}

/// Parses environment variables: `NAME=VALUE`, or `NAME` for that of this process.
pub(crate) fn environment(given: &[String], host: &HostEnvironment) -> anyhow::Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for text in given {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text.as_str(), host.variables().find(|(name, _)| name == text).map(|(_, value)| value)),
        };
        if name.is_empty() || text.contains('\0') {
            return Err(usage(format!("--env {text}: not a name, or a name, = and a value")));
        }
        let value = value.ok_or_else(|| usage(format!("--env {name}: it is not set here; give it as {name}=VALUE")))?;
        variables.push((name.to_owned(), value.to_owned()));
    }
    if variables.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ARGUMENTS {
        return Err(usage(format!("--env: the variables are too long; at most {}", size(MAX_ARGUMENTS as u64))));
    }
    Ok(variables)
}
