//! A connection of the generator: its next segment, and its changes by segments of the host.
//!
//! Threads of the host call `take` at the same time as the thread that polls calls `segment`; one
//! that has found no room marks the connection, and looks once more.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use quietline::device::Instant;

use super::{
    Load, PAYLOAD_MAX,
    frame::{ACK, FIN, PSH, Reply, SYN, Segment},
};

/// Frames of one connection in a row: the segments of a superframe of 64 KB.
const BURST: u32 = 45;
/// Largest shift of a window (RFC 7323 §2.3).
const SHIFT_MAX: u32 = 14;

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Sending,
    Ending,
}

/// Change of a connection by a segment of the host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// The connection may have something to send.
    pub(super) is_ready: bool,
    /// A response is complete.
    pub(super) has_response: bool,
}

/// State of a connection that threads of the host write, too. A number orders nothing else, but
/// `limit` and `blocked` decide together whether a connection is sent again.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// First byte that may not be sent.
    pub(super) limit: AtomicU32,
    /// The connection waits for `limit`.
    pub(super) blocked: AtomicBool,
    /// Next byte that the host sends.
    pub(super) next: AtomicU32,
    /// Shift of the host's window.
    pub(super) scale: AtomicU32,
    /// Timestamp of the host's last segment.
    pub(super) timestamp: AtomicU32,
    /// An ACK without data has to be sent.
    pub(super) owes_ack: AtomicBool,
    /// Requests that may be sent.
    pub(super) requests: AtomicU32,
    /// Bytes that have arrived of a response.
    pub(super) answered: AtomicU32,
}

/// State of a connection that only the polling thread uses.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) sent_syn: bool,
    pub(super) sent_fin: bool,
    pub(super) seq: u32,
    /// Bytes of a request that are not sent.
    pub(super) missing: u32,
    /// Frames of the burst.
    pub(super) burst: u32,
}

/// Whether `a` comes after `b` in sequence space, or is `b`, and by how much.
fn beyond(a: u32, b: u32) -> Option<u32> {
    let distance = a.wrapping_sub(b);
    (distance < 1 << 31).then_some(distance)
}

/// Moves a number forward in sequence space: two threads may pass their segments in any order.
fn forward(number: &AtomicU32, to: u32) {
    let newer = |old| beyond(to, old).map(|_| to);
    let _ = number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, newer);
}

impl Flow {
    /// The next segment of a connection, if it may send one.
    pub(super) fn segment(
        &self,
        load: &Load,
        (index, own): (usize, &Own),
        phase: Phase,
        now: Instant,
    ) -> Option<Segment> {
        #[expect(clippy::cast_possible_truncation, reason = "a timestamp wraps")]
        let base = Segment {
            flow: u8::try_from(index).unwrap_or(u8::MAX),
            separate: load.separate,
            seq: own.seq,
            ack: self.next.load(Ordering::Relaxed),
            flags: ACK,
            payload: 0,
            timestamp: (now.as_nanos() / 1_000_000) as u32,
            echo: self.timestamp.load(Ordering::Relaxed),
        };
        if !own.sent_syn {
            return Some(Segment { flags: SYN, ..base });
        }
        if self.owes_ack.load(Ordering::Acquire) {
            return Some(base);
        }
        if own.sent_fin || phase == Phase::Connecting {
            return None;
        }
        let is_ending = phase == Phase::Ending;
        let missing = match (load.request, own.missing) {
            (0, _) => load.segment,
            (request, 0) if !is_ending && self.requests.load(Ordering::Relaxed) > 0 => request,
            (_, missing) => missing,
        };
        let has_data = missing > 0 && (load.request > 0 || !is_ending);
        if !has_data && !is_ending {
            return None;
        }
        let payload = if has_data { missing.min(load.segment) } else { 0 };
        let has_room = || {
            let limit = self.limit.load(Ordering::SeqCst);
            beyond(limit, own.seq).is_some_and(|room| room >= payload.max(1))
        };
        if !has_room() {
            // The host may have moved the limit just now, before it could see the mark.
            self.blocked.store(true, Ordering::SeqCst);
            if !has_room() || !self.blocked.swap(false, Ordering::SeqCst) {
                return None;
            }
        }
        if !has_data {
            return Some(Segment { flags: FIN | ACK, ..base });
        }
        let pushes = load.pushed || (load.request > 0 && payload == missing);
        Some(Segment { payload, flags: if pushes { PSH | ACK } else { ACK }, ..base })
    }

    /// Notes a segment that was sent; true if another connection is to send next.
    pub(super) fn sent(&self, load: &Load, own: &mut Own, segment: &Segment) -> bool {
        // Every segment has acknowledged everything.
        self.owes_ack.store(false, Ordering::Release);
        own.sent_syn |= segment.flags & SYN != 0;
        own.sent_fin |= segment.flags & FIN != 0;
        own.seq = own.seq.wrapping_add(segment.length());
        if segment.payload == 0 {
            return false;
        }
        if load.request > 0 {
            if own.missing == 0 {
                self.requests.fetch_sub(1, Ordering::Relaxed);
                own.missing = load.request;
            }
            own.missing -= segment.payload;
        }
        own.burst += 1;
        let is_over = own.burst >= BURST || load.segment < PAYLOAD_MAX;
        if is_over {
            own.burst = 0;
        }
        is_over
    }

    /// Updates the connection by a segment of the host.
    pub(super) fn take(&self, load: &Load, reply: &Reply, phase: Phase) -> Taken {
        if reply.has_timestamp {
            self.timestamp.store(reply.timestamp, Ordering::Relaxed);
        }
        let mut taken = Taken::default();
        let is_syn = reply.flags & SYN != 0;
        if is_syn {
            self.scale.store(reply.scale.min(SHIFT_MAX), Ordering::Relaxed);
            self.next.store(reply.end(), Ordering::Relaxed);
        } else {
            forward(&self.next, reply.end());
        }
        if is_syn || reply.flags & FIN != 0 {
            self.owes_ack.store(true, Ordering::Release);
            taken.is_ready = true;
        }
        // The window of a SYN is not scaled.
        let scale = if is_syn { 0 } else { self.scale.load(Ordering::Relaxed) };
        let window = (reply.window << scale).min(load.flight);
        forward(&self.limit, reply.ack.wrapping_add(window));
        taken.is_ready |= self.blocked.swap(false, Ordering::SeqCst);
        if load.request > 0 && reply.payload > 0 {
            let answered = self.answered.fetch_add(reply.payload, Ordering::Relaxed);
            if answered + reply.payload >= load.request {
                self.answered.fetch_sub(load.request, Ordering::Relaxed);
                taken.has_response = true;
                if phase != Phase::Ending {
                    self.requests.fetch_add(1, Ordering::Relaxed);
                    taken.is_ready = true;
                }
            }
        }
        taken
    }
}
