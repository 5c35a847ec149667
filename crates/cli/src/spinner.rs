//! An animated line for waits without output, with the time and the reason.

use std::time::{Duration, Instant};

/// Time between two pictures.
pub(crate) const FRAME_INTERVAL: Duration = Duration::from_millis(120);
/// Time that passes before it is worth a word.
const SHOW_DELAY: Duration = Duration::from_millis(400);
/// Its pictures.
const PICTURES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
/// Makes room for what comes.
const ERASE: &str = "\r\u{1b}[K";

/// A line at the cursor, which must be at the beginning of one.
#[derive(Debug, Default)]
pub(crate) struct Spinner {
    /// The thing that is waited for, and since when.
    wait: Option<(&'static str, Instant)>,
    is_shown: bool,
}

impl Spinner {
    /// Begins to wait for something, if it does not already.
    pub(crate) fn wait_for(&mut self, what: &'static str) {
        if self.wait.is_none_or(|(already, _)| already != what) {
            self.wait = Some((what, Instant::now()));
        }
    }

    /// Ends the wait.
    pub(crate) fn end(&mut self) {
        self.wait = None;
    }

    /// The line at this moment, in a terminal of this width; `None` as long as there is nothing to show.
    pub(crate) fn turn(&mut self, width: usize) -> Option<String> {
        let (what, since) = self.wait?;
        let waited = since.elapsed();
        let line = line(what, waited).filter(|line| line.chars().count() < width)?;
        self.is_shown = true;
        Some(line)
    }

    /// The sequence that takes the line away, if it is there.
    pub(crate) fn erase(&mut self) -> Option<&'static str> {
        std::mem::take(&mut self.is_shown).then_some(ERASE)
    }
}

/// The line after so much time.
fn line(what: &str, waited: Duration) -> Option<String> {
    let picture = waited.as_millis().checked_div(FRAME_INTERVAL.as_millis())? % PICTURES.len() as u128;
    let picture = PICTURES.get(usize::try_from(picture).ok()?)?;
    (waited >= SHOW_DELAY).then(|| match waited.as_secs() {
        0 => format!("{picture} {what}"),
        seconds => format!("{picture} {what}, {seconds} s"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_wait_is_worth_no_word() {
        let after = |milliseconds| line("waiting", Duration::from_millis(milliseconds));
        assert_eq!(after(100), None);
        assert_eq!(after(500).as_deref(), Some("⠼ waiting"));
        assert_eq!(after(61_000).as_deref(), Some("⠇ waiting, 61 s"));
    }

    #[test]
    fn it_is_erased_once_and_fits_its_line() {
        let mut spinner = Spinner::default();
        assert_eq!((spinner.turn(80), spinner.erase()), (None, None));
        spinner.wait = Some(("waiting", Instant::now().checked_sub(Duration::from_secs(2)).unwrap()));
        assert_eq!(spinner.turn(10), None);
        assert!(spinner.turn(80).is_some_and(|line| line.ends_with("waiting, 2 s")));
        assert_eq!((spinner.erase(), spinner.erase()), (Some(ERASE), None));
    }
}
