//! The way out without a ring: frames given to the kernel straight from packet memory, many in one system call, and completed
//! as the socket's send buffer empties.
//!
//! Above: `device`. Linux: `packet_snd`, `sock_alloc_send_pskb`, `sock_wfree`, `SIOCOUTQ`.
//!
//! ```text
//!   list ─► waiting ─ sendmmsg ─► under way ─ the send buffer holds less ─► completed
//!              ▲ refused: no room │
//!              └──────────────────┘
//! ```
//!
//! The kernel copies a frame while it is sent, once; on a virtual interface that is one copy less than a ring costs, whose
//! pages it may refer to but not pass on. A packet is kept until the kernel's copy is freed, so that its owner (TCP Small Queues)
//! hears of it then.
//!
//! The socket does not say which copies are freed, only how many bytes of memory those that are left take. Frames leave in their
//! order as long as one queue of the kernel's has them, so the oldest are completed while the others alone account for those bytes.
//! What a frame is charged is known from below ([`charge`]): a completion may be late by a few small frames, it is never early.
//! Disciplines that serve flows in turn, and NICs with many queues, complete in another order: the number of frames that are under way
//! is right there, too, but not always whose they are.
//!
//! Two locks, as with the ring: `kick` orders the system calls; `state` is held while packets come and go. `kick` is taken first.
//! While a system call runs the send buffer holds frames that nobody has booked yet, and may let go of them: who asks then has come
//! too early, and is told to come again when the call has returned.
//!
//! Not here: segmentation in software (the capabilities tell the stack what to cut beforehand).

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
use super::sender::Sender;
use super::socket::send_buffer_used;
use super::transmit::{IP_BYTES_MAX, REFUSALS_MAX, RETRY};

/// Frames of one system call.
const BATCH: usize = 16;

/// Pieces of a frame: offload header, head and fragments.
const PIECES_MAX: usize = 1 + 1 + FRAGS_MAX;

/// The way out of one queue.
#[derive(Debug)]
pub(super) struct TxCalls {
    socket: OwnedFd,
    vnet_hdr: bool,
    /// Packets that may wait and be under way together.
    room: usize,
    /// Bytes of a page of the kernel's: 4 KB, 16 or 64 on some machines.
    page_bytes: usize,
    /// How often the oldest frame was refused in a row although nothing of ours was queued.
    kick: Mutex<u32>,
    state: Mutex<State>,
    /// Packets that are under way, or offered by the system call that runs. Written under `state`; read without it by who only
    /// wants to know whether to look.
    held: AtomicUsize,
    /// When to come again although nothing is completed, in nanoseconds; `u64::MAX` when there is no need. Written under `kick`;
    /// relaxed, because the doorbell orders it for a core that is about to sleep.
    retry_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Taken out of `waiting` for the system call that runs.
    offered: usize,
    under_way: VecDeque<UnderWay>,
    /// Sum of what those under way are charged at least.
    charged: usize,
    /// The last reaping was during a system call: what completed then has told it already.
    too_early: bool,
}

/// A packet and its offload header.
#[derive(Debug)]
struct Waiting {
    packet: Packet,
    header: VnetHdr,
}

#[derive(Debug)]
struct UnderWay {
    packet: Packet,
    charge: usize,
}

impl State {
    fn held(&self) -> usize {
        self.waiting.len() + self.offered + self.under_way.len()
    }
}

impl TxCalls {
    pub(super) fn new(socket: OwnedFd, room: usize, vnet_hdr: bool) -> Self {
        let state = State {
            waiting: VecDeque::with_capacity(room),
            under_way: VecDeque::with_capacity(room),
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

    /// Puts the oldest of a list where they wait. The one that cannot be sent at all is given back, and ends it.
    fn enqueue(&self, list: &mut PacketList) -> Option<(DropReason, Packet)> {
        let mut state = self.lock();
        while state.held() < self.room {
            let mut packet = list.pop_front()?;
            match self.header(&mut packet) {
                Ok(header) => state.waiting.push_back(Waiting { packet, header }),
                Err(reason) => return Some((reason, packet)),
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
            // Only a stack that ignores our capabilities gets here.
            return Err(DropReason::PacketTooBig);
        }
        complete_tx_checksum(packet, ETHERNET_HEADER_LEN)?;
        Ok(VnetHdr::default())
    }

    /// One system call. `None` when nothing waits.
    fn offer(&self) -> Option<Result<(), Errno>> {
        let batch = self.take_batch();
        if batch.is_empty() {
            return None;
        }
        let sent = send(self.socket(), &batch, self.vnet_hdr);
        self.book(batch, *sent.as_ref().unwrap_or(&0));
        Some(sent.map(drop))
    }

    /// The oldest that wait, for a system call.
    fn take_batch(&self) -> Batch {
        let mut state = self.lock();
        let count = state.waiting.len().min(BATCH);
        let batch = state.waiting.drain(..count).collect();
        state.offered = count;
        self.note_held(&state);
        batch
    }

    /// The system call has taken so many of the batch: the others wait again.
    fn book(&self, mut batch: Batch, taken: usize) {
        let mut state = self.lock();
        state.offered = 0;
        for Waiting { packet, header } in batch.drain(..taken) {
            let charge = charge(packet.len(), usize::from(header.hdr_len), self.page_bytes);
            state.charged += charge;
            state.under_way.push_back(UnderWay { packet, charge });
        }
        for waiting in batch.into_iter().rev() {
            state.waiting.push_front(waiting);
        }
        self.note_held(&state);
    }

    fn note_held(&self, state: &State) {
        self.held.store(state.under_way.len() + state.offered, Ordering::Relaxed);
    }

    /// Says when to come again, for what waits or what was asked for too early. The caller holds `kick`.
    fn set_retry(&self, now: Instant, waiting_until: Option<Instant>) {
        let state = self.lock();
        let missed = state.too_early && !state.under_way.is_empty();
        let at = if missed { Some(now) } else { waiting_until };
        self.retry_ns.store(at.map_or(u64::MAX, Instant::as_nanos), Ordering::Relaxed);
    }

    /// What becomes writable when packets were completed.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender for TxCalls {
    fn fill(&self, list: &mut PacketList, bad: &mut impl FnMut(DropReason, Packet)) -> bool {
        // Its owner is told outside of the lock.
        while let Some((reason, packet)) = self.enqueue(list) {
            bad(reason, packet);
        }
        !self.lock().waiting.is_empty()
    }

    fn send_until_refused(
        &self,
        now: Instant,
        refused: &mut Option<(DropReason, Packet)>,
    ) -> Result<(), Errno> {
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
                // The send buffer is full, of what is under way.
                Errno::AGAIN => None,
                // So is the queueing discipline, or the driver behind its back.
                Errno::NOBUFS => {
                    let idle = self.held.load(Ordering::Relaxed) == 0;
                    *refusals = if idle { *refusals + 1 } else { 0 };
                    (*refusals > REFUSALS_MAX).then_some(DropReason::QdiscDrop)
                }
                // Anything else is about the frame that comes next.
                _ => Some(DropReason::DeviceTxError),
            };
            if let Some(reason) = reason {
                *refusals = 0;
                let oldest = self.lock().waiting.pop_front();
                *refused = oldest.map(|Waiting { packet, .. }| (reason, packet));
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
        state.too_early = state.offered > 0;
        // Asked while nobody can add a packet whose bytes are not among these.
        let used = send_buffer_used(self.socket());
        while let Some(oldest) = state.under_way.front() {
            // Half of a frame for what the others are charged above what is known: one that is there is there whole.
            if used > 0 && state.charged < used + oldest.charge / 2 {
                break;
            }
            state.charged -= oldest.charge;
            done.extend(state.under_way.pop_front().map(|oldest| oldest.packet));
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

/// What one system call is to send.
type Batch = ArrayVec<Waiting, BATCH>;

/// Answers how many of the first were sent, or why the first was not.
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

/// Bytes that the kernel charges a socket at least for a frame of `len` bytes of which it is told that `header_len` are headers.
///
/// Headers, or a whole frame that fits into a page with room to spare, are in one piece of a power of two, which begins with room for a
/// link header and ends with `struct skb_shared_info`; the rest is in whole pages; and there is `struct sk_buff` itself. Linux:
/// `SKB_TRUESIZE`, `packet_alloc_skb`, `alloc_skb_with_frags`. Their sizes are those of the leanest configuration.
fn charge(len: usize, header_len: usize, page_bytes: usize) -> usize {
    const SK_BUFF_BYTES: usize = 192;
    const AROUND_BYTES: usize = 16 + 256;
    const PAGE_SPARE_BYTES: usize = 256;
    let linear = match len + PAGE_SPARE_BYTES < page_bytes {
        true => len,
        false => header_len.max(usize::from(ETHERNET_HEADER_LEN)),
    };
    let head = match linear {
        // From a cache of its own, in later versions, whose pieces are not of a power of two.
        ..=400 => 512,
        _ => (linear + AROUND_BYTES).next_power_of_two(),
    };
    SK_BUFF_BYTES + head + (len - linear).next_multiple_of(page_bytes)
}

#[cfg(test)]
mod tests;
