//! The answer to a segment that belongs to no connection.

use std::net::SocketAddr;

use pkt::{DropReason, Packet};
use tcp::{FourTuple, SegmentHeader};

use super::{discard_unroutable, output};
use crate::{core::CoreId, cx::Cx, host::Host};

impl Host {
    /// Answers `header` with a reset (RFC 9293 §3.10.7.1) and drops the segment that caused it.
    pub(crate) fn reply_with_reset(
        &self,
        cx: &mut Cx,
        tuple: &FourTuple,
        header: &SegmentHeader,
        reason: DropReason,
        packet: Packet,
    ) {
        let payload = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        tcp::reset::reply(&mut cx.tcp(), tuple, header, payload);
        cx.drop_packet(reason, packet);
        if cx.out.is_empty() {
            return;
        }
        let remote: SocketAddr = tuple.remote;
        match self.route(cx, remote.ip(), Some(tuple.local.ip())) {
            Ok(dst) => output(self, cx, &dst, tuple, CoreId(0)),
            Err(_) => discard_unroutable(cx),
        }
    }
}
