//! Progress of the template's build: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use aludel_agent::size;
use aludel_sandbox::template::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows [`Progress`] on stderr.
pub(crate) struct TemplateProgress {
    bar: Option<ProgressBar>,
    announced: bool,
    total: u64,
    /// The tenth of the phase that was said last, where there is no bar.
    tenth: u64,
}

impl TemplateProgress {
    pub(crate) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        Self { bar, announced: false, total: 0, tenth: 0 }
    }

    /// Shows the next step.
    pub(crate) fn show(&mut self, progress: &Progress) {
        if !self.announced {
            self.announced = true;
            eprintln!("Preparing the Python template. This happens once and takes about a minute and 1.4 GB.");
        }
        match &self.bar {
            Some(bar) => Self::on_bar(bar, progress),
            None => self.on_lines(progress),
        }
        if let Progress::Finished { bytes, elapsed } = progress {
            eprintln!("The template is ready: {} in {:.0} s.", size(*bytes), elapsed.as_secs_f64());
        }
    }

    fn on_bar(bar: &ProgressBar, progress: &Progress) {
        match progress {
            Progress::Phase { name, total } => {
                let template = if *total > 0 {
                    "{spinner} {prefix} [{bar:30}] {pos}/{len}  {wide_msg}"
                } else {
                    "{spinner} {prefix}  {wide_msg}"
                };
                if let Ok(style) = ProgressStyle::with_template(template) {
                    bar.set_style(style.progress_chars("━╸ "));
                }
                bar.set_length(*total);
                bar.set_position(0);
                bar.set_prefix(*name);
                bar.set_message("");
                bar.enable_steady_tick(Duration::from_millis(120));
            }
            Progress::Step { done, what } => {
                bar.set_position(*done);
                bar.set_message(what.clone());
            }
            Progress::Finished { .. } => bar.finish_and_clear(),
        }
    }

    fn on_lines(&mut self, progress: &Progress) {
        match progress {
            Progress::Phase { name, total } => {
                (self.total, self.tenth) = (*total, 0);
                eprintln!("  {name}");
            }
            Progress::Step { done, what } if self.total > 0 => {
                let tenth = done * 10 / self.total;
                if tenth > self.tenth {
                    self.tenth = tenth;
                    eprintln!("  {done} of {}: {what}", self.total);
                }
            }
            Progress::Step { .. } | Progress::Finished { .. } => {}
        }
    }
}
