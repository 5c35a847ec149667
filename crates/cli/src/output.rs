//! Showing what executions tell, and bringing out what they made.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use aludel_agent::size;
use aludel_session::{Event, FileEntry, MimeBundle, MimeData, Session};
use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::paint;
use crate::terminal::{self, Sanitizer};

/// Where errors go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errors {
    /// To standard error, as those of a program that is run.
    Apart,
    /// Among everything else, as parts of a conversation.
    Inline,
}

/// Prints the events of executions as they come, and keeps the images.
pub(crate) struct Printer {
    errors: Errors,
    stdout: Sanitizer,
    stderr: Sanitizer,
    interactive: bool,
    /// Whether the last thing printed ended its line.
    at_line_start: bool,
    figures: Figures,
}

/// Saves displayed images, numbered, into a directory.
pub(crate) struct Figures {
    directory: Option<PathBuf>,
    count: usize,
}

impl Figures {
    /// Images go to this directory; without one they are only counted.
    pub(crate) fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, count: 0 }
    }

    /// Saves the image of a bundle, if it has one, and returns its path.
    fn save(&mut self, bundle: &MimeBundle) -> anyhow::Result<Option<PathBuf>> {
        let Some((mime, data)) = bundle.image() else { return Ok(None) };
        self.count += 1;
        let Some(directory) = &self.directory else { return Ok(None) };
        std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        let ending = if mime == "image/jpeg" { "jpg" } else { "png" };
        let path = directory.join(format!("figure-{}.{ending}", self.count));
        std::fs::write(&path, data).with_context(|| format!("write {}", path.display()))?;
        Ok(Some(path))
    }

    /// How many were not saved.
    pub(crate) fn unsaved(&self) -> usize {
        if self.directory.is_some() { 0 } else { self.count }
    }
}

impl Printer {
    pub(crate) fn new(figures: Figures, errors: Errors) -> Self {
        let interactive = terminal::is_interactive();
        Self {
            errors,
            stdout: Sanitizer::default(),
            stderr: Sanitizer::default(),
            interactive,
            at_line_start: true,
            figures,
        }
    }

    pub(crate) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Prints an event of a running program.
    pub(crate) fn event(&mut self, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Stdout(text) => {
                let text = if self.interactive { self.stdout.clean(text) } else { text.clone() };
                self.print(&text);
            }
            Event::Stderr(text) => {
                let text = if self.interactive { self.stderr.clean(text) } else { text.clone() };
                self.print_error(&text);
            }
            Event::Display(bundle) | Event::Result(bundle) => {
                if let Some(path) = self.figures.save(bundle)? {
                    self.fresh_line();
                    self.print(&format!("{}\n", paint::faint(&format!("[image: {}]", path.display()))));
                } else if bundle.image().is_none()
                    && let Some(text) = bundle.text()
                {
                    self.fresh_line();
                    let text = if self.interactive { terminal::clean(text) } else { text.to_owned() };
                    self.print(&format!("{text}\n"));
                }
            }
            Event::Error(error) => {
                self.fresh_line();
                let text = if self.interactive { terminal::clean(&error.traceback) } else { error.traceback.clone() };
                self.print_error(&format!("{}\n", paint::error(&text)));
            }
            Event::Finished(_) => self.fresh_line(),
        }
        Ok(())
    }

    /// Prints text of our own or of a model, which has been cleaned.
    pub(crate) fn print(&mut self, text: &str) {
        if let Some(last) = text.chars().last() {
            self.at_line_start = last == '\n';
        }
        let mut out = std::io::stdout().lock();
        // Whoever reads us may have gone; the end of the pipe is noticed at the next event that matters.
        let _broken_pipe = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    fn print_error(&mut self, text: &str) {
        match self.errors {
            Errors::Apart => eprint!("{text}"),
            Errors::Inline => self.print(text),
        }
    }

    /// Ends the line if something stands on it.
    pub(crate) fn fresh_line(&mut self) {
        if !self.at_line_start {
            self.print("\n");
        }
    }
}

/// Copies files of the workspace into a directory of the host, and returns their paths. Names stay as they are where that is harmless.
pub(crate) async fn copy_files(session: &Session, files: &[FileEntry], out: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut copied = Vec::new();
    for file in files {
        let target = out.join(harmless(&file.path));
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
        }
        session
            .copy_out(&file.path, &target)
            .await
            .with_context(|| format!("copy {} out", terminal::name(&file.path)))?;
        copied.push(target);
    }
    Ok(copied)
}

/// A relative path that stays below the directory it is joined to and holds nothing that could upset a terminal.
fn harmless(path: &str) -> PathBuf {
    let name = |part: &str| {
        part.chars()
            .map(|c| if c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c) { '_' } else { c })
            .collect::<String>()
    };
    let parts: PathBuf = Path::new(path)
        .components()
        .filter_map(|part| match part {
            Component::Normal(part) => Some(name(&part.to_string_lossy())),
            _ => None,
        })
        .collect();
    if parts.as_os_str().is_empty() { "file".into() } else { parts }
}

/// Copies what was made into `out`, or says what there is and how to get it.
pub(crate) async fn deliver(
    session: &Session,
    made: &BTreeSet<String>,
    out: Option<&Path>,
) -> anyhow::Result<Vec<PathBuf>> {
    let all = session.files().await?;
    let made: Vec<FileEntry> = all.into_iter().filter(|file| made.contains(&file.path)).collect();
    match out {
        Some(out) => copy_files(session, &made, out).await,
        None => {
            if !made.is_empty() {
                let names: Vec<_> =
                    made.iter().map(|file| format!("{} ({})", terminal::name(&file.path), size(file.size))).collect();
                eprintln!(
                    "{}",
                    paint::faint(&format!(
                        "made, and gone with the sandbox: {}; keep files with --out DIR",
                        names.join(", ")
                    ))
                );
            }
            Ok(Vec::new())
        }
    }
}

/// An event of an execution as one JSON value.
pub(crate) fn event_json(event: &Event) -> Value {
    let bundle_json = |bundle: &MimeBundle| -> Value {
        let data = |data: &MimeData| match data {
            MimeData::Text(text) => text.clone(),
            MimeData::Binary(bytes) => BASE64_STANDARD.encode(bytes),
        };
        bundle
            .0
            .iter()
            .map(|(mime, content)| (mime.clone(), Value::String(data(content))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    match event {
        Event::Stdout(text) => json!({ "type": "stdout", "text": text }),
        Event::Stderr(text) => json!({ "type": "stderr", "text": text }),
        Event::Display(bundle) => json!({ "type": "display", "data": bundle_json(bundle) }),
        Event::Result(bundle) => json!({ "type": "result", "data": bundle_json(bundle) }),
        Event::Error(error) => {
            json!({ "type": "error", "name": error.name, "value": error.value, "traceback": error.traceback })
        }
        Event::Finished(finished) => {
            let files: Vec<_> = finished
                .files
                .iter()
                .map(|file| json!({ "path": file.path, "size": file.size, "mime": file.mime }))
                .collect();
            json!({
                "type": "finished",
                "outcome": outcome_name(&finished.outcome),
                "message": aludel_agent::describe_outcome(finished),
                "files": files,
                "seconds": finished.elapsed.as_secs_f64(),
                "output_dropped": finished.output_dropped,
                "state_kept": finished.state == aludel_session::State::Kept,
            })
        }
    }
}

/// Outcomes by their names for machines.
fn outcome_name(outcome: &aludel_session::Outcome) -> &'static str {
    use aludel_session::{LimitHit, Outcome};
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Failed(_) => "failed",
        Outcome::Interrupted => "interrupted",
        Outcome::KernelDied(_) => "kernel_died",
        Outcome::Limit(LimitHit::Memory { .. }) => "limit_memory",
        Outcome::Limit(LimitHit::WallClock { .. }) => "limit_time",
        Outcome::Limit(LimitHit::Disk { .. }) => "limit_disk",
        Outcome::Limit(LimitHit::Files { .. }) => "limit_files",
    }
}

/// Prints a JSON value on a line of its own.
pub(crate) fn print_json(value: &Value) {
    let mut out = std::io::stdout().lock();
    let _broken_pipe = writeln!(out, "{value}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_their_directory() {
        for (given, expected) in [
            ("a/b.csv", "a/b.csv"),
            ("../x", "x"),
            ("/etc/x", "etc/x"),
            ("a\n\u{1b}[31mb", "a__[31mb"),
            ("..", "file"),
            ("", "file"),
        ] {
            assert_eq!(harmless(given), PathBuf::from(expected), "{given:?}");
        }
    }
}
