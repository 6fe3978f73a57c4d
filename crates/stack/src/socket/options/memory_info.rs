//! What a socket holds and may hold: `SO_MEMINFO`, and the `skmem` of `ss -m`.
//!
//! Below: the counters of `Tcb` (queues), `wmem` (what is below TCP), `settle` (the host's account), `sync::SocketLock` (the
//! backlog). Linux: `sk_get_meminfo`, `SK_MEMINFO_*`.
//!
//! Four counters that are easily taken for one another, each with a writer and a purpose of its own:
//!
//! | counter | counts | who writes | decides |
//! |---|---|---|---|
//! | `wmem_alloc` | packets in qdiscs and devices | the sender adds, any core that completes subtracts: an atomic | TCP Small Queues |
//! | `wmem_queued` | the send queue, sent or not | the owner of the socket | writability, against `sndbuf` |
//! | `rmem_alloc` | what waits to be read, in order or not | the owner | the window and what is dropped, against `rcvbuf` |
//! | `forward_alloc` | what the host's account was charged beyond the two queues | the owner | nothing: the rest of a page |
//!
//! Packets in a prequeue are charged to none of them.

use std::{fmt, sync::atomic::Ordering};

use super::OptionValue;
use crate::{
    cx::Cx,
    host::Host,
    socket::{TcpSocket, connection::StreamState},
    sysctl::Sysctls,
};

/// Bytes of `SO_MEMINFO`: nine 32-bit numbers (`SK_MEMINFO_VARS`).
pub(super) const MEMORY_INFO_BYTES: usize = 36;

/// See the module head. Everything in bytes of packet memory (`truesize`) unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// `r`: what waits to be read, in order or not (`SK_MEMINFO_RMEM_ALLOC`).
    pub rmem_alloc: u32,
    /// `rb`: its limit (`SK_MEMINFO_RCVBUF`).
    pub rcvbuf: u32,
    /// `t`: what devices and qdiscs hold of the socket's (`SK_MEMINFO_WMEM_ALLOC`). 0 over devices that are done with a packet
    /// once they have it.
    pub wmem_alloc: u32,
    /// `tb`: the limit of the send queue (`SK_MEMINFO_SNDBUF`).
    pub sndbuf: u32,
    /// `f`: charged to the host's account and not used, less than a page (`SK_MEMINFO_FWD_ALLOC`).
    pub forward_alloc: u32,
    /// `w`: the send queue (`SK_MEMINFO_WMEM_QUEUED`).
    pub wmem_queued: u32,
    /// `bl`: packets that wait for the owner of the socket (`SK_MEMINFO_BACKLOG`).
    pub backlog: u32,
    /// `d`: segments that the connection did not take, be it for want of room (`SK_MEMINFO_DROPS`).
    pub drops: u32,
}

impl MemoryInfo {
    pub(in crate::socket) fn of(socket: &TcpSocket, state: &StreamState) -> Self {
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

    /// Of a socket without connection: it holds nothing.
    pub(super) fn of_none(options: &tcp::SocketOptions, sysctls: &Sysctls) -> Self {
        Self {
            rcvbuf: options.rcvbuf.unwrap_or(sysctls.tcp.tcp_rmem.default),
            sndbuf: options.sndbuf.unwrap_or(sysctls.tcp.tcp_wmem.default),
            ..Self::default()
        }
    }

    /// Pages of 4 KB that the host's account was charged for the socket: its queues and `forward_alloc`.
    #[must_use]
    pub const fn account_pages(&self) -> u64 {
        // Each may be near the largest: their sum needs more bits.
        let bytes = self.rmem_alloc as u64 + self.wmem_queued as u64 + self.forward_alloc as u64;
        bytes / crate::base::tcp_memory::PAGE_BYTES as u64
    }

    /// In the order of `SK_MEMINFO_*`. Options that a socket keeps for itself have no memory of their own here
    /// (`SK_MEMINFO_OPTMEM`).
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

/// As `ss -m` prints it.
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

impl TcpSocket {
    /// What the socket holds and may hold (`SO_MEMINFO`).
    pub fn memory_info(&self, host: &Host, cx: &mut Cx) -> MemoryInfo {
        self.call(host, cx, |socket, state, _, _| MemoryInfo::of(socket, state))
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
