//! Invariants of a host that hold between two turns of a core (a turn is one pass of its softirq
//! work), and the packet memory of its connections.
//!
//! Above: the simulator and tests; the data path does not use it. Below: `Connection::check`,
//! `tcp::Tcb::check_after_output`.
//!
//! Not here: invariants that involve devices or the network (`sim`).

use tcp::FourTuple;

use super::Host;
use crate::{base::tcp_memory::PAGE_BYTES, cx::Cx};

/// Packet memory of the connections in a host's tables, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Receive queues (`sk_rmem_alloc`).
    pub rmem_alloc: u64,
    /// Send queues (`sk_wmem_queued`).
    pub wmem_queued: u64,
    /// Packets in qdiscs and devices (`sk_wmem_alloc`).
    pub wmem_alloc: u64,
    /// Memory that is charged to the account and holds no packet (`sk_forward_alloc`).
    pub forward_alloc: u64,
    /// Number of connections in the tables.
    pub connections: usize,
    /// True if the tables hold every connection that exists. False if a connection has left the
    /// tables and is still referenced.
    pub is_complete: bool,
}

impl Host {
    /// Checks the invariants of every connection, and calls `see` for each one whose handshake has
    /// completed, with those of its sequence numbers that must never decrease. The queues of all
    /// connections and their unused charges must add up to the TCP memory account of the host, in
    /// whole pages.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold.
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
            .expect("pages are charged before they are released");
        let charged = audit.rmem_alloc + audit.wmem_queued + audit.forward_alloc;
        assert_eq!(
            charged % u64::from(PAGE_BYTES),
            0,
            "connections are charged in whole pages: {audit:?}"
        );
        let charged = charged / u64::from(PAGE_BYTES);
        assert!(charged <= total, "the account has {total} pages, too few for {audit:?}");
        assert!(
            charged == total || !audit.is_complete,
            "the account has {total} pages for {audit:?}"
        );
        audit
    }
}
