//! The two ways out, as one.
//!
//! Above: `device`. Below: `transmit` (a ring), `sendmsg` (calls).
//!
//! Not here: when to send.

use std::os::fd::BorrowedFd;

use pkt::{DropReason, Instant, Packet, PacketList};
use rustix::io::Errno;

use super::sendmsg::TxCalls;
use super::transmit::TxRing;

/// What is under way on a queue, and what waits because the kernel has no room for it.
pub(super) trait Sender {
    /// Takes packets from the front of `list` while there is room. What cannot be sent at all is given to `bad`. True if there is
    /// something to send, of this list or from before.
    fn fill(&self, list: &mut PacketList, bad: &mut impl FnMut(DropReason, Packet)) -> bool;

    /// Sends what waits, up to a frame that will never go: that one is taken out, and there is more to send.
    ///
    /// # Errors
    /// The interface is down or gone.
    fn send_until_refused(
        &self,
        now: Instant,
        refused: &mut Option<(DropReason, Packet)>,
    ) -> Result<(), Errno>;

    /// Takes back what the kernel has not taken.
    fn withdraw(&self, now: Instant) -> PacketList;

    /// Packets that the kernel is done with, oldest first.
    fn reap(&self) -> PacketList;

    /// When to come again although nothing is completed.
    fn retry_at(&self) -> Option<Instant>;

    /// Sends what waits. [`retry_at`](Self::retry_at) says afterwards when to come again.
    ///
    /// # Errors
    /// The interface is down or gone. What waits is given to `bad`.
    fn send(&self, now: Instant, bad: &mut impl FnMut(DropReason, Packet)) -> Result<(), Errno> {
        let mut refused = None;
        loop {
            if let Err(errno) = self.send_until_refused(now, &mut refused) {
                let mut withdrawn = self.withdraw(now);
                while let Some(packet) = withdrawn.pop_front() {
                    bad(DropReason::DeviceDown, packet);
                }
                return Err(errno);
            }
            // Its owner is told outside of the lock.
            match refused.take() {
                Some((reason, packet)) => bad(reason, packet),
                None => return Ok(()),
            }
        }
    }
}

/// The way out that a queue has.
#[derive(Debug)]
pub(super) enum Tx {
    Ring(TxRing),
    Calls(TxCalls),
}

impl Tx {
    /// What becomes writable when packets were completed.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ring(ring) => ring.socket(),
            Self::Calls(calls) => calls.socket(),
        }
    }
}

impl Sender for Tx {
    fn fill(&self, list: &mut PacketList, bad: &mut impl FnMut(DropReason, Packet)) -> bool {
        match self {
            Self::Ring(ring) => ring.fill(list, bad),
            Self::Calls(calls) => calls.fill(list, bad),
        }
    }

    fn send_until_refused(
        &self,
        now: Instant,
        refused: &mut Option<(DropReason, Packet)>,
    ) -> Result<(), Errno> {
        match self {
            Self::Ring(ring) => ring.send_until_refused(now, refused),
            Self::Calls(calls) => calls.send_until_refused(now, refused),
        }
    }

    fn withdraw(&self, now: Instant) -> PacketList {
        match self {
            Self::Ring(ring) => ring.withdraw(now),
            Self::Calls(calls) => calls.withdraw(now),
        }
    }

    fn reap(&self) -> PacketList {
        match self {
            Self::Ring(ring) => ring.reap(),
            Self::Calls(calls) => calls.reap(),
        }
    }

    fn retry_at(&self) -> Option<Instant> {
        match self {
            Self::Ring(ring) => ring.retry_at(),
            Self::Calls(calls) => calls.retry_at(),
        }
    }
}
