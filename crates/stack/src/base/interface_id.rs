//! Interface identifiers of IPv6 addresses that a host forms itself (RFC 7217): stable for a prefix
//! and a device, different for each prefix, and not derived from the link address; and random ones
//! (RFC 8981).
//!
//! Linux: `ipv6_generate_stable_address`, `addr_gen_mode` 2.

use std::{hash::Hasher, net::Ipv6Addr};

use siphasher::sip::SipHasher13;

use super::secrets::HashKey;

/// Returns the address of `device` in the /64 of `prefix`. `attempt` is the number of earlier
/// attempts, whose addresses other stations use (DAD_Counter of RFC 7217 §5).
pub(crate) fn stable_address(
    key: &HashKey,
    prefix: Ipv6Addr,
    device: &str,
    attempt: u8,
) -> Ipv6Addr {
    let network = prefix.to_bits() & (!0 << 64);
    let mut skipped = 0_u8;
    loop {
        let mut hasher = SipHasher13::new_with_key(&key.0);
        hasher.write_u128(network);
        hasher.write(device.as_bytes());
        hasher.write(&[attempt, skipped]);
        let identifier = hasher.finish();
        if !is_reserved(identifier) {
            return Ipv6Addr::from_bits(network | u128::from(identifier));
        }
        skipped = skipped.wrapping_add(1);
    }
}

/// Returns an address in the /64 of `prefix` with a random interface identifier (RFC 8981 §3.3.1).
pub(crate) fn random_address(prefix: Ipv6Addr, mut random: impl FnMut() -> u64) -> Ipv6Addr {
    let network = prefix.to_bits() & (!0 << 64);
    loop {
        let identifier = random();
        if !is_reserved(identifier) {
            return Ipv6Addr::from_bits(network | u128::from(identifier));
        }
    }
}

/// Returns whether an interface identifier is reserved, so that no host may use it (RFC 5453).
const fn is_reserved(identifier: u64) -> bool {
    matches!(
        identifier,
        0 | 0x0200_5eff_fe00_0000..=0x0200_5eff_feff_ffff
            | 0xfdff_ffff_ffff_ff80..=0xfdff_ffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_stable_and_depend_on_all_inputs() {
        let (key, other) = (HashKey([1; 16]), HashKey([2; 16]));
        let (here, there) = ("2001:db8::", "2001:db8:0:1::");
        let address = |key, prefix: &str, device, attempt| {
            stable_address(key, prefix.parse().unwrap(), device, attempt)
        };
        let first = address(&key, here, "eth0", 0);
        assert_eq!(address(&key, here, "eth0", 0), first);
        assert_eq!(first.segments()[..4], [0x2001, 0x0db8, 0, 0]);
        let variants = [
            address(&key, here, "eth0", 1),
            address(&key, here, "eth1", 0),
            address(&key, there, "eth0", 0),
            address(&other, here, "eth0", 0),
        ];
        for variant in variants {
            assert_ne!(variant.segments()[4..], first.segments()[4..]);
        }
    }

    #[test]
    fn reserved_identifiers_are_recognized() {
        for reserved in [0, 0x0200_5eff_fe00_5213, 0xfdff_ffff_ffff_ff80, 0xfdff_ffff_ffff_ffff] {
            assert!(is_reserved(reserved));
        }
        assert!(!is_reserved(1) && !is_reserved(0xfdff_ffff_ffff_ff7f) && !is_reserved(u64::MAX));
    }
}
