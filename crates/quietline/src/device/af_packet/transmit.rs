//! The transmit ring: frames copied into shared memory, sent by one system call per list, and completed when the kernel says
//! that they are gone.
//!
//! Above: `device`. Linux: `tpacket_snd`, `tpacket_destruct_skb`.
//!
//! ```text
//!      tail             taken                  head
//!       v                 v                      v
//!   ────[ SENDING  SENDING ][ SEND_REQUEST  ... ][ AVAILABLE  AVAILABLE ─────
//!        the kernel's: in a    ours until the      free
//!        qdisc or a driver     next system call
//! ```
//!
//! The kernel takes places in their order and sends straight out of them. It gives a place back (AVAILABLE) when the last that
//! holds the packet, a queueing discipline or a driver, lets go of it: that is a true completion. Until then we keep the packet
//! itself, so that its owner (TCP Small Queues) hears of it then.
//!
//! When a queueing discipline refuses a frame the kernel puts it back (SEND_REQUEST) and stops; so it does when the socket's send
//! buffer is full. Such frames stay in the ring, and are offered again with the next list, with the next completion, or after
//! [`RETRY`]; one that is refused again and again although nothing of ours is queued is dropped and counted, because it may be larger
//! than the whole discipline. So is a frame that the kernel cannot make sense of (WRONG_FORMAT). Those behind it move up, because
//! the kernel would wait at its place for ever.
//!
//! Two locks: `kick` orders the system calls, so that whoever holds it knows that the kernel does not look at the ring; `state` is
//! held while places are filled and reaped. `kick` is taken first. While a system call runs a frame that is refused looks completed
//! for a moment, so only what the kernel had passed when the last one returned (`passed`) is reaped; who comes too early is told to
//! come again when the call has returned.
//!
//! Not here: segmentation in software (the capabilities tell the stack what to cut beforehand).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pkt::{DropReason, Instant, Packet, PacketList};
use rustix::io::Errno;

use super::super::checksum::complete_tx_checksum;
use super::super::mapping::Mapping;
use super::super::vnet_hdr::VnetHdr;
use super::ETHERNET_HEADER_LEN;
use super::receive::PACKET_VNET_HDR_LEN;
use super::sender::Sender;
use super::socket::send_waiting;

/// Bytes of a place: 16 pages, as many as one packet of the kernel's may refer to.
pub(super) const PLACE_BYTES: usize = 64 << 10;

/// Places of a block of memory.
pub(super) const BLOCK_FRAMES: usize = 16;

/// Where the frame begins in its place: behind `struct tpacket2_hdr`, aligned to 16.
const FRAME_AT: usize = 32;
const _: () = assert!(size_of::<libc::tpacket2_hdr>() == FRAME_AT);

/// Where the kernel looks for the frame's length, offload header included.
const LEN_AT: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_len);

/// Largest IP packet of a place.
pub(super) const IP_BYTES_MAX: u32 = 65_536 - 32 - 10 - 14;
const _: () = assert!(
    FRAME_AT + PACKET_VNET_HDR_LEN + 14 + IP_BYTES_MAX as usize == PLACE_BYTES
        && ETHERNET_HEADER_LEN == 14
);

/// Frames up to this length the kernel copies instead of referring to the ring's pages: that costs less than the references,
/// and on a veth than the pages it would copy them to.
const COPY_BYTES: usize = 2048;

/// When frames that the kernel had no room for are offered again although nothing was completed.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// How often a frame is offered to a queueing discipline that has nothing of ours before it is dropped.
pub(super) const REFUSALS_MAX: u32 = 16;

/// Bits of a status that say whose the place is; the others tell about time stamps.
const STATUS_MASK: u32 =
    libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_SENDING | libc::TP_STATUS_WRONG_FORMAT;

/// The ring of one queue.
#[derive(Debug)]
pub(super) struct TxRing {
    socket: OwnedFd,
    mapping: Mapping,
    vnet_hdr: bool,
    kick: Mutex<Refusals>,
    state: Mutex<TxState>,
    /// Packets in the ring. Written under `state`; read without it by who only wants to know whether to look.
    held: AtomicUsize,
    /// When to come again although nothing is completed, in nanoseconds; `u64::MAX` when there is no need. Written under `kick`;
    /// relaxed, because the doorbell orders it for a core that is about to sleep.
    retry_ns: AtomicU64,
}

/// How often the oldest frame was refused in a row although nothing of ours was queued.
#[derive(Debug)]
struct Refusals(u32);

/// Counts of places, never wrapped: a place's index is the count modulo the ring.
#[derive(Debug)]
struct TxState {
    head: usize,
    /// Where the kernel stood when the last system call returned. Behind it places only ever become free.
    passed: usize,
    tail: usize,
    /// The last reaping has met a place that looked free and that the kernel had not passed.
    too_early: bool,
    packets: Box<[Option<Packet>]>,
}

impl TxRing {
    pub(super) fn new(socket: OwnedFd, mapping: Mapping, vnet_hdr: bool) -> Self {
        let places = mapping.len() / PLACE_BYTES;
        let packets = (0..places).map(|_| None).collect();
        let state = TxState { head: 0, passed: 0, tail: 0, too_early: false, packets };
        Self {
            socket,
            mapping,
            vnet_hdr,
            kick: Mutex::new(Refusals(0)),
            state: Mutex::new(state),
            held: AtomicUsize::new(0),
            retry_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Whether the newest frame waits for the kernel, which takes them in their order: none waits if that one does not.
    fn newest_waits(&self, state: &TxState) -> bool {
        state.passed < state.head && self.waits(state.head - 1)
    }

    /// The first frame that waits for the kernel, or `head`. Where the kernel stands, if the caller holds `kick`.
    fn first_waiting(&self, state: &TxState) -> usize {
        if !self.newest_waits(state) {
            return state.head;
        }
        (state.passed..state.head).find(|&count| self.waits(count)).unwrap_or(state.head)
    }

    /// Says when to come again. The caller holds `kick`.
    fn set_retry(&self, state: &TxState, now: Instant) {
        let retry = if state.too_early && state.tail < state.passed {
            now.as_nanos()
        } else if state.passed < state.head {
            (now + RETRY).as_nanos()
        } else {
            u64::MAX
        };
        self.retry_ns.store(retry, Ordering::Relaxed);
    }

    /// Writes a frame into its place and offers it to the kernel.
    fn write(&self, index: usize, packet: &mut Packet) -> Result<(), DropReason> {
        let begin = index * PLACE_BYTES;
        let mut header = [0; PACKET_VNET_HDR_LEN];
        let mut at = FRAME_AT;
        if self.vnet_hdr {
            let mut fields = VnetHdr::of(packet, ETHERNET_HEADER_LEN)?;
            if packet.len() <= COPY_BYTES {
                // What the kernel shall copy: at least the headers, and here the whole frame.
                fields.hdr_len = u16::try_from(packet.len()).unwrap_or(u16::MAX);
            }
            header.copy_from_slice(&fields.to_bytes()[..PACKET_VNET_HDR_LEN]);
            at += PACKET_VNET_HDR_LEN;
        } else {
            if packet.meta().gso.segs > 1 {
                // Only a stack that ignores our capabilities gets here.
                return Err(DropReason::PacketTooBig);
            }
            complete_tx_checksum(packet, ETHERNET_HEADER_LEN)?;
        }
        if at + packet.len() > PLACE_BYTES {
            return Err(DropReason::PacketTooBig);
        }
        let len = u32::try_from(at - FRAME_AT + packet.len()).unwrap_or(u32::MAX);
        self.copy_in(begin + LEN_AT, &len.to_ne_bytes());
        if self.vnet_hdr {
            self.copy_in(begin + FRAME_AT, &header);
        }
        for slice in packet.slices() {
            self.copy_in(begin + at, slice);
            at += slice.len();
        }
        self.mapping.word(begin).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        Ok(())
    }

    fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.mapping.at(offset, bytes.len());
        // SAFETY: inside the mapping (checked by `at`), which overlaps no packet; and the place is ours: it lies between head and
        // tail + places, so the kernel has passed it and given it back, and the caller holds `state`.
        unsafe { to.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
    }

    fn status(&self, index: usize) -> u32 {
        self.mapping.word(index * PLACE_BYTES).load(Ordering::Acquire) & STATUS_MASK
    }

    fn set_status(&self, index: usize, status: u32) {
        self.mapping.word(index * PLACE_BYTES).store(status, Ordering::Release);
    }

    /// Whether the frame of this count waits for the kernel, or the kernel for us to take it out.
    fn waits(&self, count: usize) -> bool {
        let waiting = libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_WRONG_FORMAT;
        self.status(count % (self.mapping.len() / PLACE_BYTES)) & waiting != 0
    }

    /// Takes the frame at which the kernel stands out of the ring if it has this status. The caller holds `kick`.
    ///
    /// The kernel waits at that place, so the frames behind it move up by one; its own place is offered last, when all others
    /// are in order.
    fn skip(&self, state: &mut TxState, status: u32) -> Option<Packet> {
        let places = state.packets.len();
        let wrong = state.passed;
        if wrong == state.head || self.status(wrong % places) != status {
            return None;
        }
        let packet = state.packets[wrong % places].take();
        for count in wrong + 1..state.head {
            let (from, to) = (count % places, (count - 1) % places);
            let source = self.mapping.at(from * PLACE_BYTES + LEN_AT, PLACE_BYTES - LEN_AT);
            let target = self.mapping.at(to * PLACE_BYTES + LEN_AT, PLACE_BYTES - LEN_AT);
            // SAFETY: two places inside the mapping. Both are ours: the kernel stands before the first of them, and does not look
            // while `kick` is held.
            unsafe { target.copy_from_nonoverlapping(source, PLACE_BYTES - LEN_AT) };
            state.packets[to] = state.packets[from].take();
        }
        state.head -= 1;
        self.set_status(state.head % places, libc::TP_STATUS_AVAILABLE);
        if state.head > wrong {
            self.set_status(wrong % places, libc::TP_STATUS_SEND_REQUEST);
        }
        self.held.store(state.head - state.tail, Ordering::Relaxed);
        packet
    }

    /// What becomes writable when packets were completed.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, TxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender for TxRing {
    /// Copies packets from the front of `list` into the ring while there is room. What cannot be sent at all is given to `bad`.
    /// True if there is something to send, of this list or from before.
    fn fill(&self, list: &mut PacketList, bad: &mut impl FnMut(DropReason, Packet)) -> bool {
        let mut refused = None;
        let mut waits = false;
        while !list.is_empty() {
            {
                let mut state = self.lock();
                while state.head - state.tail < state.packets.len() {
                    let index = state.head % state.packets.len();
                    if self.status(index) != libc::TP_STATUS_AVAILABLE {
                        break;
                    }
                    let Some(mut packet) = list.pop_front() else { break };
                    match self.write(index, &mut packet) {
                        Ok(()) => {
                            state.packets[index] = Some(packet);
                            state.head += 1;
                        }
                        Err(reason) => {
                            refused = Some((reason, packet));
                            break;
                        }
                    }
                }
                self.held.store(state.head - state.tail, Ordering::Relaxed);
                waits = self.newest_waits(&state);
            }
            // Its owner is told outside of the lock.
            match refused.take() {
                Some((reason, packet)) => bad(reason, packet),
                None => break,
            }
        }
        waits
    }

    /// One system call. If it has met a frame that will never go that one is taken out of the ring, and there is more to send.
    ///
    /// Success does not say that everything was taken: the kernel also answers it when the send buffer is full after a few.
    fn send_until_refused(
        &self,
        now: Instant,
        refused: &mut Option<(DropReason, Packet)>,
    ) -> Result<(), Errno> {
        let mut refusals = self.kick.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = send_waiting(self.socket());
        let mut state = self.lock();
        state.passed = self.first_waiting(&state);
        match sent {
            Ok(()) => refusals.0 = 0,
            Err(errno @ (Errno::NETDOWN | Errno::NXIO | Errno::NODEV)) => return Err(errno),
            // The send buffer is full, of what is under way.
            Err(Errno::AGAIN) => {}
            // So is the queueing discipline, or the driver behind its back.
            Err(Errno::NOBUFS) => {
                let idle = state.tail == state.passed;
                refusals.0 = if idle { refusals.0 + 1 } else { 0 };
                if refusals.0 > REFUSALS_MAX {
                    refusals.0 = 0;
                    let packet = self.skip(&mut state, libc::TP_STATUS_SEND_REQUEST);
                    *refused = packet.map(|packet| (DropReason::QdiscDrop, packet));
                }
            }
            // Anything else is about the frame that comes next, if about a frame at all.
            Err(_) => {
                let packet = self.skip(&mut state, libc::TP_STATUS_WRONG_FORMAT);
                *refused = packet.map(|packet| (DropReason::DeviceTxError, packet));
            }
        }
        self.set_retry(&state, now);
        Ok(())
    }

    /// Packets that the kernel is done with, oldest first.
    fn reap(&self) -> PacketList {
        let mut done = PacketList::new();
        if self.held.load(Ordering::Relaxed) == 0 {
            return done;
        }
        let mut state = self.lock();
        state.too_early = false;
        while state.tail < state.head {
            let index = state.tail % state.packets.len();
            if self.status(index) != libc::TP_STATUS_AVAILABLE {
                break;
            }
            if state.tail == state.passed {
                state.too_early = true;
                break;
            }
            done.extend(state.packets[index].take());
            state.tail += 1;
        }
        self.held.store(state.head - state.tail, Ordering::Relaxed);
        done
    }

    /// When to come again although nothing is completed: to offer what the kernel had no room for, or to reap what was being sent
    /// the last time.
    fn retry_at(&self) -> Option<Instant> {
        match self.retry_ns.load(Ordering::Relaxed) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    /// Takes back what the kernel has not taken.
    fn withdraw(&self, now: Instant) -> PacketList {
        let _kick = self.kick.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let places = state.packets.len();
        state.passed = self.first_waiting(&state);
        let mut list = PacketList::new();
        for count in state.passed..state.head {
            self.set_status(count % places, libc::TP_STATUS_AVAILABLE);
            list.extend(state.packets[count % places].take());
        }
        state.head = state.passed;
        self.held.store(state.head - state.tail, Ordering::Relaxed);
        self.set_retry(&state, now);
        list
    }
}

#[cfg(test)]
mod tests;
