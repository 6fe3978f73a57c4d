//! TCP options: parsing from arbitrary bytes, and writing in Linux's order.
//!
//! RFC 9293 §3.2, RFC 7323, RFC 2018; Linux: tcp_parse_options(), tcp_options_write().
//!
//! Parsing never fails. A malformed length ends the list, and the options before it are used: Linux
//! parses them in this way, and a peer that works with Linux must work here. Options that only a
//! SYN may carry are ignored in other segments. Each option is padded when it is written, so that
//! 32-bit fields stay aligned. The fast paths of both sides can then recognize an option list that
//! has only timestamps by its first word.
//!
//! Not here: whether an option was negotiated (the control block records it), MD5, AO. Options of
//! unknown kinds are skipped. A new option needs a field in [`Options`], an arm in `take`, and code
//! in `emit` and `fixed_len`.

use pkt::Instant;

use arrayvec::ArrayVec;

use crate::wire::{cookie::Cookie, seq::SeqNum};

/// Largest number of bytes of options: a header has at most 60 bytes (data offset 15), of which 20
/// are fixed.
pub const OPTIONS_BYTES_MAX: usize = 40;

/// Number of SACK blocks that fit without other options: (40 - 4) / 8.
pub const SACK_BLOCKS_MAX: usize = 4;

/// Largest shift that RFC 7323 §2.3 allows; a larger shift is treated as this one.
pub const WINDOW_SCALE_MAX: u8 = 14;

/// Bytes of the timestamp option with its padding.
pub const TIMESTAMPS_BYTES: usize = 12;

/// First word of an option list that has only timestamps: NOP, NOP, kind 8, length 10.
pub(crate) const TIMESTAMPS_WORD: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

/// Number of Fast Open among the experimental options (RFC 7413 §4.1.1, RFC 6994).
const FAST_OPEN_EXPERIMENT: [u8; 2] = [0xf9, 0x89];

mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
    pub(super) const FAST_OPEN: u8 = 34;
    /// RFC 6994: an experimental option, identified by the number that follows.
    pub(super) const EXPERIMENT: u8 = 254;
}

/// The options of one segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Maximum segment size that the sender accepts (SYN only). Never 0: a zero is ignored.
    pub mss: Option<u16>,
    /// Shift of the windows in the sender's later segments (SYN only), at most
    /// [`WINDOW_SCALE_MAX`].
    pub window_scale: Option<u8>,
    /// Whether the sender supports SACK (SYN only).
    pub sack_permitted: bool,
    /// TSval and TSecr (RFC 7323 §3).
    pub timestamps: Option<(u32, u32)>,
    /// Fast Open cookie or a request for a cookie (SYN only, RFC 7413 §4.1.1).
    pub fast_open: Option<Cookie>,
    /// Left and right edge of each reported block (RFC 2018 §3), in the order sent.
    pub sack_blocks: ArrayVec<(SeqNum, SeqNum), SACK_BLOCKS_MAX>,
}

impl Options {
    /// Returns a list without options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the bytes between the fixed header and the data. Options that only a SYN may carry
    /// are ignored unless `is_syn`.
    #[must_use]
    pub fn parse(bytes: &[u8], is_syn: bool) -> Self {
        let mut options = Self::default();
        options.read(bytes, is_syn);
        options
    }

    /// Does the same as [`parse`](Self::parse), but fills `self`, which must hold no option yet.
    #[inline]
    pub(crate) fn read(&mut self, bytes: &[u8], is_syn: bool) {
        // Most segments of an established connection carry no other option.
        self.timestamps = parse_timestamps_alone(bytes);
        if self.timestamps.is_none() {
            self.take_all(bytes, is_syn);
        }
    }

    #[inline(never)]
    fn take_all(&mut self, bytes: &[u8], is_syn: bool) {
        let mut rest = bytes;
        while let Some((&kind, after)) = rest.split_first() {
            match kind {
                kind::END => break,
                kind::NOP => rest = after,
                _ => {
                    let Some(&length) = after.first() else { break };
                    let length = usize::from(length);
                    // A length below 2 does not include the kind and length bytes. A length beyond
                    // the end of the header means that the option is cut off.
                    if length < 2 || length > rest.len() {
                        break;
                    }
                    let (option, next) = rest.split_at(length);
                    self.take(kind, &option[2..], is_syn);
                    rest = next;
                }
            }
        }
    }

    /// Stores one option, whose kind and length bytes are removed from `value`. An option whose
    /// length does not fit its kind is ignored.
    fn take(&mut self, kind: u8, value: &[u8], is_syn: bool) {
        match (kind, value) {
            (kind::MSS, &[high, low]) if is_syn => {
                let mss = u16::from_be_bytes([high, low]);
                if mss != 0 {
                    self.mss = Some(mss);
                }
            }
            (kind::WINDOW_SCALE, &[shift]) if is_syn => {
                self.window_scale = Some(shift.min(WINDOW_SCALE_MAX));
            }
            (kind::SACK_PERMITTED, []) if is_syn => self.sack_permitted = true,
            (kind::FAST_OPEN, value) if is_syn => self.fast_open = Cookie::new(value),
            (kind::EXPERIMENT, [high, low, value @ ..])
                if is_syn && [*high, *low] == FAST_OPEN_EXPERIMENT =>
            {
                self.fast_open = Cookie::new(value).map(|cookie| cookie.in_form(true));
            }
            (kind::TIMESTAMPS, value) if value.len() == 8 => {
                self.timestamps = Some((be32(value), be32(&value[4..])));
            }
            (kind::SACK, value) if value.len() >= 8 && value.len().is_multiple_of(8) => {
                // A second SACK option replaces the first, as in Linux.
                self.sack_blocks = value
                    .chunks_exact(8)
                    .take(SACK_BLOCKS_MAX)
                    .map(|block| (SeqNum(be32(block)), SeqNum(be32(&block[4..]))))
                    .collect();
            }
            _ => {}
        }
    }

    /// Returns the number of bytes that [`Options::emit`] writes: a multiple of 4, at most
    /// [`OPTIONS_BYTES_MAX`].
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let fixed = self.fixed_len();
        let blocks = self.sack_blocks_that_fit();
        if blocks == 0 { fixed } else { fixed + 4 + 8 * blocks }
    }

    /// Returns how many of the SACK blocks fit beside the other options: at most 4, or 3 with
    /// timestamps.
    #[must_use]
    pub fn sack_blocks_that_fit(&self) -> usize {
        self.sack_blocks.len().min((OPTIONS_BYTES_MAX - self.fixed_len()).saturating_sub(4) / 8)
    }

    /// Returns the number of bytes of all options except the SACK blocks: at most 20 without a
    /// cookie, so that at least two blocks fit, and at most 40 with a cookie.
    fn fixed_len(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.timestamps.is_some() {
            // SACK-permitted, if present, replaces the two NOPs.
            len += TIMESTAMPS_BYTES;
        } else if self.sack_permitted {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        if let Some(cookie) = &self.fast_open {
            let head = if cookie.is_experimental() { 4 } else { 2 };
            len += (head + cookie.as_bytes().len()).next_multiple_of(4);
        }
        len
    }

    /// Writes the options in Linux's order (MSS, SACK-permitted, timestamps, window scale, Fast
    /// Open, SACK) and returns their length. Trailing SACK blocks that do not fit are left out.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`Options::encoded_len`].
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        let mut writer = Writer { bytes, at: 0 };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            writer.put([kind::MSS, 4, high, low]);
        }
        if let Some((value, echo)) = self.timestamps {
            writer.put(if self.sack_permitted {
                [kind::SACK_PERMITTED, 2, kind::TIMESTAMPS, 10]
            } else {
                TIMESTAMPS_WORD
            });
            writer.put(value.to_be_bytes());
            writer.put(echo.to_be_bytes());
        } else if self.sack_permitted {
            writer.put([kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            writer.put([kind::NOP, kind::WINDOW_SCALE, 3, shift]);
        }
        if let Some(cookie) = &self.fast_open {
            writer.put_cookie(cookie);
        }
        let blocks = &self.sack_blocks[..self.sack_blocks_that_fit()];
        if !blocks.is_empty() {
            // At most 4 blocks, so the length is at most 34.
            let length = blocks.iter().fold(2u8, |length, _| length + 8);
            writer.put([kind::NOP, kind::NOP, kind::SACK, length]);
            for (left, right) in blocks {
                writer.put(left.0.to_be_bytes());
                writer.put(right.0.to_be_bytes());
            }
        }
        writer.at
    }
}

/// Returns the timestamps if they are the only option, aligned by two NOPs.
#[inline]
fn parse_timestamps_alone(bytes: &[u8]) -> Option<(u32, u32)> {
    let aligned = bytes.len() == TIMESTAMPS_BYTES && bytes[..4] == TIMESTAMPS_WORD;
    aligned.then(|| (be32(&bytes[4..]), be32(&bytes[8..])))
}

/// Returns the first four bytes as a big-endian number; `bytes` must have that many.
fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    /// Appends the Fast Open option and its padding.
    fn put_cookie(&mut self, cookie: &Cookie) {
        let experimental = cookie.is_experimental();
        let kind = if experimental { kind::EXPERIMENT } else { kind::FAST_OPEN };
        let number: &[u8] = if experimental { &FAST_OPEN_EXPERIMENT } else { &[] };
        let value = 2 + number.len();
        let len = value + cookie.as_bytes().len();
        let padded = len.next_multiple_of(4);
        let bytes = &mut self.bytes[self.at..self.at + padded];
        bytes.fill(kind::NOP);
        bytes[0] = kind;
        // A cookie is at most 16 bytes.
        bytes[1] = u8::try_from(len).unwrap_or(u8::MAX);
        bytes[2..value].copy_from_slice(number);
        bytes[value..len].copy_from_slice(cookie.as_bytes());
        self.at += padded;
    }

    /// Appends four bytes.
    fn put(&mut self, word: [u8; 4]) {
        self.bytes[self.at..self.at + 4].copy_from_slice(&word);
        self.at += 4;
    }
}

/// Returns the TSval at `now`: a clock in milliseconds, plus the `offset` of the connection
/// (RFC 7323 §5.4, §7.1).
#[expect(clippy::cast_possible_truncation, reason = "the timestamp clock wraps")]
pub(crate) fn ts_clock(now: Instant, offset: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}

/// Whether timestamp `a` is before `b`, modulo 2^32.
pub(crate) fn is_older(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) > u32::MAX / 2
}

#[cfg(test)]
mod tests;
