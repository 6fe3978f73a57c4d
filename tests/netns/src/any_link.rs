//! A link over any kind of device, with addresses of both IP versions on both ends.
//!
//! ```text
//!    kernel 10.77.0.1, fd77::1  ──── ql0  10.77.0.2, fd77::2 quietline
//! ```
//!
//! The kernel's end and its addresses exist before quietline starts, and stay when it ends: a tap
//! or tun is persistent, and a veth pair has its other end in another namespace. Therefore a test
//! is the same for every device.
//!
//! Not here: options of one device (`quietline`, `veth`, the tests of the devices).

use anyhow::{Context as _, Result};
use quietline::device::{AfPacket, AfPacketConfig, AfXdp, AfXdpConfig, Tun, TunConfig};
use quietline::{Stack, StackBuilder};

use crate::lab::{KERNEL, Lab, STACK};
use crate::namespace::Namespace;
use crate::quietline::{Link, Quietline, modes};
use crate::veth::Veth;

/// The kernel's IPv6 address on the link.
pub const KERNEL_V6: &str = "fd77::1";

/// The stack's IPv6 address on the link.
pub const STACK_V6: &str = "fd77::2";

/// MTU of the link.
const MTU: u32 = 1500;

/// Setting of every stack: no other station can have its address, so none is probed.
const NO_PROBES: (&str, &str) = ("net.ipv6.conf.all.dad_transmits", "0");

/// Kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Ethernet frames through a tap, with offloads.
    Tap,
    /// IP packets through a tun, with offloads.
    Tun,
    /// A packet socket on a veth pair.
    AfPacket,
    /// AF_XDP sockets on a veth pair.
    AfXdp,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Tap, Self::Tun, Self::AfPacket, Self::AfXdp];

    /// Returns the name of the kind in `--link`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Tun => "tun",
            Self::AfPacket => "af_packet",
            Self::AfXdp => "af_xdp",
        }
    }
}

/// IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Version {
    /// Both versions.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the option of ping, traceroute and curl that selects the version.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Self::V4 => "-4",
            Self::V6 => "-6",
        }
    }

    /// Returns the kernel's address.
    #[must_use]
    pub const fn kernel(self) -> &'static str {
        match self {
            Self::V4 => KERNEL,
            Self::V6 => KERNEL_V6,
        }
    }

    /// Returns the stack's address.
    #[must_use]
    pub const fn stack(self) -> &'static str {
        match self {
            Self::V4 => STACK,
            Self::V6 => STACK_V6,
        }
    }

    /// Returns the stack's address and its prefix length.
    #[must_use]
    pub const fn stack_network(self) -> &'static str {
        match self {
            Self::V4 => "10.77.0.2/24",
            Self::V6 => "fd77::2/64",
        }
    }

    /// Returns the largest payload of an ICMP or UDP packet: the MTU less 20 or 40 bytes of IP
    /// and 8 of ICMP or UDP.
    #[must_use]
    pub const fn payload_max(self) -> u32 {
        match self {
            Self::V4 => MTU - 28,
            Self::V6 => MTU - 48,
        }
    }

    /// Returns the largest payload of a UDP datagram, which is sent in fragments: the length field
    /// of IPv4 includes its header of 20 bytes.
    #[must_use]
    pub const fn datagram_max(self) -> u32 {
        match self {
            Self::V4 => 65_535 - 28,
            Self::V6 => 65_535 - 8,
        }
    }

    /// Returns the name of a counter of this version in `/proc/net/snmp` and `/proc/net/snmp6`.
    #[must_use]
    pub fn counter(self, name: &str) -> String {
        match self {
            Self::V4 => format!("Ip{name}"),
            Self::V6 => format!("Ip6{name}"),
        }
    }
}

/// Returns an address as it is written in front of a port.
#[must_use]
pub fn host(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

/// A lab whose namespace has the kernel's end.
#[derive(Debug)]
pub struct AnyLink {
    /// Kind of device at quietline's end.
    pub kind: Kind,
    /// The environment of the test.
    pub lab: Lab,
    /// Name of the interface at the kernel's end.
    pub interface: &'static str,
    /// The veth pair of `AfPacket` and `AfXdp`.
    veth: Option<Veth>,
}

impl AnyLink {
    /// Makes the environment for `test`, which needs these programs; returns `None`, with the
    /// reason printed, if it is not available.
    pub fn open(test: &str, programs: &[&str], kind: Kind) -> Result<Option<Self>> {
        let programs = [programs, if kind == Kind::AfXdp { &["ethtool"] } else { &[] }].concat();
        let Some(lab) = Lab::open(test, &programs)? else { return Ok(None) };
        if !lab.enable_ipv6()? {
            println!("skipped: {test}: the kernel has no IPv6");
            return Ok(None);
        }
        let (interface, veth) = match kind {
            Kind::Tap | Kind::Tun => {
                let name = Link::NAME;
                lab.namespace.ip(&format!("tuntap add dev {name} mode {}", kind.name()))?;
                lab.namespace.ip(&format!("address add {KERNEL}/24 dev {name}"))?;
                lab.namespace.ip(&format!("link set {name} mtu {MTU} up"))?;
                (name, None)
            }
            Kind::AfPacket | Kind::AfXdp => (Veth::PEER, Some(Veth::open(&lab.namespace)?)),
        };
        lab.namespace.ip(&format!("address add {KERNEL_V6}/64 dev {interface} nodad"))?;
        if kind == Kind::AfXdp {
            lab.namespace.tool("ethtool", &format!("-K {interface} tx off"))?;
        }
        Ok(Some(Self { kind, lab, interface, veth }))
    }

    /// Returns the namespace in which quietline finds its end.
    #[must_use]
    pub fn ours(&self) -> &Namespace {
        self.veth.as_ref().map_or(&self.lab.namespace, |veth| &veth.ours)
    }

    /// Starts `quietline serve` with these arguments at the stack's address of one version.
    pub fn serve(&self, version: Version, words: &[&str]) -> Result<Quietline> {
        let link = format!("--link={}:{}", self.kind.name(), Link::NAME);
        let address = format!("--address={}", version.stack_network());
        let (name, value) = NO_PROBES;
        let setting = format!("--sysctl={name}={value}");
        Quietline::serve_with(self.ours(), &[words, &[&link, &address, &setting]].concat())
    }

    /// Starts a stack in this process, with the addresses of both versions.
    pub fn stack(&self) -> Result<Stack> {
        self.build(|mut builder| {
            for version in Version::ALL {
                builder = builder.address(version.stack_network().parse()?);
            }
            let (name, value) = NO_PROBES;
            Ok(builder.sysctl(name, value))
        })
    }

    /// Starts a stack in this process, with the addresses and settings that `configure` adds to
    /// the device and to the mode of the suite.
    pub fn build(
        &self,
        configure: impl FnOnce(StackBuilder) -> Result<StackBuilder> + Send,
    ) -> Result<Stack> {
        self.ours().enter(|| {
            let name = Link::NAME;
            let builder = Stack::builder().name(name);
            let builder = match self.kind {
                Kind::Tap => builder.device(Tun::create(&TunConfig::tap(name))?),
                Kind::Tun => builder.device(Tun::create(&TunConfig::tun(name))?),
                Kind::AfPacket => builder.device(AfPacket::open(&AfPacketConfig::new(name))?),
                Kind::AfXdp => builder.device(AfXdp::open(&AfXdpConfig::new(name))?),
            };
            let mut builder = configure(builder.cores(Link::default().cores()))?;
            for mode in modes() {
                let setting =
                    mode.strip_prefix("--sysctl=").and_then(|words| words.split_once('='));
                let (name, value) = setting.with_context(|| format!("a mode: {mode}"))?;
                builder = builder.sysctl(name, value);
            }
            builder.build().context("starting the stack")
        })
    }
}
