//! Addresses of `connect` and `bind`, tried one after the other as in `std::net`.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
};

/// Returns the result for the first address of `addresses` for which `call` succeeds, otherwise the
/// error of the last address.
pub(crate) fn first_of<T>(
    addresses: impl ToSocketAddrs,
    mut call: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for address in addresses.to_socket_addrs()? {
        match call(address) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no address to try")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| SocketAddr::from(([10, 0, 0, 1], *port))).collect()
    }

    #[test]
    fn the_first_address_that_works_is_used_and_the_last_error_reported() {
        let mut tried = Vec::new();
        let mut call = |address: SocketAddr| {
            tried.push(address.port());
            if address.port() == 2 { Ok(2) } else { Err(io::Error::other(address.to_string())) }
        };
        assert_eq!(first_of(&addresses(&[1, 2, 3])[..], &mut call).unwrap(), 2);
        let error = first_of(&addresses(&[4, 5])[..], &mut call).unwrap_err();
        assert_eq!(error.to_string(), "10.0.0.1:5");
        assert_eq!(tried, [1, 2, 4, 5]);
    }

    #[test]
    fn a_missing_address_or_port_is_invalid_input() {
        let none: &[SocketAddr] = &[];
        let error = first_of(none, |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = first_of("10.0.0.1", |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
