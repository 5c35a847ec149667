//! Scripts: what a program does, step by step.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::workspace::MemoryWorkspace;
use crate::link::KernelExit;
use crate::process::{ExitStatus, SIGKILL};
use crate::{ClientCall, MimeBundle, MimeData, ProgramError};

/// One cell of a scripted kernel. A script calls its methods in the order of the program's effects.
#[derive(Debug)]
pub struct ScriptedCell {
    /// The kernel's variables, as the cells before left them.
    pub variables: BTreeMap<String, String>,
    /// The environment variables that were set for this cell and for its kernel.
    pub environment: BTreeMap<String, String>,
    /// Names of the client's tools that this cell can call.
    pub tools: Vec<String>,
    code: String,
    workspace: Arc<MemoryWorkspace>,
    pub(super) steps: Vec<ScriptStep>,
}

/// One thing that a program does.
#[derive(Debug)]
pub(super) enum ScriptStep {
    Print(String),
    PrintError(String),
    Flood(u64),
    Display(MimeBundle),
    Result(MimeBundle),
    Call(Vec<ClientCall>),
    Fail(ProgramError),
    Write(String, Vec<u8>),
    Wait(Arc<Notify>),
    Hang,
    Die(KernelExit),
}

impl ScriptedCell {
    pub(super) fn new(
        code: &str,
        variables: BTreeMap<String, String>,
        environment: BTreeMap<String, String>,
        workspace: Arc<MemoryWorkspace>,
    ) -> Self {
        Self { variables, environment, tools: Vec::new(), code: code.to_owned(), workspace, steps: Vec::new() }
    }

    /// Prints text.
    pub fn print(&mut self, text: impl Into<String>) -> &mut Self {
        self.step(ScriptStep::Print(text.into()))
    }

    /// Prints text to the error output.
    pub fn print_error(&mut self, text: impl Into<String>) -> &mut Self {
        self.step(ScriptStep::PrintError(text.into()))
    }

    /// Prints so many bytes of `x`, line by line.
    pub fn flood(&mut self, bytes: u64) -> &mut Self {
        self.step(ScriptStep::Flood(bytes))
    }

    /// Displays something.
    pub fn display(&mut self, bundle: MimeBundle) -> &mut Self {
        self.step(ScriptStep::Display(bundle))
    }

    /// Displays a picture of these bytes, as PNG.
    pub fn display_png(&mut self, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.display(MimeBundle(vec![("image/png".into(), MimeData::Binary(bytes.into()))]))
    }

    /// Ends with a value of the last expression, as text.
    pub fn result(&mut self, text: impl Into<String>) -> &mut Self {
        self.step(ScriptStep::Result(MimeBundle(vec![("text/plain".into(), MimeData::Text(text.into()))])))
    }

    /// Calls tools of the client, all at once, and prints each answer on a line. A failed call raises a `ToolError`.
    pub fn call<'a>(&mut self, calls: impl IntoIterator<Item = (&'a str, &'a str)>) -> &mut Self {
        let call = |(name, arguments): (&str, &str)| ClientCall { name: name.into(), arguments: arguments.into() };
        self.step(ScriptStep::Call(calls.into_iter().map(call).collect()))
    }

    /// Raises an exception on the last line, which ends the cell.
    pub fn fail(&mut self, name: &str, value: &str) -> &mut Self {
        let error = raised(&self.code, name, value);
        self.fail_with(error)
    }

    /// Ends the cell with this error.
    pub fn fail_with(&mut self, error: ProgramError) -> &mut Self {
        self.step(ScriptStep::Fail(error))
    }

    /// Writes a file.
    pub fn write(&mut self, path: &str, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.step(ScriptStep::Write(path.to_owned(), bytes.into()))
    }

    /// Returns what is in a file now, before any step of this cell.
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        self.workspace.bytes(path)
    }

    /// Waits for the test, until it is interrupted.
    pub fn wait_for(&mut self, signal: Arc<Notify>) -> &mut Self {
        self.step(ScriptStep::Wait(signal))
    }

    /// Never ends until it is interrupted.
    pub fn never_end(&mut self) -> &mut Self {
        self.wait_for(Arc::default())
    }

    /// Never ends until it is killed.
    pub fn hang(&mut self) -> &mut Self {
        self.step(ScriptStep::Hang)
    }

    /// Ends the kernel with this status.
    pub fn exit(&mut self, status: i32) -> &mut Self {
        self.die(ExitStatus::Code(status), None)
    }

    /// Ends the kernel as if by this signal.
    pub fn die_of(&mut self, signal: i32) -> &mut Self {
        self.die(ExitStatus::Signal(signal), None)
    }

    /// Ends the kernel as if it ran out of memory with so many bytes in use; 0 stands for an unknown number.
    pub fn run_out_of_memory(&mut self, used: u64) -> &mut Self {
        self.die(ExitStatus::Signal(SIGKILL), Some(used))
    }

    fn die(&mut self, status: ExitStatus, out_of_memory: Option<u64>) -> &mut Self {
        self.step(ScriptStep::Die(KernelExit { status: Some(status), out_of_memory }))
    }

    fn step(&mut self, step: ScriptStep) -> &mut Self {
        self.steps.push(step);
        self
    }
}

/// An exception that the last line of a program raises.
pub(super) fn raised(code: &str, name: &str, value: &str) -> ProgramError {
    let (line, text) = (code.lines().count().max(1), code.lines().last().unwrap_or_default().trim());
    let message = if value.is_empty() { name.to_owned() } else { format!("{name}: {value}") };
    let traceback =
        format!("Traceback (most recent call last):\n  Cell 1, line {line}, in <module>\n    {text}\n{message}");
    ProgramError { name: name.to_owned(), value: value.to_owned(), traceback }
}

/// The script for tests that are not about programs: a small subset of Python. Everything else is a `NotImplementedError`.
///
/// A line is `print(await TOOL({…}))`, `print(*await asyncio.gather(TOOL({…}), TOOL({…})), sep='\n')`, `print(VALUE)`, `NAME = VALUE`,
/// `VALUE` (as the last line, the result), `raise NAME('TEXT')`, `open('PATH', 'w').write('TEXT')`, `while True: pass`, `os._exit(NUMBER)`,
/// an `import` or a comment. A value is a string, a number, a sum of numbers, a name, `os.environ['NAME']`, or `open('PATH').read()`.
pub fn simple(code: &str, cell: &mut ScriptedCell) {
    let lines: Vec<_> = code.lines().flat_map(statements).collect();
    for (position, line) in lines.iter().enumerate() {
        let is_last = position + 1 == lines.len();
        if let Err((name, value)) = statement(line, is_last, cell) {
            cell.fail(name, &value);
            return;
        }
    }
}

fn statements(line: &str) -> impl Iterator<Item = &str> {
    let parts: Vec<_> = if line.contains('\'') || line.contains('"') { vec![line] } else { line.split(';').collect() };
    parts.into_iter().map(str::trim).filter(|part| {
        !part.is_empty() && !part.starts_with('#') && !part.starts_with("import ") && !part.starts_with("from ")
    })
}

type RaisedException = (&'static str, String);

fn statement(line: &str, is_last: bool, cell: &mut ScriptedCell) -> Result<(), RaisedException> {
    let unknown = || ("NotImplementedError", format!("the scripted kernel does not know: {line}"));
    let inside = |prefix: &str, suffix: &str| line.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
    if line == "while True: pass" {
        cell.never_end();
    } else if let Some(status) = inside("os._exit(", ")") {
        cell.exit(status.trim().parse().map_err(|_| unknown())?);
    } else if let Some(calls) = inside("print(await ", ")").or(inside("print(*await asyncio.gather(", "), sep='\\n')"))
    {
        let calls =
            calls.split_inclusive("})").map(|call| call.trim_start_matches(", ").strip_suffix(')')?.split_once('('));
        let calls: Vec<(&str, &str)> = calls.collect::<Option<_>>().ok_or_else(unknown)?;
        if let Some((name, _)) = calls.iter().find(|(name, _)| !cell.tools.iter().any(|tool| tool == name)) {
            return Err(("NameError", format!("name '{name}' is not defined")));
        }
        cell.call(calls);
    } else if let Some(argument) = inside("print(", ")") {
        let text = value(argument, cell).ok_or_else(unknown)?.0;
        cell.print(format!("{text}\n"));
    } else if let Some(raised) = line.strip_prefix("raise ") {
        let (name, text) = raised.strip_suffix(')').and_then(|rest| rest.split_once('(')).ok_or_else(unknown)?;
        let text = if text.is_empty() { String::new() } else { literal(text).ok_or_else(unknown)? };
        cell.fail(name, &text);
    } else if let Some((path, text)) =
        inside("open(", ")").and_then(|rest| rest.split_once(").write(")).filter(|(path, _)| path.contains(','))
    {
        let path = path.split_once(',').and_then(|(path, _)| literal(path)).ok_or_else(unknown)?;
        let text = literal(text).ok_or_else(unknown)?;
        let length = text.len();
        cell.write(&path, text);
        if is_last {
            cell.result(length.to_string());
        }
    } else if let Some((name, assigned)) = line.split_once(" = ").filter(|(name, _)| is_name(name)) {
        let assigned = value(assigned, cell).ok_or_else(unknown)?.1;
        cell.variables.insert(name.to_owned(), assigned);
    } else {
        match value(line, cell) {
            Some((_, shown)) if is_last => {
                cell.result(shown);
            }
            Some(_) => {}
            None if is_name(line) => return Err(("NameError", format!("name '{line}' is not defined"))),
            None => return Err(unknown()),
        }
    }
    Ok(())
}

/// The value of an expression: as it is printed, and as Python shows it.
fn value(text: &str, cell: &ScriptedCell) -> Option<(String, String)> {
    let text = text.trim();
    if let Some(literal) = literal(text) {
        let shown = format!("'{}'", literal.replace('\\', "\\\\").replace('\n', "\\n").replace('\'', "\\'"));
        return Some((literal, shown));
    }
    if let Some(path) = text.strip_prefix("open(").and_then(|rest| rest.strip_suffix(").read()")) {
        let text = String::from_utf8_lossy(&cell.read(&literal(path)?)?).into_owned();
        return Some((text.clone(), format!("'{text}'")));
    }
    if let Some(name) = text.strip_prefix("os.environ[").and_then(|rest| rest.strip_suffix("]")) {
        let text = cell.environment.get(&literal(name)?)?;
        return Some((text.clone(), format!("'{text}'")));
    }
    if let Some(shown) = cell.variables.get(text) {
        let printed = literal(shown).unwrap_or_else(|| shown.clone());
        return Some((printed, shown.clone()));
    }
    let sum: i64 = text.split('+').map(|part| part.trim().parse::<i64>().ok()).sum::<Option<i64>>()?;
    Some((sum.to_string(), sum.to_string()))
}

fn literal(text: &str) -> Option<String> {
    let text = text.trim();
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    (!inner.replace("\\\\", "").replace(&format!("\\{quote}"), "").contains(quote))
        .then(|| inner.replace("\\n", "\n").replace("\\'", "'").replace("\\\"", "\"").replace("\\\\", "\\"))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text.chars().all(|part| part.is_ascii_alphanumeric() || part == '_')
}
