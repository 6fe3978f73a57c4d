//! Segments sent without a connection: resets, and the replies of connection requests
//! (SYN-RECEIVED) and of TIME-WAIT sockets.

use pkt::{DropReason, Packet};
use tcp::{FourTuple, SegmentHeader};

use crate::{
    base::ids::CoreId,
    cx::Cx,
    socket::net::Net,
    transmit::ip_output::{discard_unroutable, output},
};

impl Net {
    /// Answers `header` with a reset (RFC 9293 §3.10.7.1), unless `header` is itself a reset, and
    /// drops `packet`, the segment that caused it.
    pub(crate) fn reply_with_reset(
        &self,
        cx: &mut Cx,
        tuple: &FourTuple,
        header: &SegmentHeader,
        reason: DropReason,
        packet: Packet,
    ) {
        let payload = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        tcp::segment::reset::reply(&mut cx.tcp(), tuple, header, payload);
        cx.drop_packet(reason, packet);
        self.reply(cx, tuple, cx.running().unwrap_or(CoreId(0)));
    }

    /// Sends the segments in `cx.out` to the remote end of `tuple`. No socket caches a route entry
    /// (dst) for `tuple`, so the entry is looked up. Without a route, the segments are dropped.
    pub(crate) fn reply(&self, cx: &mut Cx, tuple: &FourTuple, core: CoreId) {
        if cx.out.is_empty() {
            return;
        }
        let reader = cx.reader();
        let rcu = reader.pin();
        let (remote, local) = (tuple.remote, Some(tuple.local.ip()));
        let flow = Some(self.demux().hash(tuple));
        match self.reply_dst(cx, remote, local, flow, core, &rcu) {
            Ok(dst) => output(cx, dst, tuple, core),
            Err(_) => discard_unroutable(cx, tuple),
        }
    }
}
