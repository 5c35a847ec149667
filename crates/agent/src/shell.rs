//! The tools besides the interpreter for models that work with a shell and an editor. Their calls become programs of the kernel, so
//! decisions about programs apply to them as well.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::program_call::{self, MAX_CODE};
use crate::upstream::{FunctionTool, free_name};

/// The language whose kernels have these tools.
pub(crate) const LANGUAGE: &str = "python";
/// The names under which models know them, which are Anthropic's.
const BASH: &str = "bash_code_execution";
const EDITOR: &str = "text_editor_code_execution";
/// The functions of the editor, one for each of its commands.
const FUNCTIONS: &str = include_str!("shell.py");

/// A tool by which a model runs programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramTool {
    /// Runs a program as it is written.
    Interpreter,
    /// Runs a shell command. The value of its program is the exit status.
    Bash,
    /// Shows, writes or changes a file. The value of its program is a list: for a view, the shown lines, the first line's number and the
    /// total; for a new file, 1 if it replaced another one; for a change, the first line and the number of lines, before and after.
    Editor,
}

/// A program that a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolProgram {
    pub(crate) tool: ProgramTool,
    /// The text that is run.
    pub(crate) code: String,
    /// The text that the model wrote: the program, the command, or the arguments of the editor in JSON.
    pub(crate) input: String,
}

#[derive(Deserialize)]
struct BashCall {
    command: String,
}

/// A call of the editor.
#[derive(Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
enum EditorCall {
    View {
        path: String,
        #[serde(default)]
        view_range: Option<(u64, i64)>,
    },
    Create {
        path: String,
        file_text: String,
    },
    StrReplace {
        path: String,
        old_str: String,
        #[serde(default)]
        new_str: String,
    },
}

impl ProgramTool {
    /// The key of the argument that is shown during streaming.
    pub(crate) fn shown_key(self) -> Option<&'static str> {
        match self {
            Self::Interpreter => Some("code"),
            Self::Bash => Some("command"),
            Self::Editor => None,
        }
    }

    /// The tool's name for a model, which differs from the names of the caller's tools.
    pub fn name_beside(self, others: &[FunctionTool]) -> String {
        let name = match self {
            Self::Interpreter => program_call::NAME,
            Self::Bash => BASH,
            Self::Editor => EDITOR,
        };
        free_name(name, others)
    }

    /// The program of a call, or a description of the mistake in its arguments that helps the model to correct it.
    pub(crate) fn program(self, arguments: &str) -> Result<ToolProgram, String> {
        let (code, input) = match self {
            Self::Interpreter => {
                let code = program_call::code_of(arguments)?;
                (code.clone(), code)
            }
            Self::Bash => {
                let BashCall { command } = read(arguments, r#"{"command": "…"}"#)?;
                let program = format!("{}\n_bash({})", function(3), literal(&command));
                (program, command)
            }
            Self::Editor => {
                let call = read(arguments, r#"{"command": "view", "path": "…"}"#)?;
                // In the model's own form, which clients are shown.
                let input = serde_json::from_str::<Value>(arguments).unwrap_or_default().to_string();
                (edit(&call)?, input)
            }
        };
        if code.len() > MAX_CODE {
            return Err(format!("The program has {} bytes; at most {MAX_CODE} are allowed.", code.len()));
        }
        Ok(ToolProgram { tool: self, code, input })
    }

    /// The tool as it is offered to a model.
    pub(crate) fn offered(self, others: &[FunctionTool]) -> FunctionTool {
        let text = |description: &str| json!({ "type": "string", "description": description });
        let (description, properties, required) = match self {
            Self::Interpreter | Self::Bash => (
                "Runs a command with bash, in a process of its own. The working directory is /mnt/data, whose files are those of the \
                 interpreter. There is no network.",
                json!({ "command": text("The command to run.") }),
                json!(["command"]),
            ),
            Self::Editor => (
                "Shows a file or a directory (view), writes a whole file (create), or replaces a text that occurs exactly once in a file \
                 (str_replace). Relative paths are below /mnt/data.",
                json!({
                    "command": { "type": "string", "enum": ["view", "create", "str_replace"] },
                    "path": text("The file or directory."),
                    "view_range": {
                        "type": "array",
                        "items": { "type": "integer" },
                        "description": "view: the first and the last line, from 1; -1 is the end.",
                    },
                    "file_text": text("create: the content."),
                    "old_str": text("str_replace: the text to replace."),
                    "new_str": text("str_replace: the text to put there."),
                }),
                json!(["command", "path"]),
            ),
        };
        FunctionTool {
            name: self.name_beside(others),
            description: description.to_owned(),
            parameters: json!({ "type": "object", "properties": properties, "required": required }).into(),
            strict: None,
        }
    }
}

fn read<'a, T: Deserialize<'a>>(arguments: &'a str, example: &str) -> Result<T, String> {
    serde_json::from_str(arguments).map_err(|error| format!("The arguments cannot be used ({error}). Send {example}."))
}

/// The program of a call of the editor.
fn edit(call: &EditorCall) -> Result<String, String> {
    let (index, call) = match call {
        EditorCall::View { path, view_range } => {
            let (first, last) = view_range.unwrap_or((1, -1));
            let last = match u64::try_from(last) {
                Ok(last) if last >= first && first > 0 => last.to_string(),
                Err(_) if last == -1 && first > 0 => "None".to_owned(),
                _ => return Err("`view_range` must be [first, last], from 1, with -1 for the end.".to_owned()),
            };
            (0, format!("_view({}, {first}, {last})", literal(&absolute(path)?)))
        }
        EditorCall::Create { path, file_text } => {
            (1, format!("_create({}, {})", literal(&absolute(path)?), literal(file_text)))
        }
        EditorCall::StrReplace { old_str, .. } if old_str.is_empty() => {
            return Err("`old_str` is empty.".to_owned());
        }
        EditorCall::StrReplace { path, old_str, new_str } => {
            (2, format!("_replace({}, {}, {})", literal(&absolute(path)?), literal(old_str), literal(new_str)))
        }
    };
    Ok(format!("{}\n{call}", function(index)))
}

/// The function at this index among the tools' own.
fn function(index: usize) -> &'static str {
    FUNCTIONS.split("---\n").nth(index).unwrap_or_default()
}

/// A path in the form for programs, independent of the kernel's present working directory.
fn absolute(path: &str) -> Result<String, String> {
    match path {
        "" => Err("`path` is empty.".to_owned()),
        path if path.starts_with('/') => Ok(path.to_owned()),
        path => Ok(format!("/mnt/data/{path}")),
    }
}

/// A text as a Python literal: a JSON string with unescaped characters is also a Python string.
fn literal(text: &str) -> String {
    // Serializing a text cannot fail.
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_become_programs_whose_texts_are_data() {
        let program = |tool: ProgramTool, arguments: Value| tool.program(&arguments.to_string()).unwrap();
        let command = "echo 'a' \"b\" \\ \n%ls ü";
        let bash = program(ProgramTool::Bash, json!({ "command": command }));
        assert_eq!(bash.input, command);
        assert!(bash.code.ends_with(r#"_bash("echo 'a' \"b\" \\ \n%ls ü")"#), "{}", bash.code);
        let view = json!({ "command": "view", "path": "a.txt", "view_range": [2, -1] });
        let view = program(ProgramTool::Editor, view);
        assert!(view.code.ends_with("\n_view(\"/mnt/data/a.txt\", 2, None)"), "{}", view.code);
        let create = program(ProgramTool::Editor, json!({ "command": "create", "path": "/tmp/a", "file_text": "\"" }));
        assert!(create.code.ends_with("\n_create(\"/tmp/a\", \"\\\"\")"), "{}", create.code);
        let change = json!({ "command": "str_replace", "path": "a", "old_str": "x", "new_str": "y" });
        let change = program(ProgramTool::Editor, change);
        assert!(change.code.starts_with("def _replace(") && change.code.ends_with("(\"/mnt/data/a\", \"x\", \"y\")"));
        assert!(!change.code.contains("_view"), "{}", change.code);
    }

    #[test]
    fn a_change_keeps_the_ends_of_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.txt");
        std::fs::write(&path, "a\r\nb\r\nc\r\n").unwrap();
        let call = json!({ "command": "str_replace", "path": path, "old_str": "a\nb", "new_str": "a\nx\ny" });
        let ToolProgram { code, .. } = ProgramTool::Editor.program(&call.to_string()).unwrap();
        let ran = std::process::Command::new("python3").args(["-c", &code]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "-a\n-b\n+a\n+x\n+y\n", "{ran:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\r\nx\r\ny\r\nc\r\n");
    }

    #[test]
    fn the_fault_of_arguments_is_told() {
        for (tool, arguments, words) in [
            (ProgramTool::Bash, json!({}), "missing field `command`"),
            (ProgramTool::Editor, json!({ "command": "undo", "path": "a" }), "unknown variant `undo`"),
            (ProgramTool::Editor, json!({ "command": "create", "path": "a" }), "file_text"),
            (ProgramTool::Editor, json!({ "command": "view", "path": "" }), "`path` is empty"),
            (ProgramTool::Editor, json!({ "command": "view", "path": "a", "view_range": [0, 1] }), "from 1"),
            (ProgramTool::Editor, json!({ "command": "view", "path": "a", "view_range": [3, 2] }), "from 1"),
            (
                ProgramTool::Editor,
                json!({ "command": "str_replace", "path": "a", "old_str": "" }),
                "`old_str` is empty",
            ),
        ] {
            let fault = tool.program(&arguments.to_string()).unwrap_err();
            assert!(fault.contains(words), "{fault}");
        }
    }
}
