//! A program's output, bounded: the head is passed on as it comes; of the rest the tail is kept and the middle counted.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Dropped output that is read, bytes a second. Reading takes processor time of the host, which no control group of a sandbox counts; a
/// program that prints faster waits.
const DROPPED_SPEED: u64 = 32 << 20;

/// Waits after bytes were dropped, as long as [`DROPPED_SPEED`] demands.
pub(crate) async fn rest(dropped: u64) {
    if dropped > 0 {
        tokio::time::sleep(Duration::from_micros(dropped * 1_000_000 / DROPPED_SPEED)).await;
    }
}

/// Bytes a second of a kernel's frames that are not passed on. Reading one takes more processor time of the host than reading printed text.
const FRAME_SPEED: u64 = 8 << 20;
/// Bytes that each frame counts besides.
const FRAME_COST: u64 = 1 << 10;
/// Time that a kernel's frames may take at once.
const FRAME_BURST: Duration = Duration::from_secs(4);

/// The pace at which a kernel's frames are read, over all its executions.
#[derive(Debug, Default)]
pub(crate) struct FramePace {
    /// The end of the time that its frames take at [`FRAME_SPEED`].
    taken_until: Option<Instant>,
}

impl FramePace {
    /// Counts a frame of which this many bytes were not passed on.
    pub(crate) fn count(&mut self, bytes: usize) {
        let now = Instant::now();
        let takes = Duration::from_micros((bytes as u64 + FRAME_COST) * 1_000_000 / FRAME_SPEED);
        self.taken_until = Some(self.taken_until.map_or(now, |until| until.max(now)) + takes);
    }

    /// The time from which the next frame may be read; none if now.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.taken_until.and_then(|until| until.checked_sub(FRAME_BURST))
    }
}

/// Bytes of a character that JSON has as `\u` and four digits.
const ESCAPE: u64 = 6;

/// One stream of one execution.
#[derive(Default)]
pub(crate) struct BoundedOutput {
    head_left: u64,
    tail_size: usize,
    tail: VecDeque<u8>,
    dropped: u64,
    decoder: Decoder,
}

impl BoundedOutput {
    /// A stream that keeps `limit` bytes: three quarters head, one quarter tail.
    pub(crate) fn new(limit: u64) -> Self {
        let tail_size = limit / 4;
        Self {
            head_left: limit - tail_size,
            tail_size: usize::try_from(tail_size).unwrap_or(usize::MAX),
            tail: VecDeque::new(),
            dropped: 0,
            decoder: Decoder::default(),
        }
    }

    /// Takes bytes and returns the text to pass on now, which may be empty.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let mut left = self.head_left;
        let fitting = bytes.iter().map_while(|byte| {
            left = left.checked_sub(cost(*byte))?;
            Some(left)
        });
        let pass = fitting.count();
        let (head, rest) = bytes.split_at(pass);
        // After the first byte that did not fit, none is passed on.
        self.head_left = if rest.is_empty() { left } else { 0 };
        if !rest.is_empty() {
            self.keep_tail(rest);
        }
        self.decoder.push(head)
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        let skipped = bytes.len().saturating_sub(self.tail_size);
        let kept = bytes.get(skipped..).unwrap_or_default();
        let overflow = (self.tail.len() + kept.len()).saturating_sub(self.tail_size);
        self.tail.drain(..overflow);
        self.tail.extend(kept);
        self.dropped += (skipped + overflow) as u64;
    }

    /// Bytes that were dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The rest of the text: a note about the cut, and the tail. The second value is the number of dropped bytes.
    pub(crate) fn finish(mut self) -> (String, u64) {
        let mut left = self.tail_size as u64;
        let fitting = self.tail.iter().rev().take_while(|byte| match left.checked_sub(cost(**byte)) {
            Some(after) => {
                left = after;
                true
            }
            None => false,
        });
        let skipped = self.tail.len() - fitting.count();
        self.tail.drain(..skipped);
        self.dropped += skipped as u64;
        let mut text = self.decoder.finish();
        if self.dropped > 0 {
            text.push_str(&format!("\n[{} bytes of output were left out here]\n", self.dropped));
        }
        let (front, back) = self.tail.as_slices();
        let mut decoder = Decoder::default();
        text.push_str(&decoder.push(front));
        text.push_str(&decoder.push(back));
        text.push_str(&decoder.finish());
        (text, self.dropped)
    }
}

/// Bytes that a printed byte counts: as many as its escape in JSON has.
fn cost(byte: u8) -> u64 {
    if is_escaped(byte) { ESCAPE } else { 1 }
}

/// Bytes that a text counts: as many as it has in JSON, but for quotes, backslashes and ends of lines.
pub(crate) fn text_cost(text: &str) -> usize {
    let escapes = text.bytes().filter(|byte| is_escaped(*byte)).count();
    text.len() + escapes * (ESCAPE as usize - 1)
}

/// Returns true for a byte that JSON has as `\u` and four digits.
fn is_escaped(byte: u8) -> bool {
    byte < 0x20 && !b"\x08\t\n\x0c\r".contains(&byte)
}

/// UTF-8 over arbitrary splits; what is invalid becomes U+FFFD.
#[derive(Default)]
struct Decoder {
    /// The beginning of an incomplete character: at most three bytes.
    pending: Vec<u8>,
}

impl Decoder {
    fn push(&mut self, bytes: &[u8]) -> String {
        let mut joined = std::mem::take(&mut self.pending);
        joined.extend_from_slice(bytes);
        let mut text = String::with_capacity(joined.len());
        let mut rest = joined.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        Some(length) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = after.get(length..).unwrap_or_default();
                        }
                        None => {
                            self.pending = after.to_vec();
                            return text;
                        }
                    }
                }
            }
        }
    }

    fn finish(&mut self) -> String {
        if std::mem::take(&mut self.pending).is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_survive_every_split() {
        let text = "a€😀é\n";
        for split in 0..=text.len() {
            let mut output = BoundedOutput::new(1000);
            let (left, right) = text.as_bytes().split_at(split);
            let passed = output.push(left) + &output.push(right);
            assert_eq!(passed + &output.finish().0, text);
        }
    }

    #[test]
    fn invalid_bytes_are_replaced_and_the_rest_stays() {
        let mut output = BoundedOutput::new(1000);
        assert_eq!(output.push(b"a\xffb\xe2\x82"), "a\u{fffd}b");
        assert_eq!(output.finish(), ("\u{fffd}".into(), 0));
    }

    #[test]
    fn bytes_count_as_much_as_their_escapes() {
        let mut output = BoundedOutput::new(80);
        assert_eq!(output.push(&[1; 30]), "\u{1}".repeat(10));
        let (rest, dropped) = output.finish();
        assert_eq!((rest.matches('\u{1}').count(), dropped), (3, 17));
        assert_eq!(text_cost("a\n\u{1b}é"), 1 + 1 + 6 + 2);
    }

    #[test]
    fn the_middle_of_a_flood_is_counted() {
        let mut output = BoundedOutput::new(8);
        let mut passed = String::new();
        for digit in "0123456789abcdef".bytes() {
            passed.push_str(&output.push(&[digit]));
        }
        assert_eq!(passed, "012345");
        assert_eq!(output.finish(), ("\n[8 bytes of output were left out here]\nef".into(), 8));
    }
}
