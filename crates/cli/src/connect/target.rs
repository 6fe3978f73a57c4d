//! The host and the port of `connect`, and the addresses behind the host: its literal address, or
//! those that a resolver returns for its name.
//!
//! Not here: queries and answers (crate `quietline-config`).

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use anyhow::anyhow;
use quietline::Stack;
use quietline_config::{Host, dns::Resolver};

use crate::{failure::Failure, link::families};

/// Host and port of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    host: String,
    port: u16,
}

impl Target {
    /// Parses `HOST PORT` or `HOST:PORT`. An IPv6 address with a port is in brackets.
    pub(super) fn parse(host: &str, port: Option<u16>) -> Result<Self, Failure> {
        if let Some(port) = port {
            return Self { host: host.to_owned(), port }.checked();
        }
        let missing = || {
            let reason = "the port is missing: expected HOST PORT or HOST:PORT";
            Failure::option("HOST[:PORT]", host, reason)
        };
        if let Ok(address) = host.parse::<SocketAddr>() {
            let port = Some(address.port()).filter(|port| *port != 0).ok_or_else(missing)?;
            return Self { host: address.ip().to_string(), port }.checked();
        }
        let (name, port) = host.rsplit_once(':').ok_or_else(missing)?;
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_number && *port != 0).ok_or_else(missing)?;
        Self { host: name.to_owned(), port }.checked()
    }

    /// Refuses hosts that are neither an address nor a name.
    fn checked(self) -> Result<Self, Failure> {
        let host = &self.host;
        if let Ok(address) = host.parse::<IpAddr>() {
            if address.is_unspecified() || address.is_multicast() {
                return Err(Failure::option("HOST", host, "no host has this address"));
            }
            return Ok(self);
        }
        // The system's resolver would read 10.1 as 10.0.0.1.
        let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if is_number || host.contains([':', '[', ']']) {
            return Err(Failure::option("HOST", host, "expected an IP address or a host name"));
        }
        Ok(self)
    }

    /// Returns the addresses that are known before a stack runs; `None` if the stack looks them up.
    pub(super) fn early(&self, host: &Host) -> Result<Option<Vec<SocketAddr>>, Failure> {
        let resolver = Resolver::new(host.dns.clone());
        let mut remotes = if let Ok(address) = self.host.parse::<IpAddr>() {
            vec![SocketAddr::new(address, self.port)]
        } else if let Some(known) = resolver.known(&self.host) {
            self.with_port(known)
        } else if !host.dns.servers.is_empty() || !host.dhcp_clients().is_empty() {
            return Ok(None);
        } else {
            self.by_system()?
        };
        let (v4, v6) = families(host);
        remotes.retain(|remote| if remote.is_ipv4() { v4 } else { v6 });
        if remotes.is_empty() {
            let reason = "it has no address of the family of --address";
            return Err(Failure::option("HOST", &self.host, reason));
        }
        Ok(Some(remotes))
    }

    /// Returns the addresses of the host by the system's resolver, in its order.
    pub(super) fn by_system(&self) -> Result<Vec<SocketAddr>, Failure> {
        let Self { host, port } = self;
        let found = (host.as_str(), *port).to_socket_addrs().map_err(|error| {
            let text = error.to_string();
            let reason = text.strip_prefix("failed to lookup address information: ");
            anyhow!("cannot look up {host}: {}", reason.unwrap_or(&text))
        })?;
        let mut remotes: Vec<_> = found.collect();
        remotes.dedup();
        Ok(remotes)
    }

    /// Returns the addresses of the host by a name server, over the sockets of `stack`.
    pub(super) fn by_stack(
        &self,
        resolver: &Resolver,
        stack: &Stack,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let found = resolver.lookup(stack, &self.host).map_err(anyhow::Error::new)?;
        Ok(self.with_port(&found))
    }

    fn with_port(&self, addresses: &[IpAddr]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| SocketAddr::new(*address, self.port)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, port: u16) -> Option<Target> {
        Some(Target { host: host.to_owned(), port })
    }

    #[test]
    fn a_port_is_a_second_word_or_behind_a_colon() {
        let parse = |host, port| Target::parse(host, port).ok();
        assert_eq!(parse("10.1.2.3", Some(80)), target("10.1.2.3", 80));
        assert_eq!(parse("10.1.2.3:80", None), target("10.1.2.3", 80));
        assert_eq!(parse("example:80", None), target("example", 80));
        assert_eq!(parse("[fd00::1]:80", None), target("fd00::1", 80));
        assert_eq!(parse("fd00::1", Some(80)), target("fd00::1", 80));
        for host in ["example", "example:", "example:0", "example:+1", "example:65536", "fd00::1"] {
            assert_eq!(parse(host, None), None, "{host}");
        }
        assert_eq!(parse("example:80", Some(80)), None);
    }

    #[test]
    fn hosts_are_addresses_or_names() {
        let by_system = |host| Target::parse(host, Some(80)).expect("a host").by_system();
        let remotes = by_system("10.1.2.3").expect("an address");
        assert_eq!(remotes, ["10.1.2.3:80".parse().expect("an address")]);
        for host in ["10.1", "10.0.0.300", "0.0.0.0", "224.0.0.1", "1", "", "fe80::zz", "a:80"] {
            let parsed = Target::parse(host, Some(80));
            assert!(matches!(parsed, Err(Failure::Usage(_))), "{host}");
        }
        let local = by_system("localhost").expect("every machine knows this name");
        assert!(local.iter().all(|remote| remote.ip().is_loopback()), "{local:?}");
    }

    #[test]
    fn a_name_is_left_to_the_stack_if_it_has_a_name_server() {
        let target = Target::parse("printer:9100", None).expect("a name");
        let link = "[[link]]\ndevice = \"tap:a\"\naddresses = [\"10.0.0.2/24\"]\n";
        let host = |more: &str| Host::parse(&format!("{link}{more}")).expect("a host");
        let early = |more: &str| target.early(&host(more));
        assert_eq!(early("[dns]\nservers = [\"10.0.0.1\"]").expect("no error"), None);
        let known = early("[hosts]\nprinter = [\"10.0.0.9\", \"fd00::9\"]").expect("no error");
        assert_eq!(known, Some(vec!["10.0.0.9:9100".parse().expect("an address")]));
        assert!(early("[hosts]\nprinter = [\"fd00::9\"]").is_err(), "the host has no IPv6 address");
    }
}
