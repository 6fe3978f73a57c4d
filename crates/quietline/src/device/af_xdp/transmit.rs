//! The transmit half of a queue: copies packets into free chunks and the transmit ring, and takes
//! chunks back from the completion ring.
//!
//! Above: `device`. Linux: `xsk_sendmsg`, `xsk_generic_xmit`, `xsk_destruct_skb`, on the other side
//! of the rings.
//!
//! A packet is copied, and its memory may be freed when `push` returns. Its owner and its clone
//! mark are kept until the kernel completes the frame. There are as many chunks as entries in
//! either ring, so only chunks run out.
//!
//! Not here: the choice of a queue, segmentation (the capabilities tell the stack what it must
//! segment).

use std::sync::Arc;

use pkt::{CloneMark, DropReason, Packet, PacketOwner, TxChecksum};
use stack::device::Completed;

use super::super::checksum::complete_tx_checksum;
use super::abi::{TX_METADATA_LEN, XDP_TX_METADATA, checksum_request};
use super::ring::{Consumer, Descriptor, Producer};
use super::umem::{Frame, Frames};

/// Bytes of an Ethernet header.
const LINK_HEADER_LEN: u16 = 14;

/// State of the transmit half, locked by one sender at a time.
#[derive(Debug)]
pub(super) struct TxQueue {
    ring: Producer<Descriptor>,
    completion: Consumer<u64>,
    frames: Frames,
    free: Vec<Frame>,
    /// Frames in flight, by the number of the chunk.
    in_flight: Box<[Option<InFlight>]>,
    /// Completions that were not returned to the stack yet.
    completed: Completed,
    /// Whether the kernel completes partial checksums.
    checksum_offload: bool,
}

/// A frame in flight.
struct InFlight {
    bytes: usize,
    owner: Option<(Arc<dyn PacketOwner>, u32)>,
    /// Held until the completion.
    _mark: Option<CloneMark>,
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl InFlight {
    fn complete(self, completed: &mut Completed) {
        completed.add(self.bytes);
        if let Some((owner, truesize)) = self.owner {
            owner.on_complete(truesize);
        }
    }
}

impl TxQueue {
    /// Starts with all chunks free.
    pub(super) fn new(
        ring: Producer<Descriptor>,
        completion: Consumer<u64>,
        frames: Frames,
        free: Vec<Frame>,
        checksum_offload: bool,
    ) -> Self {
        let in_flight = free.iter().map(|_| None).collect();
        let completed = Completed::NONE;
        Self { ring, completion, frames, free, in_flight, completed, checksum_offload }
    }

    /// Returns whether there is a chunk for one more packet.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the number of packets that the kernel has not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    /// Copies a packet into a chunk. The kernel sees it after [`TxQueue::publish`].
    ///
    /// # Errors
    /// If the packet can never be sent. The queue is unchanged, but the packet's checksum may be
    /// complete.
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn push(&mut self, packet: &mut Packet) -> Result<(), DropReason> {
        if packet.meta().gso.segs > 1 {
            // Only a stack that ignores the capabilities of the device gets here.
            return Err(DropReason::PacketTooBig);
        }
        let request = self.checksum_request(packet)?;
        let mut frame = self.free.pop().expect("the caller checked for room");
        let chunk = self.frames.bytes_mut(&mut frame);
        let Some(room) =
            chunk.get_mut(TX_METADATA_LEN as usize..).filter(|room| packet.len() <= room.len())
        else {
            self.free.push(frame);
            return Err(DropReason::PacketTooBig);
        };
        let len = packet.copy_to(0, room);
        if let Some(request) = request {
            chunk[..request.len()].copy_from_slice(&request);
        }
        let index = frame.index_in(&self.frames);
        let addr = self.frames.lend(frame) + u64::from(TX_METADATA_LEN);
        let descriptor = Descriptor {
            addr,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            options: if request.is_some() { XDP_TX_METADATA } else { 0 },
        };
        self.in_flight[index] = Some(InFlight {
            bytes: len,
            owner: packet.take_owner(),
            _mark: packet.take_clone_mark(),
        });
        // There are as many entries as chunks, so there is always room.
        let pushed = self.ring.push(descriptor);
        debug_assert!(pushed.is_ok());
        Ok(())
    }

    /// Publishes the pushed frames to the kernel.
    pub(super) fn publish(&self) {
        self.ring.publish();
    }

    /// Returns the number of frames that the kernel has not taken yet.
    pub(super) fn waiting(&self) -> u32 {
        self.ring.waiting()
    }

    /// Returns whether the kernel sends only after a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }

    /// Returns whether there are completions that [`TxQueue::take_completed`] has not returned.
    pub(super) fn has_completed(&self) -> bool {
        self.completed != Completed::NONE || self.completion.ready() > 0
    }

    /// Takes the chunks of completed frames back, and notifies the owners of the packets.
    pub(super) fn complete(&mut self) {
        while let Some(address) = self.completion.pop() {
            let Some(frame) = self.frames.take_back(address) else { continue };
            if let Some(sent) = self.in_flight[frame.index_in(&self.frames)].take() {
                sent.complete(&mut self.completed);
            }
            self.free.push(frame);
        }
        self.completion.release();
    }

    /// Completes all frames in flight, because the kernel will not complete them any more. Their
    /// chunks stay lent.
    pub(super) fn abandon(&mut self) {
        for sent in self.in_flight.iter_mut().filter_map(Option::take) {
            sent.complete(&mut self.completed);
        }
    }

    /// Returns the completions since the last call.
    pub(super) const fn take_completed(&mut self) -> Completed {
        core::mem::replace(&mut self.completed, Completed::NONE)
    }

    /// Returns the metadata that requests a partial checksum from the kernel. Completes the
    /// checksum in software if the kernel cannot.
    fn checksum_request(&self, packet: &mut Packet) -> Result<Option<[u8; 12]>, DropReason> {
        let TxChecksum::Partial { start, offset } = packet.meta().tx_checksum else {
            return Ok(None);
        };
        if !self.checksum_offload {
            return complete_tx_checksum(packet, LINK_HEADER_LEN).map(|()| None);
        }
        let start = start.checked_add(LINK_HEADER_LEN).ok_or(DropReason::VnetHeader)?;
        if usize::from(start) + usize::from(offset) + 2 > packet.len() {
            return Err(DropReason::VnetHeader);
        }
        Ok(Some(checksum_request(start, offset)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use pkt::{Domain, DomainConfig, Pool};

    use super::super::ring::tests::pair;
    use super::super::umem::Umem;
    use super::*;

    /// A packet owner that sums up completed bytes.
    #[derive(Default)]
    struct Owner(AtomicU32);

    impl PacketOwner for Owner {
        fn on_complete(&self, truesize: u32) {
            self.0.fetch_add(truesize, Ordering::Relaxed);
        }
    }

    /// Returns a queue of four frames, and the kernel's ends of its rings.
    fn queue(checksum_offload: bool) -> (TxQueue, Consumer<Descriptor>, Producer<u64>) {
        let umem = Umem::new(8, 2048).expect("memory");
        let [_, (frames, free)] = Frames::halves(umem, 4);
        let (ring, kernel_tx, _) = pair(4, 0);
        let (kernel_completion, completion, _) = pair(4, 0);
        (
            TxQueue::new(ring, completion, frames, free, checksum_offload),
            kernel_tx,
            kernel_completion,
        )
    }

    fn packet(pool: &mut Pool, len: usize) -> Packet {
        pool.alloc_from(&vec![7; len]).expect("memory")
    }

    #[test]
    fn a_packet_is_charged_to_its_owner_until_the_kernel_completes_it() {
        let (mut queue, mut tx, mut completion) = queue(false);
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        let owner = Arc::new(Owner::default());
        let mut charged = 0;
        for round in 0..5u32 {
            let mut sent = packet(&mut pool, 1514);
            charged += sent.truesize();
            sent.set_owner(Arc::clone(&owner) as Arc<dyn PacketOwner>);
            queue.push(&mut sent).expect("it fits");
            pool.free(sent);
            queue.publish();
            let descriptor = tx.pop().expect("published");
            tx.release();
            assert_eq!((descriptor.len, descriptor.options), (1514, 0));
            assert!(!queue.has_completed());
            queue.complete();
            assert_eq!((queue.take_completed(), queue.outstanding()), (Completed::NONE, 1));
            completion.push(descriptor.addr).expect("room");
            completion.publish();
            assert!(queue.has_completed());
            queue.complete();
            let completed = queue.take_completed();
            assert_eq!((completed.packets, completed.bytes), (1, 1514), "round {round}");
            assert_eq!((owner.0.load(Ordering::Relaxed), queue.outstanding()), (charged, 0));
        }
    }

    #[test]
    fn chunks_run_out_and_are_taken_back() {
        let (mut queue, mut tx, mut completion) = queue(false);
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        for _ in 0..4 {
            assert!(queue.has_room());
            let mut sent = packet(&mut pool, 60);
            queue.push(&mut sent).expect("it fits");
            pool.free(sent);
        }
        assert!(!queue.has_room());
        queue.publish();
        assert_eq!(queue.waiting(), 4);
        let addr = tx.pop().expect("four").addr;
        tx.release();
        // The same address twice, and one that was never sent.
        for address in [addr, addr, 4 * 2048 + (1 << 20)] {
            completion.push(address).expect("room");
        }
        completion.publish();
        queue.complete();
        assert_eq!((queue.take_completed().packets, queue.outstanding()), (1, 3));
        queue.abandon();
        assert_eq!(queue.take_completed().packets, 3);
    }

    #[test]
    fn a_packet_that_is_too_long_is_refused_and_uses_no_chunk() {
        let (mut queue, ..) = queue(false);
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        let mut long = packet(&mut pool, 2048 - TX_METADATA_LEN as usize + 1);
        assert_eq!(queue.push(&mut long), Err(DropReason::PacketTooBig));
        pool.free(long);
        let mut fits = packet(&mut pool, 2048 - TX_METADATA_LEN as usize);
        assert_eq!((queue.push(&mut fits), queue.outstanding()), (Ok(()), 1));
        pool.free(fits);
    }

    #[test]
    fn a_partial_checksum_is_completed_here_or_by_the_kernel() {
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        for offload in [false, true] {
            let (mut queue, mut tx, _) = queue(offload);
            let mut open = packet(&mut pool, 100);
            open.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
            queue.push(&mut open).expect("it fits");
            queue.publish();
            let descriptor = tx.pop().expect("published");
            assert_eq!(descriptor.options, if offload { XDP_TX_METADATA } else { 0 });
            let done = open.meta().tx_checksum == TxChecksum::Done;
            assert_eq!(done, !offload);
            pool.free(open);
            let mut beyond = packet(&mut pool, 40);
            beyond.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
            assert_eq!(queue.push(&mut beyond), Err(DropReason::VnetHeader));
            pool.free(beyond);
        }
    }
}
