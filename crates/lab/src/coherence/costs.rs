//! Costs of an access to a cache line.

use serde::Serialize;

/// Costs of an access, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// Access to a copy that the CPU has. Typical: 1 to 5.
    pub local_ns: f64,
    /// Transfer of an unmodified line. Typical: 40 to 60 within a socket.
    pub clean_ns: f64,
    /// Invalidation of other copies by a CPU that has a copy. Typical: 40 to 60 within a socket.
    pub upgrade_ns: f64,
    /// Transfer of a line that another CPU has modified, for a write. Typical: 60 to 100 within a
    /// socket.
    pub dirty_ns: f64,
    /// The same for a read, which leaves the other CPU a copy.
    pub dirty_read_ns: f64,
    /// A locked instruction on a line that the CPU owns. Typical: 4 to 8.
    pub rmw_ns: f64,
    /// Repetitions of a failed compare-and-swap per other CPU that has one under way on the line.
    /// The number of attempts of N CPUs so grows with N².
    pub retries_per_cpu: f64,
    /// Factor of a transfer between sockets. Typical: 2.
    pub socket_factor: f64,
    /// CPUs of a socket; CPU numbers fill one socket after the other.
    pub cpus_per_socket: u8,
}

impl Costs {
    /// Costs from published figures: the packet rate of 6 million with two counts per packet on one
    /// line gives 83 ns for the transfer of a modified line and its locked instruction; eight
    /// repetitions of a compare-and-swap with 112 CPUs give `retries_per_cpu`. The others are
    /// typical. See docs/model.md.
    pub const PUBLISHED: Self = Self {
        local_ns: 1.0,
        clean_ns: 50.0,
        upgrade_ns: 50.0,
        dirty_ns: 77.0,
        dirty_read_ns: 77.0,
        rmw_ns: 6.0,
        retries_per_cpu: 0.08,
        socket_factor: 1.0,
        cpus_per_socket: 128,
    };

    /// The same machine with `cpus` in each socket, and a factor of 2 between sockets.
    #[must_use]
    pub const fn sockets_of(self, cpus: u8) -> Self {
        Self { socket_factor: 2.0, cpus_per_socket: cpus, ..self }
    }

    /// The CPUs of the socket of `cpu`.
    pub(super) const fn socket_mask(&self, cpu: u8) -> u128 {
        let first = (cpu / self.cpus_per_socket) as u32 * self.cpus_per_socket as u32;
        let all = match self.cpus_per_socket {
            count @ 0..128 => (1 << count) - 1,
            _ => u128::MAX,
        };
        all << first
    }
}
