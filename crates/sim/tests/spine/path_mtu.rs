//! "Fragmentation needed" makes the segments of a connection smaller, if it is about one of them.

use std::{io::IoSlice, sync::Arc};

use sim::{Peer, Rig, RigConfig, frame::Seen};
use stack::{icmp::header::IcmpMessage, socket::TcpSocket};
use tcp::{Flags, Options};

use crate::icmp::error;

const MSS: Options = Options {
    mss: Some(1460),
    window_scale: None,
    sack_permitted: false,
    timestamps: None,
    sack_blocks: arrayvec::ArrayVec::new_const(),
};

struct Transfer {
    rig: Rig,
    peer: Peer,
    socket: Arc<TcpSocket>,
}

impl Transfer {
    /// The host has sent its first window, in segments of 1,460 bytes.
    fn start() -> Self {
        let mut rig = Rig::new(RigConfig::default());
        let listener = rig.listen(80, 8);
        let peer = Peer::open(&mut rig, 80, 2000, MSS);
        let socket = listener.accept().expect("a connection");
        let host = rig.host();
        listener.close(&host, &mut rig.world.cx);
        let mut transfer = Self { rig, peer, socket };
        transfer.send(14_600);
        assert_eq!(transfer.largest_sent(), 1460);
        transfer
    }

    fn send(&mut self, len: usize) {
        let host = self.rig.host();
        let bytes = vec![7; len];
        let sent = self.socket.send(&host, &mut self.rig.world.cx, &[IoSlice::new(&bytes)]);
        assert_eq!(sent, Ok(len));
    }

    /// The longest payload sent since the last call.
    fn largest_sent(&mut self) -> usize {
        let seen = self.rig.take();
        self.peer.hear(&seen);
        seen.iter().filter_map(Seen::segment).map(|(_, payload)| payload.len()).max().unwrap_or(0)
    }

    fn too_big(&mut self, mtu: u32, behind: u32) {
        let packet = error(&self.peer, &IcmpMessage::PacketTooBig { mtu }, behind);
        self.rig.give(&packet);
    }

    fn finish(self) {
        drop(self.socket);
        self.rig.finish();
    }
}

#[test]
fn a_report_lowers_the_mss_and_repeats_what_was_too_big() {
    let mut transfer = Transfer::start();
    transfer.too_big(1000, 1460);
    assert_eq!(transfer.largest_sent(), 960, "sent again at once, in smaller segments");
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.send(10_000);
    assert_eq!(transfer.largest_sent(), 960);
    transfer.finish();
}

#[test]
fn an_absurd_report_lowers_it_to_the_minimum() {
    let mut transfer = Transfer::start();
    transfer.too_big(68, 1460);
    assert_eq!(transfer.largest_sent(), 552 - 40, "net.ipv4.route.min_pmtu");
    transfer.finish();
}

#[test]
fn a_report_about_nothing_in_flight_is_ignored() {
    let mut transfer = Transfer::start();
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.too_big(1000, 1460);
    let out_of_window = tcp::Counter::TcpExtOutOfWindowIcmps;
    assert_eq!(transfer.rig.count_tcp(out_of_window), 1, "RFC 5927 §4.1");
    transfer.send(10_000);
    assert_eq!(transfer.largest_sent(), 1460);
    transfer.finish();
}

#[test]
fn a_report_never_makes_segments_larger() {
    let mut transfer = Transfer::start();
    transfer.too_big(1000, 1460);
    transfer.too_big(1400, 1);
    transfer.largest_sent();
    transfer.peer.send_next(&mut transfer.rig, Flags::ACK, b"");
    transfer.send(10_000);
    assert_eq!(transfer.largest_sent(), 960);
    transfer.finish();
}
