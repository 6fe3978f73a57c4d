//! Requests whose SYN is not answered yet: the application decides first.
//!
//! Above: the interception of flows in `stack`. RFC 9293 §3.10.7.2 lets a listener answer a SYN
//! later. To the peer, a held request looks like a lost SYN: the peer repeats its SYN, and the
//! request absorbs the repetitions. It becomes an ordinary request by [`Request::answer`], which
//! sends the SYN-ACK, and ends by [`Request::refuse`], by a reset of the peer, or without a
//! repetition for [`HELD_MAX`].
//!
//! Nothing that a peer sends is answered meanwhile, so that a spoofed segment learns nothing.

use core::time::Duration;

use pkt::{DropReason, Ecn, Packet};

use super::{Request, RequestVerdict, TIMEOUT_INITIAL};
use crate::{
    base::counters::Counter,
    cx::Cx,
    segment::reset,
    tcb::OpenParams,
    wire::{
        header::{Flags, SegmentHeader},
        option,
    },
};

/// Time without a SYN after which a held request ends, because the peer has given up. Linux
/// repeats a SYN six times (`tcp_syn_retries`) and waits 64 seconds before the last.
const HELD_MAX: Duration = Duration::from_secs(65);

impl Request {
    /// Processes a SYN as [`on_syn`](Self::on_syn), without an answer.
    #[must_use]
    pub fn hold(cx: &Cx<'_>, params: &OpenParams, header: &SegmentHeader, codepoint: Ecn) -> Self {
        let mut request = Self::new(cx, params, header);
        request.take_ecn(cx, params, header, codepoint);
        request.held = true;
        request.deadline = cx.now + HELD_MAX;
        request
    }

    /// Returns whether the SYN is not answered yet.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Answers the SYN of a held request. The SYN-ACK is in `cx.out`; its first repetition is due
    /// at the new [`deadline`](Self::deadline).
    ///
    /// # Errors
    ///
    /// [`DropReason::NoMemory`]: the request stays held.
    pub fn answer(&mut self, cx: &mut Cx<'_>) -> Result<(), DropReason> {
        self.sent_at = cx.now;
        self.ts_first = option::ts_clock(cx.now, self.ts_offset);
        self.answer_syn(cx)?;
        self.held = false;
        self.deadline = cx.now + TIMEOUT_INITIAL;
        Ok(())
    }

    /// Refuses the connection: the reset in `cx.out` answers the SYN, or follows the SYN-ACK.
    pub fn refuse(&self, cx: &mut Cx<'_>) {
        let cause = match self.held {
            true => self.syn(),
            false => SegmentHeader { flags: Flags::ACK, ack: self.iss + 1, ..self.syn() },
        };
        reset::reply(cx, &self.tuple, &cause, 0);
    }

    /// Returns the header of the SYN, without options: enough for an ICMP error to quote.
    #[must_use]
    pub fn syn(&self) -> SegmentHeader {
        SegmentHeader {
            src_port: self.tuple.remote.port(),
            dst_port: self.tuple.local.port(),
            seq: self.irs,
            flags: Flags::SYN,
            ..SegmentHeader::default()
        }
    }

    /// Processes a segment of a held request: RFC 9293 §3.10.7.4 for a peer in SYN-SENT, which has
    /// received nothing.
    pub(super) fn on_held_segment(
        &mut self,
        cx: &Cx<'_>,
        header: &SegmentHeader,
        packet: Packet,
    ) -> RequestVerdict {
        if header.has(Flags::RST) {
            // RFC 5961 §3: only the exact sequence number resets.
            if header.seq != self.irs + 1 {
                return RequestVerdict::Drop(DropReason::TcpResetInvalid, packet);
            }
            cx.count(Counter::TcpExtEmbryonicRsts);
            cx.count(Counter::TcpAttemptFails);
            return RequestVerdict::Closed(DropReason::TcpReset, packet);
        }
        if !header.has(Flags::SYN) || header.has(Flags::ACK) || header.has(Flags::FIN) {
            return RequestVerdict::Drop(DropReason::TcpFlags, packet);
        }
        if header.seq != self.irs {
            // The peer has given up and opens a new connection with the same ports.
            cx.count(Counter::TcpAttemptFails);
            return RequestVerdict::Closed(DropReason::TcpInvalidSyn, packet);
        }
        self.deadline = cx.now + HELD_MAX;
        if let Some((value, _)) = header.options.timestamps
            && self.timestamps
        {
            // The SYN-ACK echoes the last SYN, so that the peer measures the round-trip time of
            // that one.
            self.ts_recent = value;
        }
        // RFC 3168 §6.1.1.1: a host repeats its SYN without ECN if a middlebox may have dropped it.
        self.ecn &= header.has(Flags::ECE) && header.has(Flags::CWR);
        RequestVerdict::Drop(DropReason::TcpInvalidSyn, packet)
    }
}
