//! Memory held by a socket and its limits: `SO_MEMINFO`, and the `skmem` of `ss -m`.
//!
//! Below: the counters of `Tcb` (queues), `wmem` (packets in qdiscs and devices), `settle` (the
//! host's account), `sync::SocketLock` (the backlog). Linux: `sk_get_meminfo`, `SK_MEMINFO_*`.
//!
//! Four counters are easily confused. They differ in writer and purpose:
//!
//! | counter | counts | writer | purpose |
//! |---|---|---|---|
//! | `wmem_alloc` | packets in qdiscs and devices | the sender adds, any completing core subtracts: an atomic | TCP Small Queues |
//! | `wmem_queued` | the send queue, sent or not | the owner of the socket | writability, compared with `sndbuf` |
//! | `rmem_alloc` | unread data, in order or not | the owner | window and drops, compared with `rcvbuf` |
//! | `forward_alloc` | charge to the host's account beyond the two queues | the owner | none: the rest of a page |
//!
//! Packets in a prequeue are counted in none of them.

use std::{fmt, sync::atomic::Ordering};

use super::OptionValue;
use crate::{
    socket::{Connection, connection::StreamState},
    sysctl::Sysctls,
};

/// Size of `SO_MEMINFO` in bytes: nine 32-bit numbers (`SK_MEMINFO_VARS`).
pub(super) const MEMORY_INFO_BYTES: usize = 36;

/// Memory of one socket, in bytes of packet memory (`truesize`) unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// `r`: unread data, in order or not (`SK_MEMINFO_RMEM_ALLOC`).
    pub rmem_alloc: u32,
    /// `rb`: limit of `rmem_alloc` (`SK_MEMINFO_RCVBUF`).
    pub rcvbuf: u32,
    /// `t`: packets of the socket in devices and qdiscs (`SK_MEMINFO_WMEM_ALLOC`). Always 0 over
    /// devices that have finished with a packet when `transmit` returns.
    pub wmem_alloc: u32,
    /// `tb`: limit of the send queue, or of `wmem_alloc` for a datagram socket
    /// (`SK_MEMINFO_SNDBUF`).
    pub sndbuf: u32,
    /// `f`: charged to the host's account and unused (`SK_MEMINFO_FWD_ALLOC`). For a connection
    /// less than a page.
    pub forward_alloc: u32,
    /// `w`: the send queue (`SK_MEMINFO_WMEM_QUEUED`). Always 0 for a datagram socket, which has
    /// none.
    pub wmem_queued: u32,
    /// `bl`: packets that wait for the owner of the socket (`SK_MEMINFO_BACKLOG`).
    pub backlog: u32,
    /// `d`: segments or datagrams that the socket dropped, for lack of space or other reasons
    /// (`SK_MEMINFO_DROPS`).
    pub drops: u32,
}

impl MemoryInfo {
    pub(in crate::socket) fn of(socket: &Connection, state: &StreamState) -> Self {
        let tcb = &state.tcb;
        Self {
            rmem_alloc: tcb.rmem_alloc(),
            rcvbuf: tcb.rcvbuf(),
            wmem_alloc: socket.wmem_alloc(),
            sndbuf: tcb.sndbuf(),
            forward_alloc: state.forward_alloc(),
            wmem_queued: tcb.wmem_queued(),
            backlog: socket.lock.backlog_bytes(),
            drops: state.drops.wrapping_add(socket.backlog_drops.load(Ordering::Relaxed)),
        }
    }

    /// Returns the description of a socket without a connection, which holds no memory.
    pub(super) fn of_none(options: &tcp::SocketOptions, sysctls: &Sysctls) -> Self {
        Self {
            rcvbuf: options.rcvbuf.unwrap_or(sysctls.tcp.tcp_rmem.default),
            sndbuf: options.sndbuf.unwrap_or(sysctls.tcp.tcp_wmem.default),
            ..Self::default()
        }
    }

    /// Returns the pages of 4 KB charged to the host's account for the socket: its queues and
    /// `forward_alloc`.
    #[must_use]
    pub const fn account_pages(&self) -> u64 {
        // Each number may be near its maximum, so their sum needs more bits.
        let bytes = self.rmem_alloc as u64 + self.wmem_queued as u64 + self.forward_alloc as u64;
        bytes / crate::base::tcp_memory::PAGE_BYTES as u64
    }

    /// Returns the numbers in the order of `SK_MEMINFO_*`. `SK_MEMINFO_OPTMEM` is 0, because
    /// options use no separate memory here.
    const fn numbers(&self) -> [u32; MEMORY_INFO_BYTES / 4] {
        [
            self.rmem_alloc,
            self.rcvbuf,
            self.wmem_alloc,
            self.sndbuf,
            self.forward_alloc,
            self.wmem_queued,
            0,
            self.backlog,
            self.drops,
        ]
    }
}

/// Prints the numbers as `ss -m` does.
impl fmt::Display for MemoryInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [r, rb, t, tb, fwd, w, o, bl, d] = self.numbers();
        write!(f, "skmem:(r{r},rb{rb},t{t},tb{tb},f{fwd},w{w},o{o},bl{bl},d{d})")
    }
}

impl From<MemoryInfo> for OptionValue {
    fn from(info: MemoryInfo) -> Self {
        Self::Bytes(info.numbers().iter().flat_map(|number| number.to_ne_bytes()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_gigabytes_are_counted_in_full() {
        let info = MemoryInfo {
            rmem_alloc: u32::MAX,
            wmem_queued: u32::MAX,
            forward_alloc: 2,
            ..MemoryInfo::default()
        };
        assert_eq!(info.account_pages(), 2 << 20);
    }
}
