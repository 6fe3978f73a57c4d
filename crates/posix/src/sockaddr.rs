//! The bytes of a `struct sockaddr`: `sockaddr_in`, `sockaddr_in6`, and `AF_UNSPEC`.
//!
//! Above: drivers behind a C boundary, which turn pointers into slices. Linux:
//! `move_addr_to_kernel`, `inet_bind`, `inet6_bind`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use stack::Errno;

use crate::abi::{AF_INET, AF_INET6, AF_UNSPEC};

/// Bytes of a `sockaddr_in`.
const V4_LEN: usize = 16;

/// Bytes of a `sockaddr_in6`.
const V6_LEN: usize = 28;

/// Reads an address. `None` for `AF_UNSPEC`, to which connect(2) disconnects.
///
/// # Errors
/// `EINVAL` for too few bytes, `EAFNOSUPPORT` for another family.
pub fn decode(bytes: &[u8]) -> Result<Option<SocketAddr>, Errno> {
    let family = bytes.first_chunk::<2>().ok_or(Errno::EINVAL)?;
    match i32::from(u16::from_ne_bytes(*family)) {
        AF_INET => {}
        AF_INET6 => return decode_v6(bytes).map(Some),
        AF_UNSPEC => return Ok(None),
        _ => return Err(Errno::EAFNOSUPPORT),
    }
    // Linux wants a whole `sockaddr_in`.
    let whole = bytes.first_chunk::<V4_LEN>().ok_or(Errno::EINVAL)?;
    let [_, _, p0, p1, a, b, c, d, ..] = *whole;
    let ip = Ipv4Addr::new(a, b, c, d);
    Ok(Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be_bytes([p0, p1])))))
}

/// Reads a `sockaddr_in6`: family, port, flow label, address, scope.
fn decode_v6(bytes: &[u8]) -> Result<SocketAddr, Errno> {
    // Linux also takes the 24 bytes of RFC 2133, without a scope (`SIN6_LEN_RFC2133`).
    let fixed: [u8; 24] = *bytes.first_chunk().ok_or(Errno::EINVAL)?;
    let scope = bytes.get(24..).and_then(|rest| rest.first_chunk()).copied();
    let (_, rest) = fixed.split_at(8);
    let ip: [u8; 16] = *rest.first_chunk().ok_or(Errno::EINVAL)?;
    let port = u16::from_be_bytes([fixed[2], fixed[3]]);
    let scope = u32::from_ne_bytes(scope.unwrap_or_default());
    Ok(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)))
}

/// Writes an address to `room`, cut to its length as the kernel does. Returns the length of the
/// whole address.
pub fn encode(address: SocketAddr, room: &mut [u8]) -> usize {
    let mut bytes = [0; V6_LEN];
    let family = match address {
        SocketAddr::V4(_) => AF_INET,
        SocketAddr::V6(_) => AF_INET6,
    };
    bytes[..2].copy_from_slice(&u16::try_from(family).unwrap_or_default().to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let len = match address {
        SocketAddr::V4(v4) => {
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            V4_LEN
        }
        SocketAddr::V6(v6) => {
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..].copy_from_slice(&v6.scope_id().to_ne_bytes());
            V6_LEN
        }
    };
    let fits = room.len().min(len);
    room[..fits].copy_from_slice(&bytes[..fits]);
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_returns_from_its_bytes() {
        for text in ["192.0.2.7:80", "[2001:db8::7]:443", "[fe80::1%3]:7"] {
            let address = text.parse().expect("an address");
            let mut room = [0xff; V6_LEN];
            let len = encode(address, &mut room);
            assert_eq!(decode(&room[..len]), Ok(Some(address)), "{text}");
        }
    }

    #[test]
    fn too_few_bytes_and_other_families_are_refused() {
        let mut room = [0; V4_LEN];
        assert_eq!(encode("192.0.2.7:80".parse().unwrap(), &mut room), V4_LEN);
        assert_eq!(decode(&room[..15]), Err(Errno::EINVAL));
        assert_eq!(decode(&room[..1]), Err(Errno::EINVAL));
        assert_eq!(decode(&[0, 0]), Ok(None));
        assert_eq!(decode(&[1, 0, 0, 0]), Err(Errno::EAFNOSUPPORT));
        assert_eq!(decode(&[10, 0, 0, 0]), Err(Errno::EINVAL));
        let mut short = [0; 4];
        assert_eq!(encode("192.0.2.7:80".parse().unwrap(), &mut short), V4_LEN);
        assert_eq!(short, room[..4], "the address is cut");
    }
}
