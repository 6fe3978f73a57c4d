//! What always holds of a host between two turns, and what its connections hold together.
//!
//! Above: the simulator and tests; nothing on the data path asks. Below: `TcpSocket::check`, `tcp::Tcb::check_turn`.
//!
//! Not here: what needs the devices or the network (`sim`).

use tcp::FourTuple;

use super::Host;
use crate::{base::tcp_memory::PAGE_BYTES, cx::Cx};

/// What the connections in a host's tables hold, in bytes of packet memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// What waits to be read (`sk_rmem_alloc`).
    pub rmem_alloc: u64,
    /// The send queues (`sk_wmem_queued`).
    pub wmem_queued: u64,
    /// What qdiscs and devices hold (`sk_wmem_alloc`).
    pub wmem_alloc: u64,
    /// Charged to the account and not used (`sk_forward_alloc`).
    pub forward_alloc: u64,
    /// How many they are.
    pub connections: usize,
    /// There are no others: none has ended and is still somebody's.
    pub is_complete: bool,
}

impl Host {
    /// Walks the invariants of every connection, and shows `see` the numbers of each that may only grow. The host's account of
    /// TCP memory is what the connections were charged, and that is what their queues hold, in whole pages.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self, cx: &mut Cx, mut see: impl FnMut(&FourTuple, tcp::Edges)) -> Audit {
        let streams = self.streams(cx);
        let mut audit = Audit { connections: streams.len(), ..Audit::default() };
        for socket in &streams {
            let (edges, memory) = socket.check_memory(self, cx);
            audit.rmem_alloc += u64::from(memory.rmem_alloc);
            audit.wmem_queued += u64::from(memory.wmem_queued);
            audit.wmem_alloc += u64::from(memory.wmem_alloc);
            audit.forward_alloc += u64::from(memory.forward_alloc);
            if let Some(edges) = edges {
                see(socket.tuple(), edges);
            }
        }
        let alive = self.tcp_memory().sockets();
        audit.is_complete = usize::try_from(alive) == Ok(streams.len());
        let total = u64::try_from(self.tcp_memory_pages())
            .expect("pages are charged before they are given back");
        let charged = audit.rmem_alloc + audit.wmem_queued + audit.forward_alloc;
        assert_eq!(charged % u64::from(PAGE_BYTES), 0, "whole pages: {audit:?}");
        let charged = charged / u64::from(PAGE_BYTES);
        assert!(charged <= total, "{total} pages for {audit:?}");
        assert!(charged == total || !audit.is_complete, "{total} pages for {audit:?}");
        audit
    }
}
