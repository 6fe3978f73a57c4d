//! Configuration of the interception by one device.

/// Interception of the flows that a device brings: their bounds.
///
/// ```
/// # use stack::socket::flows::Intercept;
/// let intercept = Intercept::all().max_pending(256).max_pending_per_source(32);
/// # assert_eq!(intercept, Intercept::all().max_pending_per_source(32).max_pending(256));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an interception does nothing until a device has it"]
pub struct Intercept {
    pub(super) max_pending: u32,
    pub(super) max_pending_per_source: u32,
}

impl Intercept {
    /// Intercepts every flow to every address and port, TCP and other protocols, IPv4 and IPv6.
    pub const fn all() -> Self {
        Self { max_pending: 1024, max_pending_per_source: 256 }
    }

    /// Sets the largest number of TCP connections that are not established yet: those that the
    /// application has not answered, and those that wait for the third segment of the handshake. A
    /// further SYN is dropped (`FLOW_PENDING_FULL`), and the client repeats it. Default: 1,024.
    ///
    /// There are no SYN cookies, because a cookie answers before the application has decided.
    pub const fn max_pending(mut self, requests: u32) -> Self {
        self.max_pending = requests;
        self
    }

    /// Sets the part of these that one source address may have; an IPv6 /64 counts as one address,
    /// and 0 is no limit. A further SYN is dropped (`FLOW_SOURCE_LIMIT`). Default: 256.
    pub const fn max_pending_per_source(mut self, requests: u32) -> Self {
        self.max_pending_per_source = requests;
        self
    }
}
