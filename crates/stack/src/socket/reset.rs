//! Segments sent without a connection: resets, and the replies of connection requests
//! (SYN-RECEIVED) and of TIME-WAIT sockets.

use pkt::{DropReason, Packet};
use tcp::SegmentHeader;

use crate::{
    cx::Cx,
    socket::{demux::FlowName, net::Net},
    transmit::ip_output::{discard_unroutable, output},
};

impl Net {
    /// Answers a segment with the header `header` and the payload `packet` with a reset
    /// (RFC 9293 §3.10.7.1), unless the segment is itself a reset, and drops `packet`.
    pub(crate) fn reply_with_reset(
        &self,
        cx: &mut Cx,
        name: &FlowName,
        header: &SegmentHeader,
        reason: DropReason,
        packet: Packet,
    ) {
        let payload = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        tcp::segment::reset::reply(&mut cx.tcp(), &name.tuple, header, payload);
        cx.drop_packet(reason, packet);
        self.reply(cx, name);
    }

    /// Sends the segments in `cx.out` to the remote end of a flow. No socket caches a route entry
    /// (dst) for the flow, so the entry is looked up. Without a route, the segments are dropped.
    pub(crate) fn reply(&self, cx: &mut Cx, name: &FlowName) {
        if cx.out.is_empty() {
            return;
        }
        let reader = cx.reader();
        let rcu = reader.pin();
        let FlowName { tuple, hash, core, .. } = name;
        let source = Some(tuple.local.ip());
        match self.reply_dst(cx, name.peer(), source, Some(*hash), *core, &rcu) {
            Ok(dst) => output(cx, dst, tuple, *core),
            Err(_) => discard_unroutable(cx, tuple),
        }
    }
}
