//! TCP Small Queues: the protocol between a sender that stops at its limit and the completion that
//! wakes it.
//!
//! Above: `stack::socket`, whose packets in qdiscs and devices are counted here. Linux:
//! `sk_wmem_alloc` and `sk_tsq_flags`, `tcp_wfree`, `tcp_tsq_handler`.
//!
//! ```text
//!   sender                             completion
//!   charge … charge                    bytes -= truesize - 1
//!   over the limit?  THROTTLED = 1     fence
//!   fence                              THROTTLED and not QUEUED?  QUEUED = 1, THROTTLED = 0:
//!   still over it?   stop : go on          the socket goes on its core's list, with the 1
//!                                      else bytes -= 1
//!   handler: QUEUED = 0, fence, send, bytes -= 1
//! ```
//!
//! Either the sender sees the completed bytes, or the completion sees THROTTLED. QUEUED is the
//! ownership of the list entry, so a socket is on one list at most. It is cleared before the
//! handler sends, so that a completion of a packet that the handler sends can queue the socket
//! again.
//!
//! [`TsqProtocol::Seed`] is the protocol of the first version of TCP Small Queues: it checks the
//! flags before it subtracts, does not check the bytes again after it has set THROTTLED, and clears
//! QUEUED last. Each of the three loses wake-ups, as its models show.
//!
//! Not here: the limit, and the list (`stack`).

use crate::padded::Padded;
use crate::shim::{AtomicU32, Ordering, fence};

#[cfg(test)]
mod tests;

/// The sender has stopped because of the limit.
const THROTTLED: u32 = 1 << 0;
/// The socket is on a list and its handler will run.
const QUEUED: u32 = 1 << 1;

/// Count that belongs to the socket itself.
const BIAS: u32 = 1;

/// Order of the protocol's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TsqProtocol {
    /// As in Linux 3.6, with its three lost wake-ups. For demonstrations.
    Seed,
    /// As in Linux since 4.11.
    #[default]
    Robust,
}

/// Bytes of a socket's packets below it, and whether the socket waits for them to decrease.
#[derive(Debug)]
pub struct SmallQueue {
    /// Words that both the sender and the completing cores write, on lines of their own.
    words: Padded<Words>,
}

#[derive(Debug)]
struct Words {
    /// Truesize of the packets below the socket, plus the bias, plus one for a list entry.
    bytes: AtomicU32,
    flags: AtomicU32,
}

impl SmallQueue {
    /// Makes a queue without packets.
    #[must_use]
    pub fn new() -> Self {
        let words = Words { bytes: AtomicU32::new(BIAS), flags: AtomicU32::new(0) };
        Self { words: Padded::new(words) }
    }

    /// Charges a packet that is sent down.
    pub fn charge(&self, truesize: u32) {
        // Relaxed: only the packet's own completion subtracts the bytes again, and that is ordered
        // by the packet's transfer.
        self.words.bytes.fetch_add(truesize, Ordering::Relaxed);
    }

    /// Returns the bytes of packet memory below the socket (`sk_wmem_alloc_get`).
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.words.bytes.load(Ordering::Relaxed) - BIAS
    }

    /// Announces that the sender, which is over its limit, stops, and checks the bytes again.
    /// Returns true if it must stop, and a completion will queue it. Returns false if enough has
    /// completed meanwhile.
    #[must_use = "false obliges the caller to go on: no completion may be left to wake it"]
    pub fn throttle(&self, protocol: TsqProtocol, over: impl FnOnce(u32) -> bool) -> bool {
        self.words.flags.fetch_or(THROTTLED, Ordering::SeqCst);
        if protocol == TsqProtocol::Seed {
            return true;
        }
        // Pairs with the fence in `complete`.
        fence(Ordering::SeqCst);
        over(self.bytes())
    }

    /// Returns whether the sender has announced that it stops and no completion has taken that up
    /// yet.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        self.words.flags.load(Ordering::Relaxed) & THROTTLED != 0
    }

    /// Returns whether a list entry of the socket exists.
    #[must_use]
    pub fn is_queued(&self) -> bool {
        self.words.flags.load(Ordering::Relaxed) & QUEUED != 0
    }

    /// Completes a packet that was charged `truesize`. Returns true if the caller must put the
    /// socket on a list; the list entry keeps one byte charged until its handler has ended.
    #[must_use = "true obliges the caller to queue the socket"]
    pub fn complete(&self, protocol: TsqProtocol, truesize: u32) -> bool {
        let queue = match protocol {
            TsqProtocol::Robust => {
                self.words.bytes.fetch_sub(truesize - 1, Ordering::AcqRel);
                // Pairs with the fence in `throttle`.
                fence(Ordering::SeqCst);
                self.take_throttled()
            }
            TsqProtocol::Seed => {
                let queue = self.take_throttled_in_two_steps();
                self.words.bytes.fetch_sub(truesize - 1, Ordering::AcqRel);
                queue
            }
        };
        if !queue {
            self.words.bytes.fetch_sub(1, Ordering::AcqRel);
        }
        queue
    }

    /// Begins the handler of a list entry.
    pub fn begin(&self, protocol: TsqProtocol) {
        if protocol == TsqProtocol::Robust {
            self.words.flags.fetch_and(!QUEUED, Ordering::SeqCst);
            // Comes before the handler's check of `bytes`: a later completion queues the socket
            // again.
            fence(Ordering::SeqCst);
        }
    }

    /// Ends the handler, which has finished or left its work to the holder of the socket.
    pub fn end(&self, protocol: TsqProtocol) {
        if protocol == TsqProtocol::Seed {
            self.words.flags.fetch_and(!QUEUED, Ordering::SeqCst);
        }
        self.words.bytes.fetch_sub(1, Ordering::AcqRel);
    }

    /// Exchanges THROTTLED for QUEUED, if THROTTLED is set and QUEUED is not.
    fn take_throttled(&self) -> bool {
        self.words
            .flags
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |flags| {
                (flags & (THROTTLED | QUEUED) == THROTTLED).then_some(flags ^ (THROTTLED | QUEUED))
            })
            .is_ok()
    }

    /// `test_and_clear_bit(THROTTLED) && !test_and_set_bit(QUEUED)`: if the socket is queued
    /// already, THROTTLED is lost.
    fn take_throttled_in_two_steps(&self) -> bool {
        self.words.flags.fetch_and(!THROTTLED, Ordering::SeqCst) & THROTTLED != 0
            && self.words.flags.fetch_or(QUEUED, Ordering::SeqCst) & QUEUED == 0
    }
}

impl Default for SmallQueue {
    fn default() -> Self {
        Self::new()
    }
}
