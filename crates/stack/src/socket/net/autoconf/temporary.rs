//! Temporary addresses (RFC 8981): addresses with random interface identifiers, of which a new one
//! is formed in each prefix before the present one is deprecated.
//!
//! Off by default (`net.ipv6.conf.all.use_tempaddr`). Linux: `ipv6_create_tempaddr`,
//! `addrconf_verify_rtnl`.

use std::{net::Ipv6Addr, time::Duration, vec::Vec};

use ipnet::Ipv6Net;
use pkt::Instant;
use tcp::Rng;

use super::link::{ADDRESSES_MAX, AutoAddress, Link};
use crate::{base::interface_id::random_address, sysctl::Sysctls};

/// Time before the end of the preferred lifetime at which the next address is formed (REGEN_ADVANCE
/// of RFC 8981 §3.8: 2 s, and three attempts of one probe a second).
const ADVANCE: Duration = Duration::from_secs(5);

/// Bounds of the lifetimes of a temporary address, set when it is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) preferred_until: Instant,
    pub(super) valid_until: Instant,
    /// Time at which the next temporary address of the prefix is formed.
    pub(super) renew_at: Instant,
}

impl Bounds {
    /// Returns the bounds of an address that is formed now, or `None` if the settings leave no
    /// preferred lifetime. A random time shortens the preferred lifetime, so that not all hosts
    /// change their addresses at the same time (DESYNC_FACTOR, at most 0.4 of the lifetime).
    fn draw(now: Instant, sysctls: &Sysctls, rng: &mut Rng) -> Option<Self> {
        let preferred = sysctls.temp_prefered_lft;
        let desync = sysctls.max_desync_factor.min(preferred * 2 / 5);
        let seconds = u32::try_from(desync.as_secs()).unwrap_or(u32::MAX);
        let preferred = preferred - Duration::from_secs(rng.below(seconds.max(1)).into());
        (preferred > ADVANCE).then(|| Self {
            preferred_until: now + preferred,
            valid_until: now + sysctls.temp_valid_lft,
            renew_at: now + (preferred - ADVANCE),
        })
    }
}

impl Link {
    /// Forms the temporary addresses that are missing: one in each prefix that has a preferred
    /// stable address. Returns them; the caller must probe them.
    pub(super) fn renew_temporary(
        &mut self,
        now: Instant,
        sysctls: &Sysctls,
        rng: &mut Rng,
    ) -> Vec<Ipv6Addr> {
        let mut formed = Vec::new();
        if sysctls.use_tempaddr == 0 {
            return formed;
        }
        for index in 0..self.addresses.len() {
            let AutoAddress { address, preferred_until, valid_until, ref temporary, .. } =
                self.addresses[index];
            let net = Ipv6Net::new_assert(address, 64).trunc();
            let serves = |other: &AutoAddress| {
                net.contains(&other.address)
                    && other.temporary.is_some_and(|bounds| now < bounds.renew_at)
            };
            if temporary.is_some()
                || preferred_until <= now + ADVANCE
                || self.addresses.len() >= ADDRESSES_MAX
                || self.addresses.iter().any(serves)
            {
                continue;
            }
            let Some(bounds) = Bounds::draw(now, sysctls, rng) else { continue };
            let address = random_address(net.addr(), || rng.next_u64());
            self.addresses.push(AutoAddress {
                address,
                attempt: 0,
                is_ready: false,
                preferred_until: preferred_until.min(bounds.preferred_until),
                valid_until: valid_until.min(bounds.valid_until),
                temporary: Some(bounds),
            });
            formed.push(address);
        }
        formed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        base::ids::DeviceIndex,
        header::ndp::{PrefixInfo, RouterAdvertisement},
    };

    const HOUR: u64 = 3600;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// A link with the stable address 2001:db8::7, announced at time 0.
    fn link(valid_s: u32, preferred_s: u32) -> Link {
        let mut link = Link::new(DeviceIndex(1), at(0));
        announce(&mut link, at(0), valid_s, preferred_s);
        link
    }

    fn announce(link: &mut Link, now: Instant, valid_s: u32, preferred_s: u32) {
        let prefix = "2001:db8::".parse().unwrap();
        let (on_link, autonomous) = (true, true);
        let prefix = PrefixInfo { prefix, len: 64, on_link, autonomous, valid_s, preferred_s };
        let ra = RouterAdvertisement {
            prefixes: [prefix].into_iter().collect(),
            ..RouterAdvertisement::default()
        };
        let router = "fe80::1".parse().unwrap();
        link.on_advertisement(now, router, &ra, |prefix| Ipv6Addr::from_bits(prefix.to_bits() | 7));
    }

    fn sysctls(mode: &str) -> Sysctls {
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv6.conf.all.use_tempaddr", mode).unwrap();
        sysctls
    }

    #[test]
    fn no_temporary_address_is_formed_by_default() {
        let mut link = link(u32::MAX, u32::MAX);
        assert!(link.renew_temporary(at(0), &Sysctls::default(), &mut Rng::new(1)).is_empty());
    }

    #[test]
    fn a_new_address_is_formed_before_the_present_one_is_deprecated() {
        let (mut link, sysctls, mut rng) = (link(u32::MAX, u32::MAX), sysctls("2"), Rng::new(1));
        let [first] = link.renew_temporary(at(0), &sysctls, &mut rng)[..] else { panic!() };
        assert_eq!(first.segments()[..4], [0x2001, 0x0db8, 0, 0]);
        assert!(
            link.renew_temporary(at(0), &sysctls, &mut rng).is_empty(),
            "a second address was formed"
        );
        let bounds = link.addresses[1].temporary.unwrap();
        let day = at(24 * HOUR);
        assert!((at(24 * HOUR - 600)..=day).contains(&bounds.preferred_until), "{bounds:?}");
        assert_eq!(bounds.valid_until, at(7 * 24 * HOUR));
        let before = bounds.renew_at;
        assert_eq!(before + ADVANCE, bounds.preferred_until);
        let [second] = link.renew_temporary(before, &sysctls, &mut rng)[..] else { panic!() };
        assert_ne!(first, second);
        link.addresses.iter_mut().for_each(|known| known.is_ready = true);
        let wanted = link.wanted(bounds.preferred_until).addresses;
        let flags: Vec<_> = wanted.iter().map(|it| (it.deprecated, it.temporary)).collect();
        assert_eq!(flags, [(false, false), (true, true), (false, true)]);
        assert_eq!(link.expire(bounds.valid_until), [first]);
    }

    /// RFC 8981 §3.4 (2) and (5).
    #[test]
    fn lifetimes_end_with_those_of_the_prefix_and_are_never_extended_beyond_their_bounds() {
        let (mut link, sysctls, mut rng) = (link(9000, 4), sysctls("1"), Rng::new(1));
        assert!(
            link.renew_temporary(at(0), &sysctls, &mut rng).is_empty(),
            "an address was formed with too short a lifetime"
        );
        announce(&mut link, at(0), 9000, 8000);
        assert_eq!(link.renew_temporary(at(0), &sysctls, &mut rng).len(), 1);
        let ends = |link: &Link| (link.addresses[1].preferred_until, link.addresses[1].valid_until);
        assert_eq!(ends(&link), (at(8000), at(9000)));
        announce(&mut link, at(100), u32::MAX, u32::MAX);
        let bounds = link.addresses[1].temporary.unwrap();
        assert_eq!(ends(&link), (bounds.preferred_until, bounds.valid_until));
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let (mut link, sysctls, mut rng) = (link(u32::MAX, u32::MAX), sysctls("1"), Rng::new(1));
        for day in 0..1000 {
            link.renew_temporary(at(day * 25 * HOUR), &sysctls, &mut rng);
            assert!(link.addresses.len() <= ADDRESSES_MAX);
        }
    }
}
