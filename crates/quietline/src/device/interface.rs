//! An existing interface, found by its name, for `af_packet` and `af_xdp`.
//!
//! Below: rtnetlink. Above: those devices. Linux: `dev_get_by_name`, `dev_set_promiscuity`.
//!
//! The interface belongs to the kernel: its address, queues and MTU are read and never changed, and
//! a device shares it with the kernel's own stack. A stack with another link address needs
//! [`Promiscuous`], which lasts exactly as long as the value, also when the process is killed.
//!
//! Not here: interfaces that the process creates (`tun`).

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

use super::netlink::Netlink;
use super::setup_error::SetupError;
use super::sockopt::set_option;
use super::tun::config::{format_mac, validate_name};

/// Properties of an Ethernet interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface, constant during its life.
    pub index: u32,
    /// MTU: maximum size of an IP packet in bytes.
    pub mtu: u32,
    /// Ethernet address of the interface.
    pub mac: [u8; 6],
    /// Receive queues that it was created with; a driver may use fewer.
    pub rx_queues: u32,
    /// Transmit queues that it was created with; a driver may use fewer.
    pub tx_queues: u32,
    /// Largest superframe, in bytes of IP packet (`gso_max_size`).
    pub gso_max_bytes: u32,
}

impl Interface {
    /// Looks `name` up in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If there is no interface of that name (ENODEV), if it is not an Ethernet interface, or if it
    /// is down (ENETDOWN).
    pub fn find(name: &str) -> Result<Self, SetupError> {
        validate_name(name)?;
        let link = Netlink::open()?.link(name)?;
        let step = || format!("use interface \"{name}\"");
        let Some(mac) = link.mac.filter(|_| link.ethernet) else {
            return Err(SetupError::system(step(), libc::EPROTONOSUPPORT)
                .with_hint("it is not an Ethernet interface"));
        };
        if !link.up {
            let hint = format!("ip link set {name} up");
            return Err(SetupError::system(step(), libc::ENETDOWN).with_hint(hint));
        }
        Ok(Self {
            name: name.to_owned(),
            index: link.index,
            mtu: link.mtu,
            mac,
            rx_queues: link.rx_queues.max(1),
            tx_queues: link.tx_queues.max(1),
            gso_max_bytes: link.gso_max_bytes,
        })
    }
}

/// Promiscuous mode of an interface (IFF_PROMISC, counted by the kernel): it receives frames for
/// every address as long as this value lives.
#[derive(Debug)]
pub struct Promiscuous {
    /// A packet socket that receives nothing: the kernel removes the membership when it closes.
    _membership: OwnedFd,
}

impl Promiscuous {
    /// Makes the interface promiscuous.
    ///
    /// # Errors
    /// If the kernel refuses: without CAP_NET_RAW (EPERM), or if the interface is gone.
    pub fn enter(interface: &Interface) -> Result<Self, SetupError> {
        let step = format!("receive for other addresses on \"{}\"", interface.name);
        let refused = |errno: rustix::io::Errno| raw_socket_error(&step, errno.raw_os_error());
        let flags = SocketFlags::CLOEXEC;
        // Protocol 0: the socket receives no frame.
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None::<Protocol>)
            .map_err(refused)?;
        let request = libc::packet_mreq {
            mr_ifindex: interface.index.cast_signed(),
            mr_type: PACKET_MR_PROMISC,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
            .map_err(refused)?;
        Ok(Self { _membership: fd })
    }
}

/// `PACKET_MR_PROMISC` in the width of its field.
const PACKET_MR_PROMISC: u16 = 1;

/// Returns the error of a packet socket. EPERM names another capability than for other devices.
pub(super) fn raw_socket_error(step: &str, errno: i32) -> SetupError {
    let error = SetupError::system(step, errno);
    match errno {
        libc::EPERM | libc::EACCES => error.with_hint("needs CAP_NET_RAW (run as root)"),
        _ => error,
    }
}

/// Parses an address such as "02:00:00:00:00:01".
///
/// # Errors
/// If the text is not a unicast Ethernet address.
pub fn parse_mac(text: &str) -> Result<[u8; 6], SetupError> {
    let refused = || SetupError::field("mac", text.escape_debug(), "a unicast Ethernet address");
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2).ok_or_else(refused)?;
        // from_str_radix alone would accept a sign.
        let hex = part.bytes().all(|digit| digit.is_ascii_hexdigit());
        *byte = u8::from_str_radix(part, 16).ok().filter(|_| hex).ok_or_else(refused)?;
    }
    if parts.next().is_some() {
        return Err(refused());
    }
    check_mac(mac).map(|()| mac)
}

/// Refuses addresses that no interface can have.
///
/// # Errors
/// For a group address and for the zero address.
pub(super) fn check_mac(mac: [u8; 6]) -> Result<(), SetupError> {
    if mac[0] & 1 != 0 || mac == [0; 6] {
        return Err(SetupError::field("mac", format_mac(mac), "a unicast Ethernet address"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_addresses_are_read_and_group_addresses_refused() {
        assert_eq!(parse_mac("02:00:00:00:aB:01").expect("good"), [2, 0, 0, 0, 0xab, 1]);
        for bad in
            ["", "02", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1", "03:00:00:00:00:01"]
        {
            assert!(parse_mac(bad).is_err(), "{bad}");
        }
        assert!(parse_mac("00:00:00:00:00:00").is_err());
        assert!(parse_mac("+2:00:00:00:00:01").is_err());
    }

    #[test]
    fn a_missing_or_non_ethernet_interface_is_named() {
        let error = Interface::find("no-such-if").expect_err("no such interface");
        assert_eq!(error.errno(), libc::ENODEV);
        let error = Interface::find("lo").expect_err("loopback is not Ethernet");
        assert!(error.to_string().contains("not an Ethernet interface"), "{error}");
        assert!(Interface::find("a/b").is_err());
    }
}
