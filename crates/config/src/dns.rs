//! DNS stub resolver (RFC 1034 §5.3.1, RFC 1035, RFC 5452): asks the configured servers over the
//! sockets of a stack.
//!
//! `message` makes queries and reads answers by crate `hickory-proto`. [`Resolver`] decides which
//! servers to ask, how long to wait and which answers count.
//!
//! Not here: a cache, DNSSEC, mDNS. The servers are recursive and validate.

use std::net::{IpAddr, SocketAddr};

mod message;
pub(crate) mod network;
mod resolver;

pub use self::resolver::{Config, LookupError, Resolver};

/// UDP and TCP port of name servers.
pub const PORT: u16 = 53;

/// Parses a name server: an IP address, or an address with a port, such as `10.0.0.1:5353` or
/// `[fd00::1]:5353`.
///
/// # Errors
/// One line that names the expected forms.
pub fn parse_server(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
    let server: SocketAddr = address
        .or_else(|_| text.parse())
        .map_err(|_| "expected an IP address, or an address with a port".to_owned())?;
    match server.ip().is_unspecified() || server.ip().is_multicast() || server.port() == 0 {
        true => Err("no server has this address".to_owned()),
        false => Ok(server),
    }
}
