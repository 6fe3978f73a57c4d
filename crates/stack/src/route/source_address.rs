//! Selection of a source address: by the rules of RFC 6724 §5 for IPv6; the oldest address of the
//! device for IPv4.
//!
//! Above: `Router::hop`, for a destination whose route has no source address. Linux:
//! `ipv6_dev_get_saddr`, `inet_select_addr`.
//!
//! The candidates are the addresses of the outgoing device (RFC 6724 §4), so rule 5 never
//! distinguishes two of them. Rule 5.5, which needs the router that announced each prefix, is left
//! out. Rule 4 concerns mobile hosts, which this stack does not implement. The policy table is the
//! default one of RFC 6724 §2.1.
//!
//! Not here: the order of several destination addresses, which is up to the application.

use std::{
    cmp::Reverse,
    net::{IpAddr, Ipv6Addr},
};

use super::fib::Fib;
use crate::base::ids::DeviceIndex;

/// Returns the source address for packets to `remote` that leave through `device`. `temporary` is
/// true if temporary addresses are preferred (`use_tempaddr` is 2).
#[cold]
pub(crate) fn select(
    fib: &Fib,
    device: DeviceIndex,
    remote: IpAddr,
    temporary: bool,
) -> Option<IpAddr> {
    let IpAddr::V6(remote) = remote else { return fib.first_address(device, true) };
    let candidates = fib.addresses().iter().filter(|(on, _)| *on == device);
    let v6 = candidates.filter_map(|(_, net)| match net.addr() {
        IpAddr::V6(ip) => Some((ip, net.prefix_len())),
        IpAddr::V4(_) => None,
    });
    // Of candidates with equal rank the oldest is selected: `min_by_key` returns the first minimum.
    v6.min_by_key(|&(ip, len)| rank(fib, remote, ip, len, temporary)).map(|(ip, _)| IpAddr::V6(ip))
}

/// Returns the rank of the candidate `source` by the rules of RFC 6724 §5; the smallest rank is
/// selected. `len` is the prefix length of the candidate.
fn rank(
    fib: &Fib,
    remote: Ipv6Addr,
    source: Ipv6Addr,
    len: u8,
    temporary: bool,
) -> impl Ord + use<> {
    let (wanted, scope) = (scope(remote), scope(source));
    (
        // Rule 1: prefer the destination itself.
        source != remote,
        // Rule 2: prefer the smallest scope that is not below that of the destination; if all are
        // below, the largest.
        if scope >= wanted { (false, scope) } else { (true, u8::MAX - scope) },
        // Rule 3: avoid deprecated addresses.
        fib.is_deprecated(IpAddr::V6(source)),
        // Rule 6: prefer an address with the label of the destination.
        label(source) != label(remote),
        // Rule 7: prefer temporary addresses, or avoid them.
        fib.is_temporary(IpAddr::V6(source)) != temporary,
        // Rule 8: prefer the longest common prefix, not counting interface identifiers.
        Reverse((source.to_bits() ^ remote.to_bits()).leading_zeros().min(u32::from(len))),
    )
}

/// Returns the scope of an address (RFC 4007 §4, RFC 6724 §3.1), numbered as in a multicast
/// address.
const fn scope(ip: Ipv6Addr) -> u8 {
    if ip.is_multicast() {
        ip.octets()[1] & 0x0f
    } else if ip.is_unicast_link_local() || ip.is_loopback() {
        2
    } else if ip.octets()[0] == 0xfe && ip.octets()[1] & 0xc0 == 0xc0 {
        // Site-local, deprecated by RFC 3879.
        5
    } else {
        14
    }
}

/// Returns the label of an address in the default policy table (RFC 6724 §2.1).
fn label(ip: Ipv6Addr) -> u8 {
    let [first, second, ..] = ip.segments();
    if ip.is_loopback() {
        0
    } else if ip.to_ipv4_mapped().is_some() {
        4
    } else if first == 0x2002 {
        2
    } else if first == 0x2001 && second == 0 {
        5
    } else if first & 0xfe00 == 0xfc00 {
        13
    } else if first & 0xffc0 == 0xfec0 {
        11
    } else if first == 0x3ffe {
        12
    } else if ip.to_bits() >> 32 == 0 {
        3
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceIndex = DeviceIndex(0);

    /// Returns a table of one device with `addresses`, of which those in `deprecated` are
    /// deprecated.
    fn table(addresses: &[&str], deprecated: &[&str]) -> Fib {
        let mut builder = Fib::builder(2);
        for address in addresses {
            builder
                .address(DEVICE, address.parse().expect("the text is a prefix"))
                .expect("the text is an address");
        }
        for address in deprecated {
            builder.set_deprecated(address.parse().expect("the text is an address"), true);
        }
        builder.build()
    }

    fn chosen(fib: &Fib, remote: &str) -> String {
        let chosen = select(fib, DEVICE, remote.parse().expect("the text is an address"), false);
        chosen.map_or_else(String::new, |ip| ip.to_string())
    }

    /// Examples of RFC 6724 §10.1.
    #[test]
    fn the_examples_of_rfc_6724_select_the_expected_source() {
        let addresses = ["2001:db8:1::1/64", "fe80::1/64"];
        let fib = table(&addresses, &[]);
        assert_eq!(chosen(&fib, "2001:db8:1::2"), "2001:db8:1::1");
        assert_eq!(chosen(&fib, "ff05::1"), "2001:db8:1::1");
        assert_eq!(chosen(&fib, "fe80::2"), "fe80::1");
        assert_eq!(chosen(&fib, "2001:db8:1::1"), "2001:db8:1::1");
        let fib = table(&["2001:db8:1::2/64", "2001:db8:3::2/64"], &[]);
        assert_eq!(chosen(&fib, "2001:db8:3::1"), "2001:db8:3::2");
        assert_eq!(chosen(&fib, "2001:db8:1::1"), "2001:db8:1::2");
        let fib = table(&["2002:c633:6401:0:0:d5e3:7953:13eb/64", "2001:db8:1::2/64"], &[]);
        assert_eq!(chosen(&fib, "2002:c633:6401::1"), "2002:c633:6401::d5e3:7953:13eb");
        assert_eq!(chosen(&fib, "2001:db8:1::d5e3:0:0:1"), "2001:db8:1::2");
    }

    #[test]
    fn a_deprecated_address_is_selected_only_if_there_is_no_other() {
        let fib = table(&["2001:db8:1::1/64", "2001:db8:2::1/64"], &["2001:db8:1::1"]);
        assert_eq!(chosen(&fib, "2001:db8:1::9"), "2001:db8:2::1");
        let fib = table(&["2001:db8:1::1/64"], &["2001:db8:1::1"]);
        assert_eq!(chosen(&fib, "2001:db8:1::9"), "2001:db8:1::1");
    }

    #[test]
    fn a_temporary_address_is_preferred_or_avoided() {
        let mut builder = Fib::builder(2);
        for address in ["2001:db8:1::1/64", "2001:db8:1::2/64"] {
            builder.address(DEVICE, address.parse().expect("a prefix")).expect("an address");
        }
        builder.set_temporary("2001:db8:1::2".parse().expect("an address"), true);
        let fib = builder.build();
        let remote = "2001:db8:ffff::9".parse().expect("an address");
        let chosen = |temporary| select(&fib, DEVICE, remote, temporary);
        assert_eq!(chosen(false), Some("2001:db8:1::1".parse().unwrap()));
        assert_eq!(chosen(true), Some("2001:db8:1::2".parse().unwrap()));
    }

    #[test]
    fn a_unique_local_destination_gets_a_unique_local_source() {
        let fib = table(&["2001:db8::1/64", "fd00::1/64"], &[]);
        assert_eq!(chosen(&fib, "fd00:0:0:1::9"), "fd00::1");
        assert_eq!(chosen(&fib, "2001:db8:ffff::9"), "2001:db8::1");
    }

    #[test]
    fn the_source_has_the_family_of_the_destination() {
        let fib = table(&["10.0.0.1/24", "10.1.0.1/24"], &[]);
        assert_eq!(chosen(&fib, "2001:db8::1"), "");
        assert_eq!(
            chosen(&fib, "10.1.0.9"),
            "10.0.0.1",
            "the selected IPv4 address is not the oldest of the device"
        );
    }
}
