//! The argument of `--so_flags`.
//!
//! A list of words, separated by commas: `virtual` (the default) or `wall` for the clock, `seed=N`
//! for sequence numbers, ports and hash keys, `local=ADDRESS/BITS` and `gateway=ADDRESS` for the
//! addresses of the host, `netns` to apply the sysctls of the network namespace (see `namespace`),
//! `report` to print settings that a script changes and this stack does not have.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

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
    /// The host's address with its prefix: packetdrill's `--local_ip` and `--netmask_ip`.
    pub(crate) local: Ipv4Net,
    /// The router towards the peer: `--gateway_ip`.
    pub(crate) gateway: Ipv4Addr,
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
                Some(("seed", number)) => {
                    flags.seed = number
                        .parse()
                        .map_err(|_| format!("so_flags: {word}: expected seed=NUMBER"))?;
                }
                Some(("local", address)) => {
                    flags.local = address
                        .parse()
                        .map_err(|_| format!("so_flags: {word}: expected local=ADDRESS/BITS"))?;
                }
                Some(("gateway", address)) => {
                    flags.gateway = address
                        .parse()
                        .map_err(|_| format!("so_flags: {word}: expected gateway=ADDRESS"))?;
                }
                _ => {
                    return Err(format!(
                        "so_flags: {word}: expected virtual, wall, netns, report, seed=, local= or gateway="
                    ));
                }
            }
        }
        Ok(flags)
    }
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
    fn an_unknown_word_is_an_error() {
        for bad in ["slow", "seed", "seed=x", "virtual=1", "local=10.0.0.1", "gateway=here"] {
            let error = Flags::parse(bad).unwrap_err();
            assert!(error.contains(bad), "{error}");
        }
    }
}
