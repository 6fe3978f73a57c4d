//! The transmit path without a ring: the kernel copies frames directly from packet memory, many in
//! one system call. Completions follow from the fill level of the socket's send buffer.
//!
//! Above: `device`. Linux: `packet_snd`, `sock_alloc_send_pskb`, `sock_wfree`, `SIOCOUTQ`.
//!
//! ```text
//!   list ─► waiting ─ sendmmsg ─► in flight ─ the send buffer drains ─► completed
//!              ▲ refused: no room │
//!              └──────────────────┘
//! ```
//!
//! The kernel copies a frame once while it is sent. On a virtual interface that is one copy less
//! than with a ring, because the kernel cannot pass the ring's pages on. A packet is kept until the
//! kernel's copy is freed, so that its owner (TCP Small Queues) is notified at that time.
//!
//! The socket does not report which copies were freed, only the bytes of memory that the remaining
//! copies take. Frames leave in order while one queue of the kernel holds them, so the oldest
//! packets are completed as long as the others alone account for those bytes. The charge of a frame
//! is known as a lower bound ([`charge`]): a completion may be late by a few small frames, but is
//! never early. Disciplines that serve flows in turn, and NICs with many queues, complete in
//! another order. The number of frames in flight is correct then, too, but the completed packets
//! may be others.
//!
//! Two locks, as with the ring: `kick` orders the system calls; `state` is held while packets are
//! added and removed. `kick` is taken first. While a system call runs, the send buffer holds frames
//! that are not recorded in `state` yet, and may already free them. A reap at that time is stale,
//! so the caller must reap again when the call has returned.
//!
//! Not here: segmentation in software (the capabilities tell the stack what it must segment).

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;
use pkt::{DropReason, FRAGS_MAX, Instant, Packet, PacketList};
use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg};

use super::super::checksum::complete_tx_checksum;
use super::super::vnet_hdr::{VNET_HDR_LEN, VnetHdr};
use super::ETHERNET_HEADER_LEN;
use super::receive::PACKET_VNET_HDR_LEN;
use super::sender::{Refused, Sender};
use super::socket::send_buffer_used;
use super::transmit::{IP_BYTES_MAX, REFUSALS_MAX, RETRY};

/// Frames of one system call.
const BATCH: usize = 16;

/// Pieces of a frame: offload header, head and fragments.
const PIECES_MAX: usize = 1 + 1 + FRAGS_MAX;

/// Transmit path of one queue.
#[derive(Debug)]
pub(super) struct TxCalls {
    socket: OwnedFd,
    vnet_hdr: bool,
    /// Maximum number of packets that wait or are in flight.
    room: usize,
    /// Size of a page of the kernel, in bytes: 4 KB, on some machines 16 or 64.
    page_bytes: usize,
    /// Number of consecutive refusals of the oldest frame while no packet of this queue was in
    /// flight.
    kick: Mutex<u32>,
    state: Mutex<State>,
    /// Number of packets in flight or offered by the running system call. Written under `state`;
    /// read without the lock to skip useless reaps.
    held: AtomicUsize,
    /// Time of the next attempt if no completion comes before, in nanoseconds; `u64::MAX` if none
    /// is needed. Written under `kick`. Relaxed, because the doorbell orders it for a core that is
    /// about to sleep.
    retry_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Number of packets taken out of `waiting` for the running system call.
    offered: usize,
    in_flight: VecDeque<InFlight>,
    /// Sum of the charges of the packets in flight, a lower bound.
    charged: usize,
    /// A reap ran while sendmmsg was in flight; its SIOCOUTQ reading is stale, so the caller must
    /// reap again.
    stale_reap: bool,
}

/// A packet and its offload header.
#[derive(Debug)]
struct Waiting {
    packet: Packet,
    header: VnetHdr,
}

#[derive(Debug)]
struct InFlight {
    packet: Packet,
    charge: usize,
}

impl State {
    fn held(&self) -> usize {
        self.waiting.len() + self.offered + self.in_flight.len()
    }
}

impl TxCalls {
    pub(super) fn new(socket: OwnedFd, room: usize, vnet_hdr: bool) -> Self {
        let state = State {
            waiting: VecDeque::with_capacity(room),
            in_flight: VecDeque::with_capacity(room),
            ..State::default()
        };
        Self {
            socket,
            vnet_hdr,
            room,
            page_bytes: rustix::param::page_size(),
            kick: Mutex::new(0),
            state: Mutex::new(state),
            held: AtomicUsize::new(0),
            retry_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Moves packets from the front of `list` to the waiting ones. Stops at a packet that cannot be
    /// sent at all, and returns it.
    fn enqueue(&self, list: &mut PacketList) -> Option<Refused> {
        let mut state = self.lock();
        while state.held() < self.room {
            let mut packet = list.pop_front()?;
            match self.header(&mut packet) {
                Ok(header) => state.waiting.push_back(Waiting { packet, header }),
                Err(reason) => return Some(Refused { reason, packet }),
            }
        }
        None
    }

    fn header(&self, packet: &mut Packet) -> Result<VnetHdr, DropReason> {
        let len_max = usize::from(ETHERNET_HEADER_LEN) + IP_BYTES_MAX as usize;
        if packet.len() > len_max {
            return Err(DropReason::PacketTooBig);
        }
        if self.vnet_hdr {
            return VnetHdr::of(packet, ETHERNET_HEADER_LEN);
        }
        if packet.meta().gso.segs > 1 {
            // Only a stack that ignores the capabilities of the device gets here.
            return Err(DropReason::PacketTooBig);
        }
        complete_tx_checksum(packet, ETHERNET_HEADER_LEN)?;
        Ok(VnetHdr::default())
    }

    /// Makes one system call. Returns `None` if no packet waits.
    fn offer(&self) -> Option<Result<(), Errno>> {
        let batch = self.take_batch();
        if batch.is_empty() {
            return None;
        }
        let sent = send(self.socket(), &batch, self.vnet_hdr);
        self.record_sent(batch, *sent.as_ref().unwrap_or(&0));
        Some(sent.map(drop))
    }

    /// Takes the oldest waiting packets for a system call.
    fn take_batch(&self) -> Batch {
        let mut state = self.lock();
        let count = state.waiting.len().min(BATCH);
        let batch = state.waiting.drain(..count).collect();
        state.offered = count;
        self.note_held(&state);
        batch
    }

    /// Records that the system call has sent the first `taken` packets of the batch. The others
    /// wait again.
    fn record_sent(&self, mut batch: Batch, taken: usize) {
        let mut state = self.lock();
        state.offered = 0;
        for Waiting { packet, header } in batch.drain(..taken) {
            let charge = charge(packet.len(), usize::from(header.hdr_len), self.page_bytes);
            state.charged += charge;
            state.in_flight.push_back(InFlight { packet, charge });
        }
        for waiting in batch.into_iter().rev() {
            state.waiting.push_front(waiting);
        }
        self.note_held(&state);
    }

    fn note_held(&self, state: &State) {
        self.held.store(state.in_flight.len() + state.offered, Ordering::Relaxed);
    }

    /// Sets the time of the next attempt, for waiting packets or after a stale reap. The caller
    /// holds `kick`.
    fn set_retry(&self, now: Instant, waiting_until: Option<Instant>) {
        let state = self.lock();
        let missed = state.stale_reap && !state.in_flight.is_empty();
        let at = if missed { Some(now) } else { waiting_until };
        self.retry_ns.store(at.map_or(u64::MAX, Instant::as_nanos), Ordering::Relaxed);
    }

    /// Returns the descriptor that becomes writable when packets were completed.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender for TxCalls {
    fn fill(&self, list: &mut PacketList, bad: &mut impl FnMut(DropReason, Packet)) -> bool {
        // `bad` is called outside of the lock.
        while let Some(Refused { reason, packet }) = self.enqueue(list) {
            bad(reason, packet);
        }
        !self.lock().waiting.is_empty()
    }

    fn send_until_refused(&self, now: Instant, refused: &mut Option<Refused>) -> Result<(), Errno> {
        let mut refusals = self.kick.lock().unwrap_or_else(PoisonError::into_inner);
        let mut retry = None;
        while let Some(sent) = self.offer() {
            let errno = match sent {
                Ok(()) => {
                    *refusals = 0;
                    continue;
                }
                Err(errno) => errno,
            };
            let reason = match errno {
                Errno::INTR => continue,
                Errno::NETDOWN | Errno::NXIO | Errno::NODEV => return Err(errno),
                // The send buffer is full of packets in flight.
                Errno::AGAIN => None,
                // The queueing discipline is full, or the driver without one.
                Errno::NOBUFS => {
                    let idle = self.held.load(Ordering::Relaxed) == 0;
                    *refusals = if idle { *refusals + 1 } else { 0 };
                    (*refusals > REFUSALS_MAX).then_some(DropReason::QdiscDrop)
                }
                // Any other error concerns the next frame.
                _ => Some(DropReason::DeviceTxError),
            };
            if let Some(reason) = reason {
                *refusals = 0;
                let oldest = self.lock().waiting.pop_front();
                *refused = oldest.map(|Waiting { packet, .. }| Refused { reason, packet });
            }
            retry = Some(now + RETRY);
            break;
        }
        self.set_retry(now, retry);
        Ok(())
    }

    fn withdraw(&self, now: Instant) -> PacketList {
        let _kick = self.kick.lock().unwrap_or_else(PoisonError::into_inner);
        self.set_retry(now, None);
        self.lock().waiting.drain(..).map(|waiting| waiting.packet).collect()
    }

    fn reap(&self) -> PacketList {
        let mut done = PacketList::new();
        if self.held.load(Ordering::Relaxed) == 0 {
            return done;
        }
        let mut state = self.lock();
        state.stale_reap = state.offered > 0;
        // Read under the lock: no packet can be added whose bytes are not in this reading.
        let used = send_buffer_used(self.socket());
        while let Some(oldest) = state.in_flight.front() {
            // Half of the charge allows for the difference between the true and the known charges
            // of the others: a frame that the kernel holds is charged whole.
            if used > 0 && state.charged < used + oldest.charge / 2 {
                break;
            }
            state.charged -= oldest.charge;
            done.extend(state.in_flight.pop_front().map(|oldest| oldest.packet));
        }
        self.note_held(&state);
        done
    }

    fn retry_at(&self) -> Option<Instant> {
        match self.retry_ns.load(Ordering::Relaxed) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }
}

/// Packets of one system call.
type Batch = ArrayVec<Waiting, BATCH>;

/// Returns how many of the first packets were sent, or the error of the first one.
fn send(fd: BorrowedFd<'_>, batch: &[Waiting], vnet_hdr: bool) -> Result<usize, Errno> {
    let headers: ArrayVec<[u8; VNET_HDR_LEN], BATCH> =
        batch.iter().map(|waiting| waiting.header.to_bytes()).collect();
    let mut pieces = ArrayVec::<IoSlice<'_>, { BATCH * PIECES_MAX }>::new();
    let mut ends = ArrayVec::<usize, BATCH>::new();
    for (Waiting { packet, .. }, header) in batch.iter().zip(&headers) {
        if vnet_hdr {
            pieces.push(IoSlice::new(&header[..PACKET_VNET_HDR_LEN]));
        }
        pieces.extend(packet.slices().map(IoSlice::new));
        ends.push(pieces.len());
    }
    let mut nothing: [_; BATCH] = std::array::from_fn(|_| SendAncillaryBuffer::default());
    let mut messages = ArrayVec::<MMsgHdr<'_>, BATCH>::new();
    let mut begin = 0;
    for (&end, control) in ends.iter().zip(&mut nothing) {
        messages.push(MMsgHdr::new(&pieces[begin..end], control));
        begin = end;
    }
    sendmmsg(fd, &mut messages, SendFlags::DONTWAIT)
}

/// Returns a lower bound of the bytes that the kernel charges a socket for a frame of `len` bytes,
/// the first `header_len` of which are declared as headers.
///
/// The linear part, which is the headers or a whole frame that fits into a page with spare room, is
/// one allocation of a power of two. That allocation begins with room for a link header and ends
/// with `struct skb_shared_info`. The rest of the frame is in whole pages, and `struct sk_buff` is
/// charged, too. Linux: `SKB_TRUESIZE`, `packet_alloc_skb`, `alloc_skb_with_frags`. The sizes are
/// those of the smallest configuration.
fn charge(len: usize, header_len: usize, page_bytes: usize) -> usize {
    const SK_BUFF_BYTES: usize = 192;
    const AROUND_BYTES: usize = 16 + 256;
    const PAGE_SPARE_BYTES: usize = 256;
    let linear = match len + PAGE_SPARE_BYTES < page_bytes {
        true => len,
        false => header_len.max(usize::from(ETHERNET_HEADER_LEN)),
    };
    let head = match linear {
        // Later versions allocate these from a cache whose objects are not of a power of two.
        ..=400 => 512,
        _ => (linear + AROUND_BYTES).next_power_of_two(),
    };
    SK_BUFF_BYTES + head + (len - linear).next_multiple_of(page_bytes)
}

#[cfg(test)]
mod tests;
