//! The addresses and ports that identify a connection.
//!
//! RFC 9293 §3.3.1 (local and remote socket); Linux: inet_sock's addresses and ports.
//!
//! Not here: the flow hash used for demultiplexing and core selection (crate stack).

use core::fmt;
use core::net::{IpAddr, SocketAddr};

/// A connection's local and remote address and port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FourTuple {
    /// Address and port of this host.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
}

impl FourTuple {
    /// Bytes of the longest [`FourTuple::write_key`]: two IPv6 addresses and two ports.
    pub const KEY_BYTES_MAX: usize = 36;

    /// Returns the tuple of two ends.
    #[must_use]
    pub const fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { local, remote }
    }

    /// Returns the same connection as seen by the peer.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { local: self.remote, remote: self.local }
    }

    /// Whether the connection uses IPv4. Both addresses are of the same family.
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        self.local.is_ipv4()
    }

    /// Writes the tuple as the input of a keyed hash: addresses, then ports, in network order. Flow
    /// labels and scope ids are left out, so equal keys mean equal addresses and ports in the
    /// headers of packets.
    pub fn write_key(self, key: &mut [u8; Self::KEY_BYTES_MAX]) -> &[u8] {
        let local_len = write_address(&mut key[..16], self.local.ip());
        let remote_len = write_address(&mut key[local_len..local_len + 16], self.remote.ip());
        let ports = local_len + remote_len;
        key[ports..ports + 2].copy_from_slice(&self.local.port().to_be_bytes());
        key[ports + 2..ports + 4].copy_from_slice(&self.remote.port().to_be_bytes());
        &key[..ports + 4]
    }
}

/// Writes an address at the front of `bytes` (16 or more) and returns its length.
pub(crate) fn write_address(bytes: &mut [u8], address: IpAddr) -> usize {
    match address {
        IpAddr::V4(v4) => {
            bytes[..4].copy_from_slice(&v4.octets());
            4
        }
        IpAddr::V6(v6) => {
            bytes[..16].copy_from_slice(&v6.octets());
            16
        }
    }
}

impl fmt::Display for FourTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.local, self.remote)
    }
}

impl fmt::Debug for FourTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::FourTuple;

    fn tuple(local: &str, remote: &str) -> FourTuple {
        FourTuple::new(local.parse().unwrap(), remote.parse().unwrap())
    }

    #[test]
    fn the_key_has_addresses_and_ports_in_network_order() {
        let mut key = [0; FourTuple::KEY_BYTES_MAX];
        let v4 = tuple("10.0.0.1:258", "10.0.0.2:80");
        assert_eq!(v4.write_key(&mut key), [10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 0, 80]);
        let v6 = tuple("[::1]:1", "[::2]:2");
        let bytes = v6.write_key(&mut key);
        assert_eq!(bytes.len(), FourTuple::KEY_BYTES_MAX);
        assert_eq!((bytes[15], bytes[31]), (1, 2));
        assert_eq!(bytes[32..], [0, 1, 0, 2]);
    }

    #[test]
    fn a_tuple_reversed_twice_is_unchanged() {
        let tuple = tuple("10.0.0.1:1", "10.0.0.2:2");
        assert_ne!(tuple.reversed(), tuple);
        assert_eq!(tuple.reversed().reversed(), tuple);
        assert!(tuple.is_ipv4());
        assert_eq!(tuple.to_string(), "10.0.0.1:1 -> 10.0.0.2:2");
    }
}
