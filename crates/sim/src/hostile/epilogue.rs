//! The end of a run: peers follow the protocol, and both streams must arrive, no matter what
//! happened before.
//!
//! Applications read. The peer acknowledges everything it has received, opens its window and
//! repeats all unacknowledged data. Nothing is lost, so a live connection has no reason to stall.
//!
//! Not here: connections whose frames were edited in place, and hosts short of memory, which other
//! sockets may hold indefinitely.

use std::time::Duration;

use tcp::{Flags, SegmentHeader, State};

use super::{Attempt, Play};

/// Largest number of exchanges until all is delivered. Each releases a congestion window, at worst
/// one segment of 48 bytes.
const ROUNDS_MAX: usize = 20_000;

/// Time between two exchanges: longer than the delay of a delayed or corked segment.
const ROUND: Duration = Duration::from_millis(250);

/// Bytes that the peer repeats in one segment: fits every window once it is open.
const REPEATED_MAX: u32 = 500;

pub(super) fn play(play: &mut Play<'_>) {
    play.hold = 0;
    play.rig.answers_arp = true;
    // Neighbor resolutions that began while the peer was silent fail within this time, or start
    // again.
    play.rig.pass(Duration::from_secs(4));
    play.look();
    for at in 0..play.applications.len() {
        deliver(play, at);
    }
}

fn deliver(play: &mut Play<'_>, at: usize) {
    for _ in 0..ROUNDS_MAX {
        while play.receive_at(at, 0xfffe) {}
        let Some(unacked) = alive(play, at) else { return };
        let Some(connection) = known(play, at) else { return };
        if unacked == 0 && connection.peer.snd_una == connection.peer.snd_nxt {
            return;
        }
        let packet = connection.next_packet();
        play.give_packet(&packet);
        play.rig.pass(ROUND);
        play.look();
    }
    let (left, peer) = (alive(play, at), known(play, at).map(|connection| connection.peer.clone()));
    panic!("{:?} stalls, {left:?} unacknowledged: {peer:?}", play.applications[at]);
}

/// Returns the unacknowledged bytes of a connection that can make progress.
fn alive(play: &mut Play<'_>, at: usize) -> Option<usize> {
    let host = play.rig.host();
    let cx = &mut play.rig.world.cx;
    let socket = &play.applications[at].socket;
    let (state, unacked) = socket.with_tcb(&host, cx, |tcb, _| (tcb.state(), tcb.unacked_bytes()));
    let silent = [State::Close, State::SynSent, State::SynRecv, State::TimeWait];
    (!silent.contains(&state)).then_some(unacked)
}

/// Returns the connection of an application, if the peer knows enough of it to follow the protocol.
fn known<'p>(play: &'p mut Play<'_>, at: usize) -> Option<&'p mut Attempt> {
    let socket = &play.applications[at].socket;
    if play.tainted.contains(&socket.remote()) {
        return None;
    }
    let connection = play.connections.iter_mut().find(|connection| {
        let tuple = connection.peer.tuple;
        (tuple.local, tuple.remote) == (socket.local(), socket.remote())
    })?;
    let understood =
        connection.irs.is_some() && connection.iss.is_some() && !connection.contradicts;
    understood.then_some(connection)
}

impl Attempt {
    /// Acknowledges everything and repeats unacknowledged data.
    fn next_packet(&mut self) -> Vec<u8> {
        let peer = &mut self.peer;
        peer.ts_value += 1000;
        peer.window = u16::MAX;
        let lacking = (peer.snd_nxt - peer.snd_una).cast_unsigned();
        let data = lacking - u32::from(self.ended && lacking > 0);
        let len = data.min(REPEATED_MAX);
        let flags = if self.ended && lacking > 0 && len == data {
            Flags::ACK | Flags::FIN
        } else {
            Flags::ACK
        };
        let header = SegmentHeader { seq: self.peer.snd_una, ..self.peer.header(flags) };
        self.peer.packet(&header, &self.payload(header.seq, len))
    }
}
