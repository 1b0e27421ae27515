//! Keeps of one stream what can be evidence, while the stream passes.
//!
//! Rule: memory is bounded whatever the command prints. Lines that carry a sign of an errno survive
//! with their neighbours though the tail has long gone by; the last lines are kept in any case.

use std::collections::VecDeque;

use super::words;

/// Bytes of one line that are looked at and kept.
pub const LINE_CAP: usize = 4096;
/// Bytes of the tail that are kept whatever they say.
pub const TAIL_CAP: usize = 16 * 1024;
/// Bytes of earlier lines that are kept because they, or a neighbour, carry a sign.
pub const KEPT_CAP: usize = 48 * 1024;

/// Neighbours that are kept before and after a line with a sign.
const BEFORE: usize = 8;
const AFTER: usize = 12;

/// Collects from one stream. Feed each chunk as it passes, and finish once.
#[derive(Debug, Default)]
pub struct Collector {
    line: Vec<u8>,
    number: u64,
    // The last lines; what falls out of them goes to `first` or `last` when it is wanted.
    tail: VecDeque<Line>,
    tail_bytes: usize,
    // Wanted lines that left the tail: the earliest half stays, the rest is a ring.
    first: Vec<Line>,
    first_bytes: usize,
    last: VecDeque<Line>,
    last_bytes: usize,
    wanted_until: u64,
}

#[derive(Debug)]
struct Line {
    wanted: bool,
    bytes: Vec<u8>,
}

impl Collector {
    /// An empty collector.
    pub fn new() -> Collector {
        Collector::default()
    }

    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.extend(&rest[..end]);
            self.end_line();
            rest = &rest[end + 1..];
        }
        self.extend(rest);
    }

    /// What was kept, in the order of the stream, each line ended by a newline.
    pub fn finish(mut self) -> Vec<u8> {
        if !self.line.is_empty() {
            self.end_line();
        }
        let lines = self.first.iter().chain(&self.last).chain(&self.tail);
        let mut text = Vec::new();
        for line in lines {
            text.extend_from_slice(&line.bytes);
            text.push(b'\n');
        }
        text
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = LINE_CAP.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end_line(&mut self) {
        let bytes = std::mem::take(&mut self.line);
        let number = self.number;
        self.number += 1;
        if words::carries(&bytes) {
            self.wanted_until = number + 1 + AFTER as u64;
            for line in self.tail.iter_mut().rev().take(BEFORE) {
                line.wanted = true;
            }
        }
        self.tail_bytes += bytes.len() + 1;
        let wanted = number < self.wanted_until;
        self.tail.push_back(Line { wanted, bytes });
        // Short lines cost more than their bytes, so their number is capped as well.
        while self.tail_bytes > TAIL_CAP || self.tail.len() > TAIL_CAP / 16 {
            let Some(line) = self.tail.pop_front() else {
                break;
            };
            self.tail_bytes -= line.bytes.len() + 1;
            if line.wanted {
                self.keep(line);
            }
        }
    }

    fn keep(&mut self, line: Line) {
        let size = line.bytes.len() + 1;
        if self.last.is_empty() && self.first_bytes + size <= KEPT_CAP / 2 {
            self.first_bytes += size;
            self.first.push(line);
            return;
        }
        self.last_bytes += size;
        self.last.push_back(line);
        while self.last_bytes > KEPT_CAP / 2 {
            let Some(old) = self.last.pop_front() else {
                break;
            };
            self.last_bytes -= old.bytes.len() + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(text: &[u8], chunk: usize) -> String {
        let mut collector = Collector::new();
        for part in text.chunks(chunk) {
            collector.feed(part);
        }
        String::from_utf8(collector.finish()).unwrap()
    }

    #[test]
    fn a_short_stream_comes_back_whole_however_it_was_cut() {
        for chunk in [1, 3, 1000] {
            assert_eq!(
                collected(b"one\ntwo\n\nthree", chunk),
                "one\ntwo\n\nthree\n"
            );
        }
        assert_eq!(collected(b"", 1), "");
    }

    #[test]
    fn evidence_in_the_middle_of_a_long_stream_survives_and_its_like_without_a_sign_does_not() {
        let numbers: String = (0..60_000).map(|n| format!("{n}\n")).collect();
        let denied = "touch: cannot touch '/o/y': Read-only file system\n";
        let plain = "touch: cannot find '/o/z' any more\n";
        let text = format!("{plain}{numbers}{denied}{numbers}");
        let kept = collected(text.as_bytes(), 4096);
        assert!(kept.contains(denied));
        assert!(
            kept.contains(&format!("59999\n{denied}0\n1\n")),
            "neighbours stay"
        );
        assert!(!kept.contains(plain));
        assert!(kept.ends_with("59998\n59999\n"));
        assert!(kept.len() <= TAIL_CAP + KEPT_CAP);
    }

    #[test]
    fn memory_stays_bounded_for_endless_lines_and_for_endless_evidence() {
        let long = collected(&vec![b'x'; 1 << 20], 4096);
        assert_eq!(long.len(), LINE_CAP + 1);
        let line = "x: Permission denied\n";
        let many = collected(line.repeat(100_000).as_bytes(), 4096);
        assert!(many.len() <= TAIL_CAP + KEPT_CAP, "{}", many.len());
        assert!(many.len() > TAIL_CAP + KEPT_CAP / 2);
    }
}
