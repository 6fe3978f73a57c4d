//! Common interface of the two transmit paths.
//!
//! Above: `device`. Below: `transmit` (a ring), `sendmsg` (calls).
//!
//! Not here: the decision when to send.

use std::os::fd::BorrowedFd;

use pkt::{DropReason, Instant, Packet, PacketList};
use rustix::io::Errno;

use super::sendmsg::TxCalls;
use super::transmit::TxRing;

/// A packet that can never be sent.
pub(super) struct Refused {
    pub(super) reason: DropReason,
    pub(super) packet: Packet,
}

/// Packets of a queue that are in flight, and packets that wait because the kernel has no room for
/// them.
pub(super) trait Sender {
    /// Takes packets from the front of `list` while there is room. Passes packets that cannot be
    /// sent at all to `bad`. Returns true if there is something to send, from this list or from
    /// before.
    fn fill(&self, list: &mut PacketList, bad: &mut impl FnMut(DropReason, Packet)) -> bool;

    /// Sends waiting packets. Stops at a frame that can never be sent: that frame is stored in
    /// `refused`, and more may wait.
    ///
    /// # Errors
    /// If the interface is down or gone.
    fn send_until_refused(&self, now: Instant, refused: &mut Option<Refused>) -> Result<(), Errno>;

    /// Takes back the packets that the kernel has not accepted.
    fn withdraw(&self, now: Instant) -> PacketList;

    /// Returns the packets that the kernel has completed, oldest first.
    fn reap(&self) -> PacketList;

    /// Returns the time of the next attempt to send if no completion comes before.
    fn retry_at(&self) -> Option<Instant>;

    /// Sends waiting packets. Afterwards [`retry_at`](Self::retry_at) returns the time of the next
    /// attempt.
    ///
    /// # Errors
    /// If the interface is down or gone. All waiting packets are passed to `bad`.
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
            // `bad` is called outside of the lock.
            match refused.take() {
                Some(Refused { reason, packet }) => bad(reason, packet),
                None => return Ok(()),
            }
        }
    }
}

/// Transmit path of a queue.
#[derive(Debug)]
pub(super) enum Tx {
    Ring(TxRing),
    Calls(TxCalls),
}

impl Tx {
    /// Returns the descriptor that becomes writable when packets were completed.
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

    fn send_until_refused(&self, now: Instant, refused: &mut Option<Refused>) -> Result<(), Errno> {
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
