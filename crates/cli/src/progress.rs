//! Progress of the template's build: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use aludel_agent::size;
use aludel_sandbox::template::BuildProgress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::console::status;
use crate::terminal;

/// Shows [`BuildProgress`] on stderr.
pub(crate) struct TemplateProgress {
    display: ProgressDisplay,
    /// Printed before the first step; not printed if there is nothing to build.
    announcement: Option<&'static str>,
}

enum ProgressDisplay {
    Bar(ProgressBar),
    Lines {
        /// Units of the phase that goes on.
        total: u64,
        /// The tenth of them that was said last.
        tenth: u64,
    },
}

impl TemplateProgress {
    /// Progress of the default template.
    pub(crate) fn of_default() -> Self {
        Self::new("Preparing the Python template. This happens once and takes some minutes and 1.8 GB.")
    }

    /// Progress of an operator's template.
    pub(crate) fn of_own() -> Self {
        Self::new("Building the template. Its packages are fetched by pip.")
    }

    /// Progress of an archive.
    pub(crate) fn of_archive() -> Self {
        Self::new("This takes a minute.")
    }

    fn new(announcement: &'static str) -> Self {
        let display = if std::io::stderr().is_terminal() {
            ProgressDisplay::Bar(ProgressBar::new_spinner())
        } else {
            ProgressDisplay::Lines { total: 0, tenth: 0 }
        };
        Self { display, announcement: Some(announcement) }
    }

    /// Shows the next step.
    pub(crate) fn show(&mut self, progress: &BuildProgress) {
        if let Some(announcement) = self.announcement.take() {
            status(announcement);
        }
        match &mut self.display {
            ProgressDisplay::Bar(bar) => on_bar(bar, progress),
            ProgressDisplay::Lines { total, tenth } => on_lines(total, tenth, progress),
        }
        if let BuildProgress::Finished { bytes, elapsed } = progress {
            status(&format!("The template is ready: {} in {:.0} s.", size(*bytes), elapsed.as_secs_f64()));
        }
    }
}

fn on_bar(bar: &ProgressBar, progress: &BuildProgress) {
    match progress {
        BuildProgress::Phase { name, total } => {
            let counted = "{spinner} {prefix} [{bar:30}] {pos}/{len}  {wide_msg}";
            let template = if *total > 0 { counted } else { "{spinner} {prefix}  {wide_msg}" };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("━╸ "));
            }
            bar.set_length(*total);
            bar.set_position(0);
            bar.set_prefix(*name);
            bar.set_message("");
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        BuildProgress::Step { done, what } => {
            bar.set_position(*done);
            bar.set_message(terminal::name(what));
        }
        BuildProgress::Finished { .. } => bar.finish_and_clear(),
    }
}

fn on_lines(total: &mut u64, tenth: &mut u64, progress: &BuildProgress) {
    match progress {
        BuildProgress::Phase { name, total: units } => {
            (*total, *tenth) = (*units, 0);
            status(&format!("  {name}"));
        }
        BuildProgress::Step { done, what } if *total > 0 => {
            let reached = done.saturating_mul(10) / *total;
            if reached > *tenth {
                *tenth = reached;
                status(&format!("  {done} of {total}: {}", terminal::name(what)));
            }
        }
        BuildProgress::Step { .. } | BuildProgress::Finished { .. } => {}
    }
}
