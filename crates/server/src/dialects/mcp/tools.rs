//! The tools, as clients see them.

use std::borrow::Cow;
use std::sync::Arc;

use aludel_engine::Engine;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Packages that a description names.
const MAX_PACKAGES: usize = 60;
/// Packages that a description names before others.
const KNOWN_PACKAGES: &str = "numpy pandas polars pyarrow scipy scikit-learn statsmodels sympy matplotlib seaborn plotly altair bokeh \
    openpyxl xlsxwriter xlrd python-docx python-pptx reportlab pypdf pdfplumber pillow opencv-python-headless scikit-image networkx \
    duckdb sqlalchemy beautifulsoup4 lxml requests pyyaml tabulate jinja2 geopandas shapely nltk";

/// A set of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profile {
    /// All tools.
    Full,
    /// A single tool that takes a program and nothing else, as vLLM's models know it.
    PythonAlone,
}

/// Arguments of `python`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct PythonArguments {
    /// The Python program to run.
    pub(super) code: String,
    /// Session to go on in, as an earlier result named it: its variables and files are there. Leave it out to begin a new one.
    pub(super) session: Option<String>,
    /// Seconds after which the program is stopped.
    pub(super) timeout_seconds: Option<f64>,
}

/// Arguments of `python` where a program is all that there is.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ProgramAlone {
    /// The Python program to run.
    pub(super) code: String,
}

impl From<ProgramAlone> for PythonArguments {
    fn from(ProgramAlone { code }: ProgramAlone) -> Self {
        Self { code, session: None, timeout_seconds: None }
    }
}

/// Arguments of `wait`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct WaitArguments {
    /// Execution to wait for, as the result of `python` named it.
    pub(super) execution: String,
    /// Seconds after which this returns although the program still runs.
    pub(super) timeout_seconds: Option<f64>,
}

/// Arguments of `files`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct FilesArguments {
    /// Thing to do with the files of the session.
    pub(super) action: FilesAction,
    /// Session whose files they are. Leave it out for the one of this connection, or to write into a new one.
    pub(super) session: Option<String>,
    /// Path of the file, for example data.csv or /mnt/data/data.csv. Not needed to list.
    pub(super) path: Option<String>,
    /// Content to write.
    pub(super) content: Option<String>,
    /// Encoding of the content: text (the default), or base64 for other files.
    pub(super) encoding: Option<Encoding>,
}

/// Something that can be done with files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum FilesAction {
    List,
    Read,
    Write,
    Delete,
}

/// Encodings of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Encoding {
    Text,
    Base64,
}

/// The structured result of `python` and `wait`. Fields that are not known are left out.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Report {
    /// Outcome of the program.
    pub(super) status: Status,
    /// Session to pass on, with its variables and files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<String>,
    /// Execution to pass to `wait` while the status is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) execution: Option<String>,
    /// Standard output: head and tail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stdout: Option<String>,
    /// Standard error: head and tail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stderr: Option<String>,
    /// Value of the last expression, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<String>,
    /// Exception that ended the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Exception>,
    /// Words besides the output: the reason for which nothing ran or all was stopped, or the way to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    /// Files that the program made or changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) files: Option<Vec<ReportedFile>>,
    /// True if something of the output was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) truncated: Option<bool>,
    /// Wall clock of the program, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duration_ms: Option<u64>,
}

/// Outcomes of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Status {
    Ok,
    #[default]
    Error,
    Timeout,
    Killed,
    Running,
}

/// An exception.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Exception {
    /// Class of the exception.
    pub(super) name: String,
    /// Its message.
    pub(super) value: String,
    /// Traceback of the program's own lines.
    pub(super) traceback: String,
}

/// A file of a session.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ReportedFile {
    /// Path inside the sandbox; of a picture that was only shown, its name.
    pub(super) path: String,
    /// Resource to read it by.
    pub(super) uri: String,
    /// MIME type.
    pub(super) mime_type: String,
    /// Size in bytes.
    pub(super) size: u64,
}

/// The tools of a profile, always in the same order and words: clients have them in prompt caches.
pub(super) fn list(engine: &Engine, profile: Profile) -> Vec<Tool> {
    let about = about(engine);
    match profile {
        Profile::PythonAlone => vec![python(about, input::<ProgramAlone>())],
        Profile::Full => {
            let words = "Variables and files stay in the session that the result names: pass it as `session` to go on \
                         there. A program that takes long goes on after this returns: its status is `running`, and `wait` \
                         collects it.";
            let wait = "Wait for a program that `python` left running, and return its result.";
            let files = "List, read, write or delete the files of a session: those that the user gave and those that \
                         programs made, in /mnt/data.";
            vec![
                python(format!("{about} {words}"), input::<PythonArguments>())
                    .with_raw_output_schema(output::<Report>()),
                tool("wait", "Wait for a program", wait, input::<WaitArguments>())
                    .with_raw_output_schema(output::<Report>())
                    .with_annotations(hints("Wait for a program").read_only(true).idempotent(true)),
                tool("files", "Files of a session", files, input::<FilesArguments>())
                    .with_annotations(hints("Files of a session").read_only(false).destructive(true)),
            ]
        }
    }
}

fn python(words: String, input: Arc<JsonObject>) -> Tool {
    let hints = hints("Run Python").read_only(false).destructive(false).idempotent(false);
    tool("python", "Run Python", words, input).with_annotations(hints)
}

fn tool(name: &'static str, title: &str, words: impl Into<Cow<'static, str>>, input: Arc<JsonObject>) -> Tool {
    Tool::new(name, words, input).with_title(title)
}

/// Hints about a tool that affects nothing outside of its sandbox.
fn hints(title: &str) -> ToolAnnotations {
    ToolAnnotations::with_title(title).open_world(false)
}

/// The schema of arguments in the simple form that every client and model accepts: optional fields have a single type.
fn input<T: JsonSchema>() -> Arc<JsonObject> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.meta_schema = None);
    let settings = settings.with_transform(RecursiveTransform(plain as fn(&mut Schema)));
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    schema.remove("description");
    // All of them are structs, which have object schemas.
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}

/// The schema of a result, without Rust's formats of numbers: a validator of JavaScript's prints a warning for each.
fn output<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    fn without_formats(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, value| name != "format" || !value.is_string());
                fields.values_mut().for_each(without_formats);
            }
            Value::Array(values) => values.iter_mut().for_each(without_formats),
            _ => {}
        }
    }
    let mut schema = Value::Object(JsonObject::clone(&schema_for_output::<T>()));
    without_formats(&mut schema);
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}

/// Removes null from a schema.
fn plain(schema: &mut Schema) {
    let single = match schema.get("type") {
        Some(Value::Array(types)) => types.iter().find(|kind| *kind != "null").cloned(),
        _ => None,
    };
    if let Some(single) = single {
        schema.insert("type".to_owned(), single);
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    schema.remove("format");
}

/// The description of the sandbox for a model.
pub(super) fn about(engine: &Engine) -> String {
    let (kernel, limits) = (engine.kernel(), &engine.settings.limits);
    let mut text = format!(
        "{} The working directory is /mnt/data; files saved there are given to the user. {} There is no network. One call may take {} s \
         and all together {} of memory.",
        kernel.description,
        kernel.advice,
        limits.timeout.as_secs(),
        aludel_agent::size(limits.memory),
    );
    if !engine.packages.is_empty() {
        let named = named_packages(&engine.packages);
        let more = engine.packages.len() - named.len();
        text.push_str(&format!(" Installed: {}", named.join(", ")));
        text.push_str(&if more > 0 {
            format!(" and {more} more; others cannot be installed.")
        } else {
            ".".to_owned()
        });
    }
    text
}

/// The packages to name: known ones first.
fn named_packages(packages: &[String]) -> Vec<&str> {
    let is_known = |package: &&str| KNOWN_PACKAGES.split(' ').any(|known| known.eq_ignore_ascii_case(package));
    let (known, others): (Vec<&str>, Vec<&str>) = packages.iter().map(String::as_str).partition(is_known);
    known.into_iter().chain(others).take(MAX_PACKAGES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_packages_are_named_before_others() {
        let others = (0..MAX_PACKAGES).map(|number| format!("a{number}"));
        let packages: Vec<String> = others.chain(["Pillow", "pandas"].map(str::to_owned)).collect();
        let named = named_packages(&packages);
        assert_eq!((named.len(), &named[..3]), (MAX_PACKAGES, ["Pillow", "pandas", "a0"].as_slice()));
    }

    #[test]
    fn a_schema_of_a_result_has_no_formats() {
        let schema = Value::Object(JsonObject::clone(&output::<Report>())).to_string();
        assert!(schema.contains("duration_ms") && !schema.contains("uint64"), "{schema}");
    }
}
