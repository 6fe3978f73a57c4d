//! Configuration of an `af_packet` device, and the checks that need no kernel.
//!
//! Above: `AfPacket::open`, and `--link af_packet:IF[,option...]`, whose text
//! [`AfPacketConfig::from_str`] reads.
//!
//! Not here: addresses and routes (they belong to the stack), limits of the interface
//! (`AfPacket::open` reads them).

use std::fmt;
use std::str::FromStr;

use super::super::interface::{check_mac, parse_mac};
use super::super::setup_error::SetupError;
use super::super::tun::config::{MTU_MIN, QUEUES_MAX, validate_name};

/// Default size of a queue's receive ring, in bytes: holds the frames of some milliseconds at 10
/// Gbit/s.
pub const RX_RING_BYTES_DEFAULT: u32 = 16 << 20;

/// Smallest and largest receive ring of a queue, in bytes.
const RX_RING_BYTES: (u32, u32) = (1 << 20, 1 << 30);

/// Default number of slots of a queue's transmit ring, 64 KB each. Byte queue limits and TCP Small
/// Queues fill far fewer slots with superframes; a small packet also takes a whole slot.
pub const TX_RING_FRAMES_DEFAULT: u16 = 128;

/// Smallest and largest number of slots of a transmit ring.
const TX_RING_FRAMES: (u16, u16) = (16, 4096);

/// Default time after which the kernel hands over a receive block that is not full, in
/// milliseconds: the smallest that the kernel accepts.
pub const RETIRE_MS_DEFAULT: u16 = 1;

/// Format of the receive path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RxFormat {
    /// A ring with a slot for each frame (`TPACKET_V2`): every frame is visible as soon as it has
    /// arrived.
    #[default]
    Frames,
    /// A ring of blocks that frames share (`TPACKET_V3`): small frames use little memory, and one
    /// wake delivers many. But a frame becomes visible only when its block is full or `retire_ms`
    /// have passed.
    Blocks,
    /// No ring: frames wait in the kernel's socket and are copied once (`recvmmsg`).
    Calls,
}

/// Format of the transmit path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TxFormat {
    /// A ring of slots: the kernel reports the completion of each slot, and a NIC may read it in
    /// place.
    Ring,
    /// No ring: the kernel copies frames out of packet memory (`sendmmsg`), one copy less on a
    /// virtual interface. Completions follow from the fill level of the send buffer.
    #[default]
    Calls,
}

/// Assignment of flows to queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fanout {
    /// By the hash of the flow (`PACKET_FANOUT_HASH`), the same for both directions.
    #[default]
    Hash,
    /// By the CPU on which the kernel received the frame (`PACKET_FANOUT_CPU`), that is by the
    /// NIC's own steering.
    Cpu,
}

/// Path of frames into the interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KernelQdisc {
    /// Through its queueing discipline, as every packet of the kernel.
    #[default]
    Through,
    /// Directly to the driver, without the queueing discipline (`PACKET_QDISC_BYPASS`).
    Bypass,
}

/// Configuration of a stack on an existing interface. Start from [`AfPacketConfig::new`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfPacketConfig {
    /// Interface name.
    pub interface: String,
    /// Queue pairs, one per core of the stack.
    pub queues: u16,
    /// Checksum and TSO offload in both directions (`PACKET_VNET_HDR`). If false, frames are plain
    /// and contain every checksum.
    pub vnet_hdr: bool,
    /// Maximum size of a sent IP packet, in bytes; `None` is the interface's MTU, which is also the
    /// upper bound.
    pub mtu: Option<u32>,
    /// Ethernet address of the stack; `None` is the interface's own. Another address makes the
    /// interface promiscuous.
    pub mac: Option<[u8; 6]>,
    /// Format of the receive path.
    pub rx_format: RxFormat,
    /// Format of the transmit path.
    pub tx_format: TxFormat,
    /// Size of each queue's receive ring, or of its socket's receive buffer without a ring, in
    /// bytes from 1 MB to 1 GB.
    pub rx_ring_bytes: u32,
    /// Time after which the kernel hands over a receive block that is not full, in milliseconds
    /// from 1 to 1000. Only for [`RxFormat::Blocks`].
    pub retire_ms: u16,
    /// Maximum number of frames of each queue in flight, 16 to 4096. With [`TxFormat::Ring`] it is
    /// the number of slots of 64 KB.
    pub tx_ring_frames: u16,
    /// Assignment of flows to queues.
    pub fanout: Fanout,
    /// Path of frames into the interface.
    pub qdisc: KernelQdisc,
}

impl AfPacketConfig {
    /// Returns a configuration with one queue on `interface`, offloads on, and the interface's own
    /// address and MTU.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            queues: 1,
            vnet_hdr: true,
            mtu: None,
            mac: None,
            rx_format: RxFormat::default(),
            tx_format: TxFormat::default(),
            rx_ring_bytes: RX_RING_BYTES_DEFAULT,
            retire_ms: RETIRE_MS_DEFAULT,
            tx_ring_frames: TX_RING_FRAMES_DEFAULT,
            fanout: Fanout::default(),
            qdisc: KernelQdisc::default(),
        }
    }

    /// Checks everything that needs no kernel.
    ///
    /// # Errors
    /// For the first field that is out of range.
    pub fn validate(&self) -> Result<(), SetupError> {
        validate_name(&self.interface)?;
        if self.queues == 0 || self.queues > QUEUES_MAX {
            return Err(SetupError::field("queues", self.queues, "1 to 256"));
        }
        if let Some(mtu) = self.mtu.filter(|&mtu| mtu < MTU_MIN) {
            return Err(SetupError::field("mtu", mtu, "68 to the interface's own"));
        }
        self.mac.map_or(Ok(()), check_mac)?;
        if self.rx_ring_bytes < RX_RING_BYTES.0 || self.rx_ring_bytes > RX_RING_BYTES.1 {
            return Err(SetupError::field("rx-ring", self.rx_ring_bytes, "1 MB to 1 GB"));
        }
        if self.retire_ms == 0 || self.retire_ms > 1000 {
            return Err(SetupError::field("retire-ms", self.retire_ms, "1 to 1000"));
        }
        if self.tx_ring_frames < TX_RING_FRAMES.0 || self.tx_ring_frames > TX_RING_FRAMES.1 {
            return Err(SetupError::field("tx-ring", self.tx_ring_frames, "16 to 4096"));
        }
        Ok(())
    }

    fn set(&mut self, option: &str) -> Result<(), SetupError> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match (name, value) {
            ("rx", "v2") => self.rx_format = RxFormat::Frames,
            ("rx", "v3") => self.rx_format = RxFormat::Blocks,
            ("rx", "calls") => self.rx_format = RxFormat::Calls,
            ("rx", _) => return Err(SetupError::field("rx", value, "v2, v3 or calls")),
            ("tx", "ring") => self.tx_format = TxFormat::Ring,
            ("tx", "calls") => self.tx_format = TxFormat::Calls,
            ("tx", _) => return Err(SetupError::field("tx", value, "ring or calls")),
            ("fanout", "hash") => self.fanout = Fanout::Hash,
            ("fanout", "cpu") => self.fanout = Fanout::Cpu,
            ("fanout", _) => return Err(SetupError::field("fanout", value, "hash or cpu")),
            ("qdisc", "through") => self.qdisc = KernelQdisc::Through,
            ("qdisc", "bypass") => self.qdisc = KernelQdisc::Bypass,
            ("qdisc", _) => return Err(SetupError::field("qdisc", value, "through or bypass")),
            ("mac", text) => self.mac = Some(parse_mac(text)?),
            ("rx-ring", text) => {
                let megabytes: u32 = number("rx-ring", text, "megabytes, 1 to 1024")?;
                self.rx_ring_bytes = megabytes.saturating_mul(1 << 20);
            }
            ("tx-ring", text) => self.tx_ring_frames = number("tx-ring", text, "16 to 4096")?,
            ("retire-ms", text) => self.retire_ms = number("retire-ms", text, "1 to 1000")?,
            _ => {
                let allowed =
                    "rx, tx, fanout, qdisc, mac, rx-ring, tx-ring or retire-ms, with =VALUE";
                return Err(SetupError::field("af_packet option", option.escape_debug(), allowed));
            }
        }
        Ok(())
    }
}

fn number<T: FromStr>(
    field: &'static str,
    text: &str,
    allowed: &'static str,
) -> Result<T, SetupError> {
    text.parse().map_err(|_| SetupError::field(field, text.escape_debug(), allowed))
}

impl FromStr for AfPacketConfig {
    type Err = SetupError;

    /// Reads `IF[,option...]`: `rx=v2|v3|calls`, `tx=ring|calls`, `fanout=hash|cpu`,
    /// `qdisc=through|bypass`, `mac=ADDRESS`, `rx-ring=MEGABYTES`, `tx-ring=FRAMES`, `retire-ms=N`.
    fn from_str(text: &str) -> Result<Self, SetupError> {
        let mut words = text.split(',');
        let mut config = Self::new(words.next().unwrap_or_default());
        let mut retire_ms = None;
        for option in words {
            config.set(option)?;
            if let Some(("retire-ms", text)) = option.split_once('=') {
                retire_ms = Some(text);
            }
        }
        config.validate()?;
        if let Some(text) = retire_ms.filter(|_| config.rx_format != RxFormat::Blocks) {
            return Err(SetupError::field("retire-ms", text, "only with rx=v3"));
        }
        Ok(config)
    }
}

impl fmt::Display for RxFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frames => "TPACKET_V2",
            Self::Blocks => "TPACKET_V3",
            Self::Calls => "recvmmsg",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_the_name() {
        let config: AfPacketConfig = "veth0".parse().expect("a name is enough");
        assert_eq!(config, AfPacketConfig::new("veth0"));
        let config: AfPacketConfig = "eth0,rx=calls,tx=calls".parse().expect("both formats");
        assert_eq!((config.rx_format, config.tx_format), (RxFormat::Calls, TxFormat::Calls));
        let text = "eth0,rx=v3,retire-ms=5,fanout=cpu,qdisc=bypass,mac=02:00:00:00:00:07,rx-ring=4,tx-ring=32";
        let config: AfPacketConfig = text.parse().expect("all options");
        let expected = AfPacketConfig {
            rx_format: RxFormat::Blocks,
            retire_ms: 5,
            fanout: Fanout::Cpu,
            qdisc: KernelQdisc::Bypass,
            mac: Some([2, 0, 0, 0, 0, 7]),
            rx_ring_bytes: 4 << 20,
            tx_ring_frames: 32,
            ..AfPacketConfig::new("eth0")
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn an_error_names_the_wrong_option() {
        for (text, named) in [
            ("", "interface name"),
            ("a/b", "interface name"),
            ("e,rx=v1", "v2, v3 or calls"),
            ("e,rx", "v2, v3 or calls"),
            ("e,tx=v2", "ring or calls"),
            ("e,fanout=qm", "hash or cpu"),
            ("e,qdisc=", "through or bypass"),
            ("e,mac=01:00:00:00:00:00", "unicast"),
            ("e,rx-ring=0", "1 MB"),
            ("e,rx-ring=5000", "1 GB"),
            ("e,rx-ring=lots", "megabytes"),
            ("e,tx-ring=15", "16 to 4096"),
            ("e,retire-ms=0", "1 to 1000"),
            ("e,retire-ms=5", "rx=v3"),
            ("e,retire-ms=5,rx=calls", "rx=v3"),
            ("e,", "af_packet option"),
            ("e,speed=9", "af_packet option"),
        ] {
            let error = text.parse::<AfPacketConfig>().expect_err(text).to_string();
            assert!(error.contains(named), "{text}: {error}");
            assert!(!error.contains('\n'));
        }
        assert!(AfPacketConfig { queues: 0, ..AfPacketConfig::new("e") }.validate().is_err());
        assert!(AfPacketConfig { mtu: Some(67), ..AfPacketConfig::new("e") }.validate().is_err());
    }
}
