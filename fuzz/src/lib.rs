//! Common parts of the fuzz targets: a reader of their input, and packet memory that is kept
//! between runs.
//!
//! Taking memory from the system and giving it back costs more than most runs do. The memory of a
//! thread is therefore made once, and each run must free all its packets.
//!
//! Not here: the properties that a target checks (`fuzz_targets`).

use std::cell::RefCell;

use pkt::{Domain, DomainConfig, Packet, Pool};

/// The input of a run, read from the front. After its end it reads as zeros.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Returns the next byte, if there is one.
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Returns the next byte.
    pub fn next_u8(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    /// Returns the next bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next_u8())
    }

    /// Returns the next two bytes.
    pub fn next_u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Returns the next four bytes.
    pub fn next_u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Returns the next `count` bytes, or all that are left.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Packet memory of a thread.
struct Memory {
    domain: Domain,
    pool: Pool,
}

impl Default for Memory {
    fn default() -> Self {
        let domain = Domain::new(DomainConfig::default());
        let pool = domain.pool();
        Self { domain, pool }
    }
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// Calls `run` with the packet memory of the thread.
///
/// # Panics
/// If a packet was not freed.
pub fn with_pool(run: impl FnOnce(&mut Pool)) {
    MEMORY.with_borrow_mut(|Memory { domain, pool }| {
        run(pool);
        assert_eq!(domain.balance(), 0, "packets leaked");
    });
}

/// Returns whether a packet has exactly these bytes.
pub fn holds(packet: &Packet, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let same = packet.slices().all(|slice| match rest.split_at_checked(slice.len()) {
        Some((first, behind)) => {
            rest = behind;
            first == slice
        }
        None => false,
    });
    same && rest.is_empty()
}
