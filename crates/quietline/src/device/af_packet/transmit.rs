//! The transmit ring: frames are copied into shared memory, sent by one system call per list, and
//! completed when the kernel returns their slots.
//!
//! Above: `device`. Linux: `tpacket_snd`, `tpacket_destruct_skb`.
//!
//! ```text
//!      tail             taken                  head
//!       v                 v                      v
//!   ────[ SENDING  SENDING ][ SEND_REQUEST  ... ][ AVAILABLE  AVAILABLE ─────
//!        kernel: in a          waiting for the     free
//!        qdisc or driver       next system call
//! ```
//!
//! The kernel takes slots in order and sends directly from them. It returns a slot (AVAILABLE) when
//! the last holder of the packet, a queueing discipline or a driver, frees it: that is a true
//! completion. Until then the ring keeps the packet itself, so that its owner (TCP Small Queues) is
//! notified at that time.
//!
//! If a queueing discipline refuses a frame, or the socket's send buffer is full, the kernel resets
//! the slot (SEND_REQUEST) and stops. Such frames stay in the ring and are offered again with the
//! next list, with the next completion, or after [`RETRY`]. A frame that is refused repeatedly
//! although no packet of this queue is in flight is dropped and counted, because it may be larger
//! than the limit of the discipline. A frame that the kernel rejects as malformed (WRONG_FORMAT) is
//! dropped, too. The frames after a dropped one move up, because the kernel would wait at its slot
//! forever.
//!
//! Two locks: `kick` orders the system calls, so that its holder knows that the kernel does not
//! access the ring; `state` is held while slots are filled and reaped. `kick` is taken first. While
//! a system call runs, a frame that is refused looks completed for a moment. A reap therefore stops
//! at `passed`, the kernel's position when the last call returned. A reap that stops there is
//! stale, so the caller must reap again when the call has returned.
//!
//! Not here: segmentation in software (the capabilities tell the stack what it must segment).

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
use super::sender::{Refused, Sender};
use super::socket::send_waiting;

/// Bytes of a slot: 16 pages, the maximum that one packet of the kernel may refer to.
pub(super) const SLOT_BYTES: usize = 64 << 10;

/// Slots of a block of memory.
pub(super) const BLOCK_FRAMES: usize = 16;

/// Offset of the frame in its slot: after `struct tpacket2_hdr`, aligned to 16.
const FRAME_AT: usize = 32;
const _: () = assert!(size_of::<libc::tpacket2_hdr>() == FRAME_AT);

/// Offset of the frame's length, which includes the offload header.
const LEN_AT: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_len);

/// Largest IP packet of a slot.
pub(super) const IP_BYTES_MAX: u32 = 65_536 - 32 - 10 - 14;
const _: () = assert!(
    FRAME_AT + PACKET_VNET_HDR_LEN + 14 + IP_BYTES_MAX as usize == SLOT_BYTES
        && ETHERNET_HEADER_LEN == 14
);

/// The kernel copies frames up to this length instead of referring to the ring's pages: the copy
/// costs less than the references, and on a veth less than the pages that the kernel would copy
/// them to.
const COPY_BYTES: usize = 2048;

/// Time after which frames that the kernel had no room for are offered again if no packet was
/// completed.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// Number of times that a frame is offered to a queueing discipline that holds no packet of this
/// queue before the frame is dropped.
pub(super) const REFUSALS_MAX: u32 = 16;

/// Bits of a status that give the owner of the slot; the others concern time stamps.
const STATUS_MASK: u32 =
    libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_SENDING | libc::TP_STATUS_WRONG_FORMAT;

/// Transmit ring of one queue.
#[derive(Debug)]
pub(super) struct TxRing {
    socket: OwnedFd,
    mapping: Mapping,
    vnet_hdr: bool,
    kick: Mutex<Refusals>,
    state: Mutex<TxState>,
    /// Number of packets in the ring. Written under `state`; read without the lock to skip useless
    /// reaps.
    held: AtomicUsize,
    /// Time of the next attempt if no completion comes before, in nanoseconds; `u64::MAX` if none
    /// is needed. Written under `kick`. Relaxed, because the doorbell orders it for a core that is
    /// about to sleep.
    retry_ns: AtomicU64,
}

/// Number of consecutive refusals of the oldest frame while no packet of this queue was in flight.
#[derive(Debug)]
struct Refusals(u32);

/// Positions in the ring as counts of slots that never wrap: the index of a slot is its count
/// modulo the ring size.
#[derive(Debug)]
struct TxState {
    head: usize,
    /// Position of the kernel when the last system call returned. Slots before it can only become
    /// free.
    passed: usize,
    tail: usize,
    /// The last reap stopped at a slot that looked free and that the kernel had not passed; the
    /// caller must reap again.
    stale_reap: bool,
    packets: Box<[Option<Packet>]>,
}

impl TxRing {
    pub(super) fn new(socket: OwnedFd, mapping: Mapping, vnet_hdr: bool) -> Self {
        let slots = mapping.len() / SLOT_BYTES;
        let packets = (0..slots).map(|_| None).collect();
        let state = TxState { head: 0, passed: 0, tail: 0, stale_reap: false, packets };
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

    /// Returns whether the newest frame waits for the kernel. The kernel takes frames in order, so
    /// no frame waits if the newest does not.
    fn newest_waits(&self, state: &TxState) -> bool {
        state.passed < state.head && self.waits(state.head - 1)
    }

    /// Returns the position of the first frame that waits for the kernel, or `head`. That is the
    /// kernel's position, if the caller holds `kick`.
    fn first_waiting(&self, state: &TxState) -> usize {
        if !self.newest_waits(state) {
            return state.head;
        }
        (state.passed..state.head).find(|&count| self.waits(count)).unwrap_or(state.head)
    }

    /// Sets the time of the next attempt. The caller holds `kick`.
    fn set_retry(&self, state: &TxState, now: Instant) {
        let retry = if state.stale_reap && state.tail < state.passed {
            now.as_nanos()
        } else if state.passed < state.head {
            (now + RETRY).as_nanos()
        } else {
            u64::MAX
        };
        self.retry_ns.store(retry, Ordering::Relaxed);
    }

    /// Writes a frame into its slot and offers it to the kernel.
    fn write(&self, index: usize, packet: &mut Packet) -> Result<(), DropReason> {
        let begin = index * SLOT_BYTES;
        let mut header = [0; PACKET_VNET_HDR_LEN];
        let mut at = FRAME_AT;
        if self.vnet_hdr {
            let mut fields = VnetHdr::of(packet, ETHERNET_HEADER_LEN)?;
            if packet.len() <= COPY_BYTES {
                // Number of bytes that the kernel copies: at least the headers, and here the whole
                // frame.
                fields.hdr_len = u16::try_from(packet.len()).unwrap_or(u16::MAX);
            }
            header.copy_from_slice(&fields.to_bytes()[..PACKET_VNET_HDR_LEN]);
            at += PACKET_VNET_HDR_LEN;
        } else {
            if packet.meta().gso.segs > 1 {
                // Only a stack that ignores the capabilities of the device gets here.
                return Err(DropReason::PacketTooBig);
            }
            complete_tx_checksum(packet, ETHERNET_HEADER_LEN)?;
        }
        if at + packet.len() > SLOT_BYTES {
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
        // SAFETY: the range is inside the mapping (checked by `at`), which overlaps no packet. This
        // process owns the slot: it lies between head and tail + slots, so the kernel has passed
        // and returned it, and the caller holds `state`.
        unsafe { to.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
    }

    fn status(&self, index: usize) -> u32 {
        self.mapping.word(index * SLOT_BYTES).load(Ordering::Acquire) & STATUS_MASK
    }

    fn set_status(&self, index: usize, status: u32) {
        self.mapping.word(index * SLOT_BYTES).store(status, Ordering::Release);
    }

    /// Returns whether the frame at this position waits for the kernel, or was rejected by it.
    fn waits(&self, count: usize) -> bool {
        let waiting = libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_WRONG_FORMAT;
        self.status(count % (self.mapping.len() / SLOT_BYTES)) & waiting != 0
    }

    /// Removes the frame at the kernel's position from the ring if it has this status. The caller
    /// holds `kick`.
    ///
    /// The kernel waits at that slot, so the frames after it move up by one. The slot itself is
    /// offered last, when all others are in order.
    fn skip(&self, state: &mut TxState, status: u32) -> Option<Packet> {
        let slots = state.packets.len();
        let wrong = state.passed;
        if wrong == state.head || self.status(wrong % slots) != status {
            return None;
        }
        let packet = state.packets[wrong % slots].take();
        for count in wrong + 1..state.head {
            let (from, to) = (count % slots, (count - 1) % slots);
            let source = self.mapping.at(from * SLOT_BYTES + LEN_AT, SLOT_BYTES - LEN_AT);
            let target = self.mapping.at(to * SLOT_BYTES + LEN_AT, SLOT_BYTES - LEN_AT);
            // SAFETY: two slots inside the mapping. This process owns both: the kernel's position
            // is not after the first of them, and the kernel does not access the ring while `kick`
            // is held.
            unsafe { target.copy_from_nonoverlapping(source, SLOT_BYTES - LEN_AT) };
            state.packets[to] = state.packets[from].take();
        }
        state.head -= 1;
        self.set_status(state.head % slots, libc::TP_STATUS_AVAILABLE);
        if state.head > wrong {
            self.set_status(wrong % slots, libc::TP_STATUS_SEND_REQUEST);
        }
        self.held.store(state.head - state.tail, Ordering::Relaxed);
        packet
    }

    /// Returns the descriptor that becomes writable when packets were completed.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, TxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender for TxRing {
    /// Copies packets from the front of `list` into the ring while there is room. Passes packets
    /// that cannot be sent at all to `bad`. Returns true if there is something to send, from this
    /// list or from before.
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
                            refused = Some(Refused { reason, packet });
                            break;
                        }
                    }
                }
                self.held.store(state.head - state.tail, Ordering::Relaxed);
                waits = self.newest_waits(&state);
            }
            // `bad` is called outside of the lock.
            match refused.take() {
                Some(Refused { reason, packet }) => bad(reason, packet),
                None => break,
            }
        }
        waits
    }

    /// Makes one system call. A frame that can never be sent is removed from the ring, and more may
    /// wait.
    ///
    /// Success does not mean that every frame was taken: the kernel also returns it if the send
    /// buffer is full after a few frames.
    fn send_until_refused(&self, now: Instant, refused: &mut Option<Refused>) -> Result<(), Errno> {
        let mut refusals = self.kick.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = send_waiting(self.socket());
        let mut state = self.lock();
        state.passed = self.first_waiting(&state);
        match sent {
            Ok(()) => refusals.0 = 0,
            Err(errno @ (Errno::NETDOWN | Errno::NXIO | Errno::NODEV)) => return Err(errno),
            // The send buffer is full of packets in flight.
            Err(Errno::AGAIN) => {}
            // The queueing discipline is full, or the driver without one.
            Err(Errno::NOBUFS) => {
                let idle = state.tail == state.passed;
                refusals.0 = if idle { refusals.0 + 1 } else { 0 };
                if refusals.0 > REFUSALS_MAX {
                    refusals.0 = 0;
                    let packet = self.skip(&mut state, libc::TP_STATUS_SEND_REQUEST);
                    let reason = DropReason::QdiscDrop;
                    *refused = packet.map(|packet| Refused { reason, packet });
                }
            }
            // Any other error concerns the next frame, if a frame at all.
            Err(_) => {
                let packet = self.skip(&mut state, libc::TP_STATUS_WRONG_FORMAT);
                let reason = DropReason::DeviceTxError;
                *refused = packet.map(|packet| Refused { reason, packet });
            }
        }
        self.set_retry(&state, now);
        Ok(())
    }

    /// Returns the packets that the kernel has completed, oldest first.
    fn reap(&self) -> PacketList {
        let mut done = PacketList::new();
        if self.held.load(Ordering::Relaxed) == 0 {
            return done;
        }
        let mut state = self.lock();
        state.stale_reap = false;
        while state.tail < state.head {
            let index = state.tail % state.packets.len();
            if self.status(index) != libc::TP_STATUS_AVAILABLE {
                break;
            }
            if state.tail == state.passed {
                state.stale_reap = true;
                break;
            }
            done.extend(state.packets[index].take());
            state.tail += 1;
        }
        self.held.store(state.head - state.tail, Ordering::Relaxed);
        done
    }

    /// Returns the time of the next attempt, to offer refused frames or to repeat a stale reap.
    fn retry_at(&self) -> Option<Instant> {
        match self.retry_ns.load(Ordering::Relaxed) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    /// Takes back the packets that the kernel has not accepted.
    fn withdraw(&self, now: Instant) -> PacketList {
        let _kick = self.kick.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let slots = state.packets.len();
        state.passed = self.first_waiting(&state);
        let mut list = PacketList::new();
        for count in state.passed..state.head {
            self.set_status(count % slots, libc::TP_STATUS_AVAILABLE);
            list.extend(state.packets[count % slots].take());
        }
        state.head = state.passed;
        self.held.store(state.head - state.tail, Ordering::Relaxed);
        self.set_retry(&state, now);
        list
    }
}

#[cfg(test)]
mod tests;
