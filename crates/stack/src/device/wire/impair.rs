//! Impairments of a packet in flight on a wire (the in-process link between two hosts): rate, delay
//! and random events. Linux: net/sched/sch_netem.c.

use std::time::Duration;

use pkt::{DropReason, Instant, Packet};

use super::{
    Impairment,
    direction::{Completion, Direction, InFlight, Timed, insert_by_due},
};
use crate::{
    cx::Cx,
    header::{self, ecn, ethernet},
};

/// Bytes that a frame occupies on a real link besides the IP packet: Ethernet header and FCS,
/// preamble, gap.
const FRAMING_BYTES: u64 = 38;

/// The slow path of `transmit`: applies rate, delay and random events to one packet.
pub(super) fn impair(
    direction: &Direction,
    in_flight: &mut InFlight,
    cx: &mut Cx,
    mut packet: Packet,
    too_big: bool,
    refused: &mut Vec<(DropReason, Packet)>,
) {
    let impairment = &direction.impairment;
    let waiting = in_flight.ready.len() + in_flight.timed.len();
    if waiting >= direction.room() {
        if impairment.completes_later() {
            // The packet was taken and is dropped. It must complete, or the sender would count it
            // as in flight forever.
            let due = in_flight.completions.back().map_or(cx.now, |last| last.due.max(cx.now));
            let bytes = packet.len();
            in_flight.completions.push_back(Completion { due, bytes, owner: None, _mark: None });
        }
        refused.push((direction.full(), packet));
        return;
    }
    let sent = pass_transmitter(impairment, in_flight, cx, &mut packet);
    if too_big {
        refused.push((DropReason::PacketTooBig, packet));
        return;
    }
    if chance(&mut in_flight.rng, impairment.loss) {
        refused.push((DropReason::WireLoss, packet));
        return;
    }
    if chance(&mut in_flight.rng, impairment.corrupt) {
        packet = match flip_one_bit(packet, &mut in_flight.rng, cx) {
            Ok(corrupted) => corrupted,
            Err(packet) => {
                refused.push((DropReason::NoMemory, packet));
                return;
            }
        };
    }
    schedule_arrival(impairment, in_flight, cx, packet, sent);
}

/// Passes the packet through the transmitter and returns its departure time. The packet completes
/// at once, or `completion_delay` after the departure if the direction completes later.
fn pass_transmitter(
    impairment: &Impairment,
    in_flight: &mut InFlight,
    cx: &Cx,
    packet: &mut Packet,
) -> Instant {
    let start = in_flight.idle_at.max(cx.now);
    let congested = impairment.mark_above.is_some_and(|limit| start - cx.now > limit);
    if congested || chance(&mut in_flight.rng, impairment.mark) {
        ecn::set_ce(packet.linear_mut().get_mut(ethernet::HEADER_LEN..).unwrap_or_default());
    }
    in_flight.waits.count(start - cx.now);
    let sent = start + transmission_time(impairment.rate_bps, packet);
    in_flight.idle_at = sent;
    if !impairment.completes_later() {
        packet.orphan();
    } else {
        let (owner, mark) = (packet.take_owner(), packet.take_clone_mark());
        let due = sent + impairment.completion_delay;
        let bytes = packet.len();
        in_flight.completions.push_back(Completion { due, bytes, owner, _mark: mark });
    }
    sent
}

/// Schedules the arrival of the packet after the delay, possibly reordered, possibly duplicated.
fn schedule_arrival(
    impairment: &Impairment,
    in_flight: &mut InFlight,
    cx: &mut Cx,
    packet: Packet,
    sent: Instant,
) {
    let mut due = sent + impairment.delay;
    if chance(&mut in_flight.rng, impairment.reorder) {
        due += impairment.reorder_delay;
    }
    if chance(&mut in_flight.rng, impairment.duplicate)
        && let Some(copy) = packet.deep_copy(&mut cx.pool)
    {
        insert_by_due(&mut in_flight.timed, Timed { due, packet: copy });
    }
    insert_by_due(&mut in_flight.timed, Timed { due, packet });
}

/// Returns true in `fraction` of the calls.
fn chance(rng: &mut tcp::Rng, fraction: f64) -> bool {
    fraction > 0.0 && f64::from(rng.next_u32()) < fraction * 4_294_967_296.0
}

/// Returns the time for which the packet occupies the link. A superframe (a packet of several
/// segments) occupies it as long as its segments would.
pub(super) fn transmission_time(rate_bps: Option<u64>, packet: &Packet) -> Duration {
    let Some(rate_bps) = rate_bps else { return Duration::ZERO };
    let frames = u64::from(packet.meta().gso.segs.max(1));
    let header = 14 + header::header_bytes(packet, 14) as u64;
    let bytes = packet.len() as u64 + (frames - 1) * header + frames * FRAMING_BYTES - frames * 14;
    // A packet has about 512 KiB at most, so the product does not overflow.
    Duration::from_nanos(bytes * 8 * 1_000_000_000 / rate_bps)
}

/// Flips a bit in a copy, because payload is shared and immutable, and frees the original. Returns
/// the original if there is no memory for the copy.
fn flip_one_bit(packet: Packet, rng: &mut tcp::Rng, cx: &mut Cx) -> Result<Packet, Packet> {
    let mut bytes = packet.to_vec();
    let byte = rng.below(u32::try_from(bytes.len()).unwrap_or(u32::MAX)) as usize;
    bytes[byte] ^= 1 << rng.below(8);
    let Some(mut copy) = cx.pool.alloc() else { return Err(packet) };
    *copy.meta_mut() = *packet.meta();
    if copy.append(&mut cx.pool, &bytes) < bytes.len() {
        cx.pool.free(copy);
        return Err(packet);
    }
    cx.pool.free(packet);
    Ok(copy)
}
