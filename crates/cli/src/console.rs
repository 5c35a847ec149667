//! The two streams of a command: results go to stdout, everything about them to stderr.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use aludel_ignore::Ignore;

use crate::color;
use crate::terminal::Sanitizer;

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StandardStream {
    /// Results.
    Stdout,
    /// Words about them.
    Stderr,
}

/// Writes to both, and knows where the cursor is.
#[derive(Debug)]
pub(crate) struct Console {
    stdout: Side,
    stderr: Side,
}

#[derive(Debug, Default)]
struct Side {
    /// Present on a terminal only; elsewhere text is written unchanged.
    sanitizer: Option<Sanitizer>,
    /// True if the last line was not ended.
    open_line: bool,
}

impl Console {
    pub(crate) fn new() -> Self {
        let side = |is_terminal: bool| Side { sanitizer: is_terminal.then(Sanitizer::default), open_line: false };
        Self { stdout: side(io::stdout().is_terminal()), stderr: side(io::stderr().is_terminal()) }
    }

    /// Passes on text that a program or a model wrote.
    pub(crate) fn foreign(&mut self, stream: StandardStream, text: &str) -> io::Result<()> {
        match &mut self.side(stream).sanitizer {
            Some(sanitizer) => {
                let text = sanitizer.clean(text);
                self.write(stream, &text)
            }
            None => self.write(stream, text),
        }
    }

    /// Text that a program or a model wrote, harmless for a terminal.
    pub(crate) fn clean(&mut self, stream: StandardStream, text: &str) -> String {
        match &mut self.side(stream).sanitizer {
            Some(sanitizer) => sanitizer.clean(text),
            None => text.to_owned(),
        }
    }

    /// Writes text of our own as it is.
    pub(crate) fn write(&mut self, stream: StandardStream, text: &str) -> io::Result<()> {
        let Some(last) = text.chars().next_back() else { return Ok(()) };
        // Colours end after the line does.
        let ends_line = last == '\n' || text.ends_with("\n\u{1b}[0m");
        self.side(stream).open_line = !ends_line;
        match stream {
            StandardStream::Stdout => put(&mut io::stdout().lock(), text),
            StandardStream::Stderr => put(&mut io::stderr().lock(), text),
        }
    }

    /// Returns true if no line was begun.
    pub(crate) fn is_at_start(&self) -> bool {
        !self.stdout.open_line && !self.stderr.open_line
    }

    /// Writes what leaves the cursor in its line and is erased again.
    pub(crate) fn status(&mut self, text: &str) -> io::Result<()> {
        put(&mut io::stderr().lock(), text)
    }

    /// A line of our own, on a line of its own.
    pub(crate) fn line(&mut self, stream: StandardStream, text: &str) -> io::Result<()> {
        self.end_line(stream)?;
        self.write(stream, &format!("{text}\n"))
    }

    /// Something about the result.
    pub(crate) fn note(&mut self, text: &str) -> io::Result<()> {
        self.line(StandardStream::Stderr, text)
    }

    /// Ends the current line, if it is not empty.
    pub(crate) fn end_line(&mut self, stream: StandardStream) -> io::Result<()> {
        let shared = self.stdout.sanitizer.is_some() && self.stderr.sanitizer.is_some();
        let open = if shared { self.stdout.open_line || self.stderr.open_line } else { self.side(stream).open_line };
        if open {
            self.write(stream, "\n")?;
        }
        if shared {
            (self.stdout.open_line, self.stderr.open_line) = (false, false);
        }
        Ok(())
    }

    /// Moves the cursor to a new line. On anything but a terminal, nothing is added.
    pub(crate) fn finish(&mut self, stream: StandardStream) -> io::Result<()> {
        if self.side(stream).sanitizer.is_some() { self.end_line(stream) } else { Ok(()) }
    }

    fn side(&mut self, stream: StandardStream) -> &mut Side {
        match stream {
            StandardStream::Stdout => &mut self.stdout,
            StandardStream::Stderr => &mut self.stderr,
        }
    }
}

/// Writes a status message to stderr; failures are ignored. If the process has a log for programs, the message becomes a line of it.
pub(crate) fn status(text: &str) {
    say(MessageLevel::Info, "", text);
}

/// Prints a warning: something works, but should be looked at.
pub(crate) fn warn(text: &str) {
    say(MessageLevel::Warning, &format!("{} ", color::warning("warning:")), text);
}

/// Prints an error.
pub(crate) fn fail(text: &str) {
    say(MessageLevel::Error, &format!("{} ", color::error("error:")), text);
}

/// Weight of a message outside of any result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageLevel {
    /// Progress.
    Info,
    /// Something that works and should be looked at.
    Warning,
    /// Something that does not work.
    Error,
}

/// A log that may take a message. Returns true if it did.
pub(crate) type LogSink = fn(MessageLevel, &str) -> bool;

/// The log of this process, if it has one.
static LOG: OnceLock<LogSink> = OnceLock::new();

/// Writes lines of text to stderr in the place of this module.
static WRITER: OnceLock<fn(&str)> = OnceLock::new();

/// Has all later messages that no log takes written by this.
pub(crate) fn write_by(write: fn(&str)) {
    WRITER.get_or_init(|| write);
}

/// Passes all later messages to a log. Only the first log counts.
pub(crate) fn log_to(log: LogSink) {
    LOG.get_or_init(|| log);
}

fn say(level: MessageLevel, mark: &str, text: &str) {
    if LOG.get().is_some_and(|log| log(level, text)) {
        return;
    }
    match WRITER.get() {
        Some(write) => write(&format!("{mark}{text}")),
        None => {
            put(&mut io::stderr().lock(), &format!("{mark}{text}\n")).ignore("there is no other place to report it");
        }
    }
}

fn put(stream: &mut impl Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
}
