//! Jupyter notebooks, format 4: reads their programs, and writes their outputs.

use std::collections::BTreeMap;

use aludel_sandbox::{ExecutionEvent, MimeBundle, MimeData};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// The format that is understood.
const FORMAT: u32 = 4;

/// A notebook, in which only the outputs change.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Notebook {
    cells: Vec<NotebookCell>,
    nbformat: u32,
    #[serde(flatten)]
    others: Map<String, Value>,
    /// Programs that have ended.
    #[serde(skip)]
    ended: usize,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "cell_type", rename_all = "snake_case")]
enum NotebookCell {
    Code(CodeCell),
    Markdown(Map<String, Value>),
    Raw(Map<String, Value>),
}

#[derive(Debug, Serialize, Deserialize)]
struct CodeCell {
    source: Text,
    #[serde(default)]
    execution_count: Option<usize>,
    /// Those of an earlier run are forgotten.
    #[serde(default, deserialize_with = "nothing")]
    outputs: Vec<NotebookOutput>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Text, or its lines with their ends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Whole(String),
    Lines(Vec<String>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "output_type", rename_all = "snake_case")]
enum NotebookOutput {
    Stream { name: StreamName, text: String },
    DisplayData { data: BTreeMap<String, Value>, metadata: Empty },
    ExecuteResult { execution_count: usize, data: BTreeMap<String, Value>, metadata: Empty },
    Error { ename: String, evalue: String, traceback: Vec<String> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum StreamName {
    Stdout,
    Stderr,
}

/// An object without members.
#[derive(Debug, Default, Serialize)]
struct Empty {}

fn nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NotebookOutput>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| Vec::new())
}

impl Notebook {
    /// Reads a notebook, or says why it is none.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut notebook: Self = serde_json::from_str(text).map_err(|error| format!("not a notebook: {error}"))?;
        if notebook.nbformat != FORMAT {
            let format = notebook.nbformat;
            return Err(format!("its format is {format}; save it in format {FORMAT}: jupyter nbconvert --to notebook"));
        }
        for cell in notebook.code_cells() {
            cell.execution_count = None;
        }
        Ok(notebook)
    }

    /// The programs of its code cells, in order. Empty cells are skipped.
    pub(crate) fn programs(&mut self) -> Vec<String> {
        self.code_cells().map(|cell| cell.source.whole()).collect()
    }

    /// Takes an event of the program that runs now.
    pub(crate) fn record(&mut self, event: &ExecutionEvent) {
        let ended = self.ended;
        let Some(cell) = self.code_cells().nth(ended) else { return };
        let count = ended + 1;
        cell.execution_count = Some(count);
        match event {
            ExecutionEvent::Stdout(text) => cell.print(StreamName::Stdout, text),
            ExecutionEvent::Stderr(text) => cell.print(StreamName::Stderr, text),
            ExecutionEvent::Display(bundle) => {
                cell.outputs.push(NotebookOutput::DisplayData { data: data(bundle), metadata: Empty {} });
            }
            ExecutionEvent::Result(bundle) => {
                let data = data(bundle);
                cell.outputs.push(NotebookOutput::ExecuteResult { execution_count: count, data, metadata: Empty {} });
            }
            ExecutionEvent::Error(error) => cell.outputs.push(NotebookOutput::Error {
                ename: error.name.clone(),
                evalue: error.value.clone(),
                traceback: error.traceback.lines().map(str::to_owned).collect(),
            }),
            ExecutionEvent::Calls(_) => {}
            ExecutionEvent::Finished(_) => self.ended += 1,
        }
    }

    /// The notebook with the output of its programs.
    pub(crate) fn text(&self) -> serde_json::Result<String> {
        Ok(format!("{}\n", serde_json::to_string_pretty(self)?))
    }

    /// The cells that have a program.
    fn code_cells(&mut self) -> impl Iterator<Item = &mut CodeCell> {
        self.cells.iter_mut().filter_map(|cell| match cell {
            NotebookCell::Code(cell) if !cell.source.is_blank() => Some(cell),
            NotebookCell::Code(_) | NotebookCell::Markdown(_) | NotebookCell::Raw(_) => None,
        })
    }
}

impl Text {
    fn whole(&self) -> String {
        match self {
            Self::Whole(text) => text.clone(),
            Self::Lines(lines) => lines.concat(),
        }
    }

    fn is_blank(&self) -> bool {
        match self {
            Self::Whole(text) => text.trim().is_empty(),
            Self::Lines(lines) => lines.iter().all(|line| line.trim().is_empty()),
        }
    }
}

impl CodeCell {
    fn print(&mut self, to: StreamName, more: &str) {
        match self.outputs.last_mut() {
            Some(NotebookOutput::Stream { name, text }) if *name == to => text.push_str(more),
            _ => self.outputs.push(NotebookOutput::Stream { name: to, text: more.to_owned() }),
        }
    }
}

/// The forms of a value, JSON as such and bytes as base64.
fn data(bundle: &MimeBundle) -> BTreeMap<String, Value> {
    let form = |mime: &str, data: &MimeData| match data {
        MimeData::Text(text) if mime.ends_with("json") => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
        }
        MimeData::Text(text) => Value::String(text.clone()),
        MimeData::Binary(bytes) => Value::String(BASE64_STANDARD.encode(bytes)),
    };
    bundle.0.iter().map(|(mime, data)| (mime.clone(), form(mime, data))).collect()
}

#[cfg(test)]
mod tests {
    use aludel_sandbox::{Finished, Outcome, ProgramError, VariablesState};

    use super::*;

    const NOTEBOOK: &str = r##"{"cells": [
        {"cell_type": "markdown", "id": "a", "metadata": {"x": 1}, "source": ["# T\n", "t"], "attachments": {}},
        {"cell_type": "code", "id": "b", "metadata": {"tags": ["t"]}, "source": ["x = 1\n", "x"], "execution_count": 9,
         "outputs": [{"output_type": "stream", "name": "stdout", "text": "old"}]},
        {"cell_type": "code", "id": "c", "metadata": {}, "source": " \n", "execution_count": 8, "outputs": []},
        {"cell_type": "code", "id": "d", "metadata": {}, "source": "1/0", "execution_count": null, "outputs": []}],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "P"}}, "nbformat": 4, "nbformat_minor": 5}"##;

    fn finished() -> ExecutionEvent {
        ExecutionEvent::Finished(Finished {
            outcome: Outcome::Completed,
            files: Vec::new(),
            files_left_out: 0,
            elapsed: std::time::Duration::ZERO,
            output_dropped: 0,
            state: VariablesState::Kept,
            refused_calls: Vec::new(),
            refusal_may_have_mattered: false,
        })
    }

    #[test]
    fn outputs_are_replaced_and_all_else_stays() {
        let mut notebook = Notebook::read(NOTEBOOK).unwrap();
        assert_eq!(notebook.programs(), ["x = 1\nx", "1/0"]);
        let value = MimeBundle(vec![
            ("text/plain".into(), MimeData::Text("1".into())),
            ("application/json".into(), MimeData::Text("{\"a\": [1]}".into())),
            ("image/png".into(), MimeData::Binary(b"hi".to_vec())),
        ]);
        let error = ProgramError { name: "E".into(), value: "v".into(), traceback: "a\nb".into() };
        for event in [
            ExecutionEvent::Stdout("a".into()),
            ExecutionEvent::Stdout("b".into()),
            ExecutionEvent::Stderr("c".into()),
            ExecutionEvent::Result(value),
            finished(),
            ExecutionEvent::Error(error),
            finished(),
            ExecutionEvent::Stdout("nobody asked".into()),
        ] {
            notebook.record(&event);
        }
        let mut expected: Value = serde_json::from_str(NOTEBOOK).unwrap();
        expected["cells"][1]["execution_count"] = 1.into();
        expected["cells"][1]["outputs"] = serde_json::json!([
            { "output_type": "stream", "name": "stdout", "text": "ab" },
            { "output_type": "stream", "name": "stderr", "text": "c" },
            { "output_type": "execute_result", "execution_count": 1, "metadata": {},
              "data": { "text/plain": "1", "application/json": { "a": [1] }, "image/png": "aGk=" } },
        ]);
        expected["cells"][2]["execution_count"] = 8.into();
        expected["cells"][3]["execution_count"] = 2.into();
        expected["cells"][3]["outputs"] =
            serde_json::json!([{ "output_type": "error", "ename": "E", "evalue": "v", "traceback": ["a", "b"] }]);
        assert_eq!(serde_json::from_str::<Value>(&notebook.text().unwrap()).unwrap(), expected);
    }

    #[test]
    fn what_is_no_notebook_is_said() {
        for (text, words) in [
            ("{}", "not a notebook: missing field"),
            ("[1", "not a notebook"),
            (r#"{"worksheets": [], "cells": [], "nbformat": 3}"#, "its format is 3"),
        ] {
            let error = Notebook::read(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
