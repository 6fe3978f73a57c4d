//! The argument of `--so_flags`.
//!
//! A list of words, separated by commas: `virtual` (the default) or `wall` for the clock, `seed=N`
//! for sequence numbers, ports and hash keys, `local=ADDRESS/BITS` and `gateway=ADDRESS` for the
//! addresses of the host, which has one of each family, `mtu=BYTES` for its device, `netns` to
//! apply the sysctls of the network namespace (see `namespace`), `report` to print settings that a
//! script changes and this stack does not have.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// MTUs of the device. Any IPv6 link carries 1,280 bytes (RFC 8200 §5), and packetdrill reads
/// packets of up to 64 KiB.
const MTUS: std::ops::RangeInclusive<u32> = 1280..=65_535;

/// Options of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    /// Time stands still while a thread runs.
    pub(crate) virtual_time: bool,
    /// Seed of everything that an outsider must not guess. Scripts compare relative numbers, so
    /// that any seed works.
    pub(crate) seed: u64,
    /// The stack applies sysctls that are written in the network namespace.
    pub(crate) netns: bool,
    /// Settings without effect are printed to standard error.
    pub(crate) report: bool,
    /// The host's IPv4 address with its prefix: packetdrill's `--local_ip` and `--netmask_ip`.
    pub(crate) local: Ipv4Net,
    /// The router towards the peer over IPv4: `--gateway_ip`.
    pub(crate) gateway: Ipv4Addr,
    /// The host's IPv6 address with its prefix.
    pub(crate) local_v6: Ipv6Net,
    /// The router towards the peer over IPv6.
    pub(crate) gateway_v6: Ipv6Addr,
    /// MTU of the device: `--mtu`.
    pub(crate) mtu: u32,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            virtual_time: true,
            seed: 1,
            netns: false,
            report: false,
            local: Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 1), 16),
            gateway: Ipv4Addr::new(192, 168, 0, 2),
            // The addresses that packetdrill's runner (`run_all.py`) passes.
            local_v6: Ipv6Net::new_assert(Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1), 48),
            gateway_v6: Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0x8888, 0, 0, 0, 1),
            mtu: 1500,
        }
    }
}

impl Flags {
    /// Parses the argument of `--so_flags`. Packetdrill passes a null pointer without the option.
    ///
    /// # Errors
    /// One line with the refused word and the allowed ones.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut flags = Self::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                None if word == "virtual" => flags.virtual_time = true,
                None if word == "wall" => flags.virtual_time = false,
                None if word == "netns" => flags.netns = true,
                None if word == "report" => flags.report = true,
                Some(("seed", number)) => flags.seed = value(word, number, "seed=NUMBER")?,
                Some(("local", address)) => match value(word, address, "local=ADDRESS/BITS")? {
                    IpNet::V4(local) => flags.local = local,
                    IpNet::V6(local) => flags.local_v6 = local,
                },
                Some(("gateway", address)) => match value(word, address, "gateway=ADDRESS")? {
                    IpAddr::V4(gateway) => flags.gateway = gateway,
                    IpAddr::V6(gateway) => flags.gateway_v6 = gateway,
                },
                Some(("mtu", bytes)) => {
                    let expected = "mtu=BYTES, 1280 to 65535";
                    flags.mtu = value(word, bytes, expected)?;
                    if !MTUS.contains(&flags.mtu) {
                        return Err(format!("so_flags: {word}: expected {expected}"));
                    }
                }
                _ => {
                    return Err(format!(
                        "so_flags: {word}: expected virtual, wall, netns, report, seed=, local=, gateway= or mtu="
                    ));
                }
            }
        }
        Ok(flags)
    }
}

/// Parses the value of a word.
fn value<T: FromStr>(word: &str, value: &str, expected: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("so_flags: {word}: expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_in_any_order() {
        let flags = Flags::parse("report, seed=7,wall").unwrap();
        assert_eq!(flags, Flags { virtual_time: false, seed: 7, report: true, ..Flags::default() });
        assert_eq!(Flags::parse("").unwrap(), Flags::default());
    }

    #[test]
    fn an_address_replaces_that_of_its_family() {
        let flags = Flags::parse("local=10.0.0.1/8,local=fd00::1/64,gateway=fd00::2,mtu=1520");
        let expected = Flags {
            local: "10.0.0.1/8".parse().unwrap(),
            local_v6: "fd00::1/64".parse().unwrap(),
            gateway_v6: "fd00::2".parse().unwrap(),
            mtu: 1520,
            ..Flags::default()
        };
        assert_eq!(flags, Ok(expected));
    }

    #[test]
    fn an_unknown_word_is_an_error() {
        for bad in [
            "slow",
            "seed",
            "seed=x",
            "virtual=1",
            "local=10.0.0.1",
            "local=fd00::1",
            "gateway=here",
            "mtu=1279",
            "mtu=big",
        ] {
            let error = Flags::parse(bad).unwrap_err();
            assert!(error.contains(bad), "{error}");
        }
    }
}
