//! The last bytes of a stream, as text, and what a reader has not seen of it.
//!
//! Rule: never more than `cap` bytes; no cut falls inside a character.

use std::collections::VecDeque;

use super::Progress;

/// The last `cap` bytes of a stream and how far a reader has come.
#[derive(Debug)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    cap: usize,
    /// Bytes of the stream so far.
    total: u64,
    /// Bytes of the stream that reads have delivered or reported as lost.
    delivered: u64,
}

impl Tail {
    pub(super) fn new(cap: usize) -> Tail {
        Tail {
            bytes: VecDeque::new(),
            cap,
            total: 0,
            delivered: 0,
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Whether `more` bytes would push the beginning of the stream out.
    pub(super) fn overflows_with(&self, more: usize) -> bool {
        self.total.saturating_add(more as u64) > self.cap as u64
    }

    /// Bytes in memory.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// What is in memory.
    pub(super) fn bytes(&mut self) -> &[u8] {
        self.bytes.make_contiguous()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let kept = &bytes[bytes.len().saturating_sub(self.cap)..];
        let room = self.cap - kept.len();
        self.bytes.drain(..self.bytes.len().saturating_sub(room));
        self.bytes.extend(kept);
    }

    /// The text in memory, and whether it lacks the beginning.
    pub(super) fn text(&mut self) -> (String, bool) {
        let truncated = self.start() > 0;
        let bytes = self.bytes.make_contiguous();
        let cut = if truncated { continuation(bytes) } else { 0 };
        (
            String::from_utf8_lossy(&bytes[cut..]).into_owned(),
            truncated,
        )
    }

    /// What no read delivered before, and whether some of it had fallen out of memory. At the end of
    /// the stream the memory is given back.
    pub(super) fn read(&mut self, progress: Progress) -> (String, bool) {
        let start = self.start();
        let lost = self.delivered < start;
        let skip = usize::try_from(self.delivered.saturating_sub(start)).unwrap_or(usize::MAX);
        let bytes = self.bytes.make_contiguous();
        let mut unread = &bytes[skip.min(bytes.len())..];
        if lost {
            unread = &unread[continuation(unread)..];
        }
        let held_back = match progress {
            Progress::Open => unfinished(unread),
            Progress::Ended => 0,
        };
        let text = String::from_utf8_lossy(&unread[..unread.len() - held_back]).into_owned();
        self.delivered = self.total - held_back as u64;
        if progress == Progress::Ended {
            self.bytes = VecDeque::new();
        }
        (text, lost)
    }

    /// Gives the memory back.
    pub(super) fn shed(&mut self) {
        self.bytes = VecDeque::new();
    }

    /// Where in the stream the memory begins.
    fn start(&self) -> u64 {
        self.total - self.bytes.len() as u64
    }
}

/// How many bytes at the beginning belong to a character that was cut.
fn continuation(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .take(3)
        .take_while(|byte| **byte & 0xc0 == 0x80)
        .count()
}

/// How many bytes at the end are the beginning of a character that isn't complete yet.
fn unfinished(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.len().saturating_sub(4)..];
    let Some(broken) = last.utf8_chunks().last().map(|chunk| chunk.invalid()) else {
        return 0;
    };
    match std::str::from_utf8(broken) {
        Err(error) if error.error_len().is_none() => broken.len(),
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tail(cap: usize, chunks: &[&[u8]]) -> Tail {
        let mut tail = Tail::new(cap);
        for chunk in chunks {
            tail.push(chunk);
        }
        tail
    }

    #[test]
    fn what_fits_is_kept_whole_and_one_byte_more_pushes_the_first_out() {
        assert_eq!(tail(4, &[b"ab", b"cd"]).text(), ("abcd".to_owned(), false));
        assert_eq!(
            tail(4, &[b"ab", b"cd", b"e"]).text(),
            ("bcde".to_owned(), true)
        );
        assert_eq!(tail(4, &[b"abcdefgh"]).text(), ("efgh".to_owned(), true));
        assert!(!tail(4, &[b"ab"]).overflows_with(2));
        assert!(tail(4, &[b"ab"]).overflows_with(3));
    }

    #[test]
    fn a_cut_inside_a_character_takes_the_whole_character_away() {
        // U+8A9E has three bytes; the cut falls before its second, then before its third.
        assert_eq!(
            tail(5, &["語abc".as_bytes()]).text(),
            ("abc".to_owned(), true)
        );
        assert_eq!(
            tail(4, &["語abc".as_bytes()]).text(),
            ("abc".to_owned(), true)
        );
        assert_eq!(
            tail(6, &["語abc".as_bytes()]).text(),
            ("語abc".to_owned(), false)
        );
    }

    #[test]
    fn broken_bytes_are_replaced_and_nul_does_not_end_the_text() {
        assert_eq!(
            tail(64, &[b"a\xf0\x28\x8c \xff\x00end"]).text(),
            (
                "a\u{fffd}(\u{fffd} \u{fffd}\u{fffd}\0end".replacen(
                    "\u{fffd}\u{fffd}\0",
                    "\u{fffd}\0",
                    1
                ),
                false
            )
        );
    }

    #[test]
    fn a_read_never_repeats_and_names_what_was_lost() {
        let mut tail = tail(4, &[b"ab"]);
        assert_eq!(tail.read(Progress::Open), ("ab".to_owned(), false));
        assert_eq!(tail.read(Progress::Open), (String::new(), false));
        tail.push(b"cdef");
        assert_eq!(tail.read(Progress::Open), ("cdef".to_owned(), false));
        tail.push(b"ghijk");
        assert_eq!(tail.read(Progress::Open), ("hijk".to_owned(), true));
        assert_eq!(tail.read(Progress::Ended), (String::new(), false));
    }

    #[test]
    fn a_character_split_between_two_reads_is_carried_until_the_end() {
        let mut tail = tail(64, &[b"a\xe8\xaa"]);
        assert_eq!(tail.read(Progress::Open), ("a".to_owned(), false));
        tail.push(b"\x9e");
        assert_eq!(tail.read(Progress::Open), ("\u{8a9e}".to_owned(), false));
        tail.push(b"\xe8");
        assert_eq!(tail.read(Progress::Open), (String::new(), false));
        assert_eq!(tail.read(Progress::Ended), ("\u{fffd}".to_owned(), false));
        // A byte that can't begin a character isn't waited for.
        tail.push(b"\xff");
        assert_eq!(tail.read(Progress::Open), ("\u{fffd}".to_owned(), false));
    }

    #[test]
    fn shed_output_is_reported_as_lost_once_and_delivered_output_is_not() {
        let mut unread = tail(8, &[b"abc"]);
        unread.shed();
        assert_eq!(unread.read(Progress::Ended), (String::new(), true));
        assert_eq!(unread.read(Progress::Ended), (String::new(), false));
        let mut read = tail(8, &[b"abc"]);
        assert_eq!(read.read(Progress::Open), ("abc".to_owned(), false));
        read.shed();
        assert_eq!(read.read(Progress::Ended), (String::new(), false));
    }

    proptest! {
        #[test]
        fn reads_put_together_are_the_stream(text in ".{0,200}", cuts in prop::collection::vec((1usize..9, any::<bool>()), 0..60)) {
            let mut tail = Tail::new(10_000);
            let mut rest = text.as_bytes();
            let mut seen = String::new();
            for (length, read) in cuts {
                let (chunk, after) = rest.split_at(length.min(rest.len()));
                tail.push(chunk);
                rest = after;
                if read {
                    seen += &tail.read(Progress::Open).0;
                }
            }
            tail.push(rest);
            seen += &tail.read(Progress::Ended).0;
            prop_assert_eq!(seen, text);
        }

        #[test]
        fn the_tail_is_a_suffix_without_broken_characters(text in ".{0,200}", cap in 0usize..64) {
            let mut tail = Tail::new(cap);
            tail.push(text.as_bytes());
            let (kept, truncated) = tail.text();
            prop_assert!(text.ends_with(&kept));
            prop_assert!(kept.len() <= cap);
            prop_assert!(kept.len() + 3 >= cap.min(text.len()));
            prop_assert_eq!(truncated, text.len() > cap);
        }
    }
}
