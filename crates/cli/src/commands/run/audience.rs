//! The receivers of a program's output, and the results at its end.

use aludel_sandbox::{ExecutionEvent, FileEntry, Finished, mime_of};
use anyhow::Context as _;

use crate::exit::Exit;
use crate::notebook::Notebook;
use crate::output_directory::{OutputDirectory, OutputFiles, SavedFile};
use crate::show::{ProgramView, describe_only};
use crate::{console, json};

/// The reader of events.
pub(super) enum ProgramAudience {
    Person(ProgramView),
    Program,
}

/// A reader of events, the directory for files, and the notebook with its name, if one is run.
pub(super) struct Audience {
    pub(super) view: ProgramAudience,
    pub(super) out: OutputDirectory,
    pub(super) notebook: Option<(String, Notebook)>,
}

impl Audience {
    /// Shows an event and writes it down.
    pub(super) fn see(&mut self, event: &ExecutionEvent) -> anyhow::Result<()> {
        if let Some((_, notebook)) = &mut self.notebook {
            notebook.record(event);
        }
        match &mut self.view {
            ProgramAudience::Person(view) => view.see(event, &mut self.out),
            ProgramAudience::Program => json::program(None, event, &mut self.out),
        }
    }

    /// Copies out what an ended program made, and prints its end.
    pub(super) async fn end(&mut self, finished: &Finished, from: &mut impl OutputFiles) -> anyhow::Result<Exit> {
        let exit = Exit::of_outcome(&finished.outcome);
        let mut saved = self.out.copy(from, &finished.files).await?;
        saved.extend(self.save_notebook()?);
        match &mut self.view {
            ProgramAudience::Person(view) => {
                view.outcome(finished)?;
                view.files(&saved)?;
            }
            ProgramAudience::Program => {
                let message = (exit != Exit::Success).then(|| describe_only(finished));
                json::end(json::EndLine::program(exit, &saved, message))?;
            }
        }
        Ok(exit)
    }

    /// Reports that a program was not allowed to run.
    pub(super) fn refused(&mut self, reason: &str) -> anyhow::Result<Exit> {
        let message = format!("the program was not allowed to run: {reason}");
        console::fail(&message);
        let saved: Vec<SavedFile> = self.save_notebook()?.into_iter().collect();
        match &mut self.view {
            ProgramAudience::Person(view) => view.files(&saved)?,
            ProgramAudience::Program => json::end(json::EndLine::program(Exit::ProgramFailed, &saved, Some(message)))?,
        }
        Ok(Exit::ProgramFailed)
    }

    /// Writes the notebook with its outputs, if one is run and files are to be written.
    fn save_notebook(&mut self) -> anyhow::Result<Option<SavedFile>> {
        let Some((name, notebook)) = self.notebook.as_ref().filter(|_| self.out.keeps_files()) else { return Ok(None) };
        let text = notebook.text().context("cannot write the notebook")?;
        let path = self.out.write(name, text.as_bytes())?;
        let entry = FileEntry { path: name.clone(), size: text.len() as u64, mime: mime_of(name) };
        Ok(Some(SavedFile { entry, path: Some(path) }))
    }
}
