//! A running program and a turn, shown to a person.

use std::time::Duration;

use aludel_agent::{describe_outcome, size};
use aludel_engine::turns::{EndReason, EventKind};
use aludel_sandbox::{ExecutionEvent, Finished, LimitHit, MimeBundle, MimeData, Outcome, VariablesState};

use crate::console::{Console, StandardStream};
use crate::fold::Fold;
use crate::image_protocol::ImageProtocol;
use crate::markdown::Markdown;
use crate::output_directory::{OutputDirectory, SavedFile};
use crate::spinner::Spinner;
use crate::{color, ending, terminal, wrap};

/// Shows the events of an execution. The program's stdout goes to stdout, everything else to stderr.
pub(crate) struct ProgramView {
    console: Console,
    /// Stream of the program's stdout and results.
    results: StandardStream,
    /// Its output, where a person need not see all of it.
    fold: Option<Fold>,
    /// The way in which figures are shown at once.
    pictures: Option<ImageProtocol>,
}

impl ProgramView {
    /// A view of a program that the user named: its output is the result.
    pub(crate) fn of_program() -> Self {
        Self::new(StandardStream::Stdout, None)
    }

    /// For the programs of a model: its answer is the result.
    fn of_turn(is_verbose: bool) -> Self {
        Self::new(StandardStream::Stderr, (color::is_on() && !is_verbose).then(Fold::default))
    }

    fn new(results: StandardStream, fold: Option<Fold>) -> Self {
        let pictures = ImageProtocol::of(|name| std::env::var(name).ok()).filter(|_| color::is_on());
        Self { console: Console::new(), results, fold, pictures }
    }

    pub(crate) fn see(&mut self, event: &ExecutionEvent, out: &mut OutputDirectory) -> anyhow::Result<()> {
        if !matches!(event, ExecutionEvent::Stdout(_) | ExecutionEvent::Stderr(_)) {
            self.unfold()?;
        }
        match event {
            ExecutionEvent::Stdout(text) => self.print(self.results, text)?,
            ExecutionEvent::Stderr(text) => self.print(StandardStream::Stderr, text)?,
            ExecutionEvent::Display(bundle) | ExecutionEvent::Result(bundle) => self.value(bundle, out)?,
            ExecutionEvent::Error(error) => {
                self.console.end_line(StandardStream::Stderr)?;
                self.console.foreign(StandardStream::Stderr, &format!("{}\n", error.traceback.trim_end()))?;
            }
            ExecutionEvent::Calls(_) => {}
            ExecutionEvent::Finished(_) => self.console.finish(self.results)?,
        }
        Ok(())
    }

    fn print(&mut self, stream: StandardStream, text: &str) -> anyhow::Result<()> {
        let text = self.fold.as_mut().map_or(text, |fold| fold.push(text));
        Ok(self.console.foreign(stream, text)?)
    }

    /// Shows the end of what was folded.
    fn unfold(&mut self) -> anyhow::Result<()> {
        let Some((hidden, last)) = self.fold.as_mut().map(Fold::end) else { return Ok(()) };
        if hidden > 0 {
            self.console.note(&color::faint(&format!("… {hidden} lines (all of them with --verbose)")))?;
        }
        Ok(self.console.foreign(StandardStream::Stderr, &last)?)
    }

    /// An image is saved; anything else is shown by its text.
    fn value(&mut self, bundle: &MimeBundle, out: &mut OutputDirectory) -> anyhow::Result<()> {
        if let Some((form, path)) = out.figure(bundle) {
            let name = format!("{}:", form.name());
            let sequence = bundle
                .image()
                .zip(self.pictures)
                .and_then(|((mime, image), way)| way.show(mime, image, terminal::pixels()));
            if let Some(sequence) = sequence {
                self.console.end_line(StandardStream::Stderr)?;
                self.console.write(StandardStream::Stderr, &sequence)?;
            }
            self.console.note(&format!("{} {}", color::faint(&name), color::link(&path)))?;
            return Ok(());
        }
        let any_text = || {
            bundle.0.iter().find_map(|(_, data)| match data {
                MimeData::Text(text) => Some(text.as_str()),
                MimeData::Binary(_) => None,
            })
        };
        if let Some(text) = bundle.text().or_else(any_text) {
            self.console.end_line(self.results)?;
            self.console.foreign(self.results, &format!("{}\n", text.trim_end_matches('\n')))?;
        }
        Ok(())
    }

    /// Shows an unusual end of the only program of a sandbox; a traceback was shown already.
    pub(crate) fn outcome(&mut self, finished: &Finished) -> anyhow::Result<()> {
        if finished.output_dropped > 0 {
            let dropped = finished.output_dropped;
            let text = format!("{dropped} bytes of output were left out; the limit is sandbox.output");
            self.console.note(&format!("{} {text}", color::warning("note:")))?;
        }
        if finished.files_left_out > 0 {
            let text = format!(
                "{} more of the program's files or directories cannot be copied out: their names are not UTF-8, their paths are too long \
                 or too deep, or there are too many",
                finished.files_left_out
            );
            self.console.note(&format!("{} {text}", color::warning("note:")))?;
        }
        if !finished.relevant_refused_calls().is_empty() {
            let text = format!("not allowed in the sandbox: {}", finished.relevant_refused_calls().join(", "));
            self.console.note(&format!("{} {text}", color::warning("note:")))?;
        }
        let advice = match &finished.outcome {
            Outcome::Completed | Outcome::Failed(_) => return Ok(()),
            Outcome::Limit(LimitHit::Memory { of_host: false, .. }) => " Give it more with --memory SIZE.",
            Outcome::Limit(LimitHit::WallClock { .. }) => " Give it more with --timeout TIME.",
            Outcome::Limit(LimitHit::CpuTime { .. }) => " The limit is sandbox.cpu_time.",
            Outcome::Limit(LimitHit::Memory { .. } | LimitHit::Disk { .. } | LimitHit::Files { .. })
            | Outcome::Interrupted
            | Outcome::KernelDied(_) => "",
        };
        let text = describe_only(finished);
        Ok(self.console.note(&format!("{} {text}{advice}", color::error("aludel:")))?)
    }

    /// Prints the new paths of files.
    pub(crate) fn files(&mut self, saved: &[SavedFile]) -> anyhow::Result<()> {
        for SavedFile { entry, path } in saved {
            let shown = match path {
                Some(path) => color::link(path),
                None => terminal::name(&entry.path),
            };
            self.console.note(&format!("{} {shown} ({})", color::faint("file:"), size(entry.size)))?;
        }
        Ok(())
    }
}

/// Describes the end of the only program of a sandbox. Lost variables are not mentioned, because no program follows.
pub(crate) fn describe_only(finished: &Finished) -> String {
    describe_outcome(&Finished {
        state: VariablesState::Kept,
        files_left_out: 0,
        output_dropped: 0,
        files: Vec::new(),
        refused_calls: Vec::new(),
        ..finished.clone()
    })
}

/// Shows the events of a turn. The model's text goes to stdout, everything else to stderr.
pub(crate) struct TurnView {
    program: ProgramView,
    /// The program that is being written, as far as it was shown.
    code: String,
    thinking: bool,
    running: bool,
    /// The text of the model, where it is painted.
    markdown: Option<Markdown>,
    /// A sign of life, where there is paint.
    spinner: Option<Spinner>,
}

impl TurnView {
    /// If it `is_verbose`, all output of programs is shown; otherwise it is folded on a terminal.
    pub(crate) fn new(is_verbose: bool) -> Self {
        let markdown = color::is_on().then(|| Markdown::new(terminal::width()));
        let program = ProgramView::of_turn(is_verbose);
        let spinner = color::is_on().then(Spinner::default);
        Self { program, code: String::new(), thinking: false, running: false, markdown, spinner }
    }

    /// Shows that the turn goes on, if nothing else does and the cursor is at the beginning of a line.
    pub(crate) fn tick(&mut self) -> anyhow::Result<()> {
        let Some(spinner) = &mut self.spinner else { return Ok(()) };
        if self.program.console.is_at_start()
            && let Some(line) = spinner.turn(terminal::width())
        {
            self.program.console.status(&format!("\r{}\u{1b}[K", color::faint(&line)))?;
        }
        Ok(())
    }

    /// Takes the sign of life away.
    pub(crate) fn hush(&mut self) -> anyhow::Result<()> {
        match self.spinner.as_mut().and_then(Spinner::erase) {
            Some(sequence) => Ok(self.program.console.status(sequence)?),
            None => Ok(()),
        }
    }

    /// Notes the thing that is waited for after an event.
    fn wait_after(&mut self, event: &EventKind) {
        let Some(spinner) = &mut self.spinner else { return };
        match event {
            EventKind::RoundStarted { .. } => spinner.wait_for("waiting for the model"),
            // A running program becomes visible with its first output.
            EventKind::ToolReady { .. }
            | EventKind::ApprovalDecided { denied: None, .. }
            | EventKind::ToolRunning { .. } => spinner.wait_for("the program runs"),
            EventKind::Output { .. } | EventKind::Retrying { .. } => {}
            _ => spinner.end(),
        }
    }

    /// `of_program` is the event of a program's execution in it.
    pub(crate) fn see(
        &mut self,
        event: &EventKind,
        of_program: Option<&ExecutionEvent>,
        out: &mut OutputDirectory,
    ) -> anyhow::Result<()> {
        self.hush()?;
        self.wait_after(event);
        let console = &mut self.program.console;
        if self.thinking && !matches!(event, EventKind::Reasoning { .. }) {
            self.thinking = false;
            console.end_line(StandardStream::Stderr)?;
        }
        if let Some(markdown) =
            self.markdown.as_mut().filter(|_| !matches!(event, EventKind::Text { .. } | EventKind::Refusal { .. }))
        {
            console.write(StandardStream::Stdout, &markdown.flush())?;
        }
        match event {
            EventKind::Text { delta, .. } | EventKind::Refusal { delta, .. } => match &mut self.markdown {
                Some(markdown) => {
                    let text = markdown.push(&console.clean(StandardStream::Stdout, delta));
                    console.write(StandardStream::Stdout, &text)?;
                }
                None => console.foreign(StandardStream::Stdout, delta)?,
            },
            EventKind::Reasoning { delta, .. } => {
                self.thinking = true;
                console.write(StandardStream::Stderr, &color::faint(&terminal::clean(delta)))?;
            }
            EventKind::Retrying { wait_ms, reason } => {
                let seconds = Duration::from_millis(*wait_ms).as_secs_f64().ceil();
                let text = format!("{} Trying again in {seconds:.0} s.", terminal::name(reason));
                console.note(&format!("{} {text}", color::warning("waiting:")))?;
            }
            EventKind::ToolStarted { .. } => {
                self.code.clear();
                console.end_line(StandardStream::Stdout)?;
                console.note(&color::faint("── program ──"))?;
            }
            EventKind::ToolInput { delta, .. } => {
                self.code.push_str(delta);
                console.write(StandardStream::Stderr, &color::code(&terminal::reveal(delta)))?;
            }
            EventKind::ToolReady { input, .. } => self.code_finished(input)?,
            EventKind::ApprovalDecided { denied: Some(reason), .. } => {
                console.note(&format!("{} {}", color::warning("not run:"), terminal::name(reason)))?;
            }
            EventKind::Output { .. } | EventKind::ToolEnded { .. } => {
                if let Some(event) = of_program {
                    self.execution(event, out)?;
                }
            }
            EventKind::ToolRejected { reason, .. } => {
                console.note(&format!("{} {}", color::warning("rejected:"), terminal::name(reason)))?;
            }
            EventKind::Ended { ending, .. } => self.ending(ending)?,
            EventKind::Created { .. }
            | EventKind::Started
            | EventKind::Resumed { .. }
            | EventKind::RoundStarted { .. }
            | EventKind::TextEnded { .. }
            | EventKind::ApprovalRequested { .. }
            | EventKind::ApprovalPending { .. }
            | EventKind::ApprovalDecided { denied: None, .. }
            | EventKind::ToolResumed { .. }
            | EventKind::ToolRunning { .. }
            | EventKind::Observed { .. }
            | EventKind::Usage { .. }
            | EventKind::Closed => {}
        }
        Ok(())
    }

    /// Shows the rest of a program, so that all of it was shown exactly as it runs, even if it did not stream or was corrected at the end.
    fn code_finished(&mut self, code: &str) -> anyhow::Result<()> {
        let console = &mut self.program.console;
        if self.code != code {
            if !self.code.is_empty() {
                console.note(&color::faint("── program, as it will be run ──"))?;
            }
            console.write(StandardStream::Stderr, &color::code(&terminal::reveal(code)))?;
        }
        self.code.clear();
        Ok(console.end_line(StandardStream::Stderr)?)
    }

    fn execution(&mut self, event: &ExecutionEvent, out: &mut OutputDirectory) -> anyhow::Result<()> {
        if !self.running {
            self.running = true;
            self.program.console.note(&color::faint("── output ──"))?;
        }
        self.program.see(event, out)?;
        if let ExecutionEvent::Finished(finished) = event {
            self.running = false;
            let files: Vec<_> = finished
                .files
                .iter()
                .map(|file| format!("{} ({})", terminal::name(&file.path), size(file.size)))
                .collect();
            let files = if files.is_empty() { String::new() } else { format!(" Files: {}", files.join(", ")) };
            let time = finished.elapsed.as_secs_f64();
            let text = format!("── {} {time:.1} s.{files} ──", describe_outcome(finished));
            self.program.console.note(&color::faint(&wrap::hanging(&text, 3)))?;
        }
        Ok(())
    }

    fn ending(&mut self, ending: &EndReason) -> anyhow::Result<()> {
        let console = &mut self.program.console;
        console.end_line(StandardStream::Stdout)?;
        // An error of our own is shown as the command's error instead.
        if let Some(text) = ending.words().filter(|_| ending::failure_of(ending).is_none()) {
            console.note(&format!("{} {}", color::error("aludel:"), terminal::clean(&text)))?;
        }
        Ok(())
    }

    /// Returns the console, for anything but events.
    pub(crate) fn console(&mut self) -> &mut Console {
        &mut self.program.console
    }

    /// Prints the paths of the turn's files.
    pub(crate) fn files(&mut self, saved: &[SavedFile]) -> anyhow::Result<()> {
        self.program.files(saved)
    }
}
