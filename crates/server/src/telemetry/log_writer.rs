//! The thread that writes the log of a server. Whoever reads standard error may stall: a log shipper, a terminal after Ctrl-S. Requests and
//! the end of the server do not wait for it: lines beyond a bound are dropped, and counted.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use aludel_ignore::Ignore;
use parking_lot::{Condvar, Mutex};

use super::log_line::{LogFormat, LogLevel, LogLine};

/// Bytes of lines that wait to be written.
const MAX_WAITING: usize = 4 << 20;
/// Bytes that a line takes in memory besides its text.
const LINE_BYTES: usize = 64;

/// The writer of this process, if it has one.
static WRITER: OnceLock<LogWriter> = OnceLock::new();

#[derive(Debug, Default)]
struct LogWriter {
    queue: Mutex<LogQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogQueue {
    lines: VecDeque<String>,
    /// Bytes of these lines, and of those that are being written.
    bytes: usize,
    /// Lines that were dropped since the last report of it.
    dropped: u64,
}

impl LogWriter {
    fn add(&self, line: String) {
        let mut queue = self.queue.lock();
        let bytes = queue.bytes + line.len() + LINE_BYTES;
        if bytes > MAX_WAITING {
            queue.dropped += 1;
            return;
        }
        queue.bytes = bytes;
        queue.lines.push_back(line);
        drop(queue);
        self.changed.notify_all();
    }

    /// Waits for lines and writes them, for ever.
    fn write_all(&self, write: impl Fn(&str)) -> ! {
        loop {
            let mut queue = self.queue.lock();
            self.changed.wait_while(&mut queue, |queue| queue.lines.is_empty());
            let lines = std::mem::take(&mut queue.lines);
            let dropped = std::mem::take(&mut queue.dropped);
            drop(queue);
            let bytes: usize = lines.iter().map(|line| line.len() + LINE_BYTES).sum();
            lines.iter().for_each(|line| write(line));
            if dropped > 0 {
                write(&dropped_lines(dropped));
            }
            self.queue.lock().bytes -= bytes;
            self.changed.notify_all();
        }
    }

    /// Waits until all lines are written, at most for this time.
    fn flush(&self, limit: Duration) {
        self.changed.wait_while_for(&mut self.queue.lock(), |queue| queue.bytes > 0, limit);
    }
}

/// The line in the place of those that were dropped before it.
fn dropped_lines(count: u64) -> String {
    let message = format!("{count} lines of the log were dropped, because nothing read standard error");
    match LogFormat::current() {
        LogFormat::Json => LogLine::new(LogLevel::Warning, &message).render(),
        LogFormat::Text | LogFormat::Off => format!("warning: {message}"),
    }
}

/// Has a thread write the log from now on. Without one, whoever writes a line waits until it is read.
pub fn write_log_aside() {
    let writer = WRITER.get_or_init(LogWriter::default);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(|| writer.write_all(write_now))
        .map(drop)
        .ignore("lines are dropped without it, which only a process without memory or threads sees");
}

/// Writes a line for programs, if the log takes such lines.
pub(super) fn write_if_json(line: LogLine) {
    if LogFormat::is_json() {
        write_line(&line.render());
    }
}

/// Writes a line, or leaves it to the thread of the log.
pub fn write_line(line: &str) {
    match WRITER.get() {
        Some(writer) => writer.add(line.to_owned()),
        None => write_now(line),
    }
}

/// Waits until the thread of the log, if there is one, has written all lines: at most for this time.
pub fn flush_log(limit: Duration) {
    if let Some(writer) = WRITER.get() {
        writer.flush(limit);
    }
}

fn write_now(line: &str) {
    io::stderr().lock().write_all(format!("{line}\n").as_bytes()).ignore("there is no other place to report it");
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn lines_beyond_the_bound_are_dropped_and_counted_while_nobody_reads() {
        let writer: &LogWriter = Box::leak(Box::default());
        let (sender, written) = mpsc::channel();
        let stalled = Arc::new(Mutex::new(()));
        let stall = stalled.lock();
        let reader = Arc::clone(&stalled);
        std::thread::spawn(move || {
            writer.write_all(|line| {
                drop(reader.lock());
                sender.send(line.chars().take(6).collect::<String>()).unwrap();
            })
        });
        let long = "x".repeat(MAX_WAITING / 10);
        for number in 0..20 {
            writer.add(format!("{number:06}{long}"));
        }
        writer.flush(Duration::from_millis(20));
        drop(stall);
        writer.flush(Duration::from_secs(10));
        let written: Vec<String> = written.try_iter().collect();
        let expected: Vec<String> = (0..9).map(|number| format!("{number:06}")).collect();
        assert_eq!((&written[..9], written.len()), (&*expected, 10), "and the line about the others");
        assert_eq!(writer.queue.lock().bytes, 0);
    }
}
