//! IP receive, for packets that come in a list or alone: through `input`'s steps, with what one packet finds kept for the next.
//!
//! Below: `link::input_list`. Above: `tcp_input`, ICMP. Linux: `ip_rcv`, `ip_list_rcv`, `ip_list_rcv_finish`,
//! `ip_sublist_rcv_finish`, `ip_extract_route_hint`.
//!
//! ```text
//!   packet ─► header ─► early demux ─► its connection ─► sublist of this connection
//!                           └─► hint, or routes ─► dst ─► sublist of this dst
//! ```
//!
//! A **sublist** is what goes to one connection in a row, or, of what early demux gave to nobody, along one dst. The packets of a
//! sublist share what was found for its first: the connection, by one comparison each, with one output, one ACK and one wake for
//! all (`socket::Flow`); or the dst.
//!
//! The **hint**: a packet that early demux could not place has the route of such a packet before it in the list, if destination
//! and type of service are the same: the routes are not asked again. Who sends it is looked at if that is not the one before.
//!
//! Differs from Linux, which takes a whole list through IP before the first of its packets goes up: here each goes up at once. To
//! keep packets and headers in between costs 3 to 5 % more instructions a packet than the order saves (`rx_list` bench), and the
//! order of what happens is the same. A hint does not keep a packet from early demux, which also finds the connection.
//!
//! Not here: the steps themselves (`input`).

use std::net::IpAddr;

use pkt::{DropReason, Ecn, Packet, Verdict};
use sync::epoch::Section;

use super::{
    early_demux::{Demuxed, early_demux},
    header::IpHeader,
    input::{
        accept, check_header, check_source, count_header_error, deliver, ecn_counter, established,
        route,
    },
};
use crate::{
    base::counters::Counter,
    cx::Cx,
    host::Host,
    route::{DstHandle, OnceDst, PacketDst, fib::RouteKind},
    socket::Flow,
};

/// Where the last packet that was not dropped has gone. One that is dropped ends no sublist (Linux: `ip_list_rcv_finish` goes on
/// with the next).
#[derive(Clone, Copy)]
enum Place<'s> {
    /// Nowhere yet, or along an entry that it brought itself.
    Nowhere,
    /// To the current connection of the flow.
    Connection,
    /// To whoever was found, along this entry.
    Route(DstHandle<'s>),
}

/// The route of the last packet that early demux could not place (Linux: the `hint` of `ip_list_rcv_finish`).
struct Hint<'s> {
    src: IpAddr,
    dst: IpAddr,
    traffic_class: u8,
    route: DstHandle<'s>,
}

/// A list on its way through IP: [`push`](Self::push) for each packet, [`finish`](Self::finish) at the end.
pub(crate) struct ListInput<'s> {
    place: Place<'s>,
    hint: Option<Hint<'s>>,
    /// Counted once for the list.
    packets: u64,
    bytes: u64,
    sublists: u64,
}

impl<'s> ListInput<'s> {
    pub(crate) const fn new() -> Self {
        Self { place: Place::Nowhere, hint: None, packets: 0, bytes: 0, sublists: 0 }
    }

    /// The end of the list.
    #[inline]
    pub(crate) fn finish(self, cx: &Cx) {
        cx.count(Counter::IpInReceives, self.packets);
        cx.count(Counter::IpExtInOctets, self.bytes);
        cx.count(Counter::RxSublists, self.sublists);
    }

    /// The next packet of the list, link header removed.
    pub(crate) fn push<const V4: bool>(
        &mut self,
        host: &'s Host,
        cx: &mut Cx,
        rcu: &'s Section<'_>,
        flow: &mut Flow<'s>,
        mut packet: Packet,
    ) -> Verdict {
        self.packets += 1;
        self.bytes += packet.len() as u64;
        let repeated = if V4 { flow.repeated_header(&packet) } else { None };
        let repeats = repeated.is_some();
        let header = match repeated {
            Some(header) => header,
            None => match check_header::<V4>(&mut packet) {
                Ok(header) => header,
                Err(reason) => {
                    count_header_error(cx, reason);
                    return Verdict::Drop(reason, packet);
                }
            },
        };
        packet.truncate(header.total_len());
        let ecn = Ecn::from_traffic_class(header.traffic_class);
        // Every segment of a superframe carried the mark.
        cx.count(ecn_counter(ecn), u64::from(packet.meta().gso.segs.max(1)));
        packet.meta_mut().ecn = ecn;
        let demux = cx.sysctls().ip_early_demux && cx.sysctls().tcp_early_demux;
        if demux && let Some(found) = early_demux(host, rcu, flow, &header, repeats, &mut packet) {
            let follows = matches!(self.place, Place::Connection);
            match found {
                Demuxed::Current => self.sublists += u64::from(!follows),
                Demuxed::Stream(socket) => {
                    flow.follow(host, cx, socket);
                    self.sublists += 1;
                }
            }
            self.place = Place::Connection;
            return established(host, cx, rcu, flow, &header, packet);
        }
        self.push_by_route::<V4>(host, cx, rcu, flow, &header, packet)
    }

    /// A packet that early demux could not place.
    #[inline]
    fn push_by_route<const V4: bool>(
        &mut self,
        host: &'s Host,
        cx: &mut Cx,
        rcu: &'s Section<'_>,
        flow: &mut Flow<'s>,
        header: &IpHeader,
        mut packet: Packet,
    ) -> Verdict {
        let dst = match PacketDst::taken_from(&mut packet) {
            PacketDst::None => match self.route(host, cx, rcu, header, &mut packet) {
                Ok(found) => PacketDst::Noref(found),
                Err(reason) => return Verdict::Drop(reason, packet),
            },
            brought => {
                self.place = Place::Nowhere;
                self.sublists += 1;
                brought
            }
        };
        let dst = OnceDst::new(dst);
        let verdict = deliver::<V4>(host, cx, rcu, flow, &dst, header, packet);
        dst.take().release(cx, rcu);
        verdict
    }

    /// The hint's route, or what the routes say. Linux: `ip_can_use_hint`, `ip_route_use_hint`.
    fn route(
        &mut self,
        host: &'s Host,
        cx: &Cx,
        rcu: &'s Section<'_>,
        header: &IpHeader,
        packet: &mut Packet,
    ) -> Result<DstHandle<'s>, DropReason> {
        let IpHeader { src, dst, traffic_class, .. } = *header;
        let found = match &self.hint {
            Some(hint) if hint.dst == dst && hint.traffic_class == traffic_class => {
                if hint.src != src {
                    check_source(host, cx, rcu, packet.meta().rx_device, header)?;
                }
                accept(cx, packet, RouteKind::Local)?;
                cx.count(Counter::RxRouteHints, 1);
                hint.route
            }
            _ => route(host, cx, rcu, packet, header)?,
        };
        // Broadcasts are looked up one by one, as in Linux.
        self.hint = (found.tail().kind == RouteKind::Local).then_some(Hint {
            src,
            dst,
            traffic_class,
            route: found,
        });
        let follows = matches!(self.place, Place::Route(before) if core::ptr::eq(before.tail(), found.tail()));
        self.sublists += u64::from(!follows);
        self.place = Place::Route(found);
        Ok(found)
    }
}
