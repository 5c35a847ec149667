//! Output of a command as it comes: sanitized on a terminal, unchanged elsewhere.

use std::io::{self, IsTerminal, Write};

use aludel_wire::e2b::process::{Ended, Output};

use crate::console::{Console, StandardStream};
use crate::exit::Exit;

/// Output of a command.
pub(super) struct OutputPrinter {
    console: Console,
    /// The bytes of an incomplete character, for each stream.
    begun: [Vec<u8>; 2],
    is_terminal: [bool; 2],
}

impl OutputPrinter {
    pub(super) fn new() -> Self {
        let is_terminal = [io::stdout().is_terminal(), io::stderr().is_terminal()];
        Self { console: Console::new(), begun: Default::default(), is_terminal }
    }

    /// Shows a piece.
    pub(super) fn show(&mut self, output: &Output) -> io::Result<()> {
        let (stream, bytes) = match output {
            Output::Stdout(bytes) | Output::Pty(bytes) => (StandardStream::Stdout, &bytes.0),
            Output::Stderr(bytes) => (StandardStream::Stderr, &bytes.0),
        };
        let index = usize::from(stream == StandardStream::Stderr);
        if !self.is_terminal.get(index).copied().unwrap_or_default() {
            return match stream {
                StandardStream::Stdout => write(&mut io::stdout().lock(), bytes),
                StandardStream::Stderr => write(&mut io::stderr().lock(), bytes),
            };
        }
        let Some(begun) = self.begun.get_mut(index) else { return Ok(()) };
        begun.extend_from_slice(bytes);
        let text = whole_characters(begun);
        self.console.foreign(stream, &text)
    }
}

fn write(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Takes everything except an incomplete character at the end.
fn whole_characters(bytes: &mut Vec<u8>) -> String {
    let mut end = bytes.len();
    for (index, byte) in bytes.iter().enumerate().rev().take(3) {
        let length = match byte {
            0b1100_0000..=0b1101_1111 => 2,
            0b1110_0000..=0b1110_1111 => 3,
            0b1111_0000.. => 4,
            0b1000_0000..=0b1011_1111 => continue,
            _ => break,
        };
        if index + length > bytes.len() {
            end = index;
        }
        break;
    }
    let rest = bytes.split_off(end);
    let text = String::from_utf8_lossy(bytes).into_owned();
    *bytes = rest;
    text
}

/// The status of an ended command, as in shells.
pub(super) fn status(ended: &Ended) -> Exit {
    if let Ok(code) = u8::try_from(ended.exit_code) {
        return Exit::Of(code);
    }
    let signal = ended.status.strip_prefix("signal: ").unwrap_or_default();
    Exit::Of(match signal {
        "killed" => 128 + 9,
        "terminated" => 128 + 15,
        number => number.parse::<u8>().ok().and_then(|number| number.checked_add(128)).unwrap_or(255),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_whole_however_they_are_cut() {
        let text = "a€ü\u{1f600}z";
        for cut in 0..=text.len() {
            let (left, right) = text.as_bytes().split_at(cut);
            let mut bytes = left.to_vec();
            let mut shown = whole_characters(&mut bytes);
            bytes.extend_from_slice(right);
            shown += &whole_characters(&mut bytes);
            assert_eq!(shown, text, "cut at {cut}");
        }
        assert_eq!(whole_characters(&mut vec![0xff, b'a']), "\u{fffd}a");
    }

    #[test]
    fn a_signal_is_a_status_of_a_shell() {
        let ended = |exit_code, status: &str| Ended { exit_code, status: status.to_owned(), ..ended_well() };
        assert_eq!(status(&ended(7, "exit status 7")), Exit::Of(7));
        assert_eq!(status(&ended(-1, "signal: killed")), Exit::Of(137));
        assert_eq!(status(&ended(-1, "signal: 11")), Exit::Of(139));
    }

    fn ended_well() -> Ended {
        Ended { exit_code: 0, exited: true, status: String::new(), error: None }
    }
}
