//! Configuration of an AF_XDP device, and the checks that need no kernel.
//!
//! Above: `AfXdp::open`, the command line's `--link af_xdp:IF,option...`.
//!
//! Not here: limits of the interface (its MTU, its queues).

use std::str::FromStr;

use super::super::interface::{check_mac, parse_mac};
use super::super::setup_error::SetupError;
use super::super::tun::config::{MTU_MIN, validate_name};

/// Default number of descriptors of a ring. With two chunks for each, a queue has 8 MB at MTU 1500:
/// more than the largest default window, so that a sender within its window cannot overrun a reader
/// that is descheduled for a moment.
pub const RING_DEFAULT: u32 = 2048;

/// Range of ring sizes, powers of two as the kernel requires. The smallest holds one list of
/// packets of the stack.
pub const RING_SIZES: std::ops::RangeInclusive<u32> = 64..=32_768;

/// Maximum number of queues of one device.
pub const QUEUES_MAX: u16 = 256;

/// Bytes that the kernel reserves in front of a received frame (`XDP_PACKET_HEADROOM`).
const RX_HEADROOM: u32 = 256;

/// Ethernet header and an 802.1Q tag.
const LINK_HEADER_LEN_MAX: u32 = 14 + 4;

/// Sizes of a chunk: the kernel's limits, the larger of which is one page.
const CHUNK_LENS: [u32; 2] = [2048, 4096];

/// Largest MTU: an IP packet must fit into one chunk.
pub const MTU_MAX: u32 = CHUNK_LENS[1] - RX_HEADROOM - LINK_HEADER_LEN_MAX;

const _: () = assert!(MTU_MAX == 3822);

/// Hook of the program, and whether the kernel copies frames between its memory and the UMEM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// The best mode that the driver supports: native with zero-copy, native with copies, generic.
    #[default]
    Auto,
    /// On socket buffers (XDP_FLAGS_SKB_MODE). Works with every driver.
    Generic,
    /// In the driver, with copies (XDP_FLAGS_DRV_MODE, XDP_COPY).
    Native,
    /// In the driver, without copies (XDP_FLAGS_DRV_MODE, XDP_ZEROCOPY).
    ZeroCopy,
}

/// Makes the waiting thread poll the device, with the device's interrupts off
/// (`SO_PREFER_BUSY_POLL`).
///
/// Takes effect only if `napi_defer_hard_irqs` and `gro_flush_timeout` are set in the interface's
/// /sys/class/net directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    /// Duration of polling in one receive (`SO_BUSY_POLL`), in microseconds.
    pub usecs: u32,
    /// Maximum number of frames of one poll (`SO_BUSY_POLL_BUDGET`).
    pub budget: u32,
}

/// Default number of frames of one busy poll: eight times Linux's `BUSY_POLL_BUDGET`, as one poll
/// of the stack.
const BUSY_POLL_BUDGET: u32 = 64;

/// Configuration of a stack on queues of an interface. Start from [`AfXdpConfig::new`], or parse
/// `IF[,option...]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfXdpConfig {
    /// Name of an existing interface that is up. No default.
    pub interface: String,
    /// Mode of the device. Default [`XdpMode::Auto`].
    pub mode: XdpMode,
    /// First queue of the interface that the device takes over. Default 0.
    pub first_queue: u16,
    /// Number of queues that the device takes over; `None` is all queues in use. Frames of other
    /// queues stay with the kernel.
    pub queues: Option<u16>,
    /// Descriptors of each ring, a power of two from 64 to 32768. Default 2048.
    pub ring: u32,
    /// Maximum size of an IP packet, at most the interface's MTU and 3822; `None` is the
    /// interface's MTU.
    pub mtu: Option<u32>,
    /// Ethernet address of the stack; `None` is the interface's own. Another address makes the
    /// interface promiscuous.
    pub mac: Option<[u8; 6]>,
    /// Busy polling. Default `None`: the device interrupts.
    pub busy_poll: Option<BusyPoll>,
    /// Accepts TCP checksums of received segments without computing them, so corruption between the
    /// sender and this interface is not detected. For a veth whose other end leaves checksums
    /// partial, which this API does not report. In generic mode turn segmentation off at the other
    /// end as well (`ethtool -K PEER tso off gso off`). Default false.
    pub trust_checksums: bool,
}

impl AfXdpConfig {
    /// Returns a configuration of all queues of `interface` in the best mode.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            mode: XdpMode::Auto,
            first_queue: 0,
            queues: None,
            ring: RING_DEFAULT,
            mtu: None,
            mac: None,
            busy_poll: None,
            trust_checksums: false,
        }
    }

    /// Checks everything that needs no kernel.
    ///
    /// # Errors
    /// For the first field that is out of range.
    pub fn validate(&self) -> Result<(), SetupError> {
        validate_name(&self.interface)?;
        if self.queues.is_some_and(|queues| queues == 0 || queues > QUEUES_MAX) {
            let queues = self.queues.unwrap_or(0);
            return Err(SetupError::field("queues", queues, "1 to 256"));
        }
        if !self.ring.is_power_of_two() || !RING_SIZES.contains(&self.ring) {
            return Err(SetupError::field("ring", self.ring, "a power of two from 64 to 32768"));
        }
        if let Some(mtu) = self.mtu
            && !(MTU_MIN..=MTU_MAX).contains(&mtu)
        {
            return Err(SetupError::field("mtu", mtu, "68 to 3822 with af_xdp"));
        }
        if let Some(BusyPoll { usecs, budget }) = self.busy_poll {
            if !(1..=1_000_000).contains(&usecs) {
                return Err(SetupError::field("busy-poll", usecs, "1 to 1000000 microseconds"));
            }
            if !(1..=65_535).contains(&budget) {
                return Err(SetupError::field("busy-poll-budget", budget, "1 to 65535"));
            }
        }
        self.mac.map_or(Ok(()), check_mac)
    }

    /// Parses one `name` or `name=value` of a list.
    fn set(&mut self, option: &str) -> Result<(), SetupError> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "mode" => self.mode = mode(value)?,
            "first-queue" => self.first_queue = number("first-queue", value)?,
            "queues" => self.queues = Some(number("queues", value)?),
            "ring" => self.ring = number("ring", value)?,
            "mac" => self.mac = Some(parse_mac(value)?),
            "busy-poll" => self.busy_poll_mut().usecs = number("busy-poll", value)?,
            "busy-poll-budget" => {
                self.busy_poll_mut().budget = number("busy-poll-budget", value)?;
            }
            "trust-checksums" if value.is_empty() => self.trust_checksums = true,
            _ => return Err(SetupError::field("option", option.escape_debug(), OPTIONS)),
        }
        Ok(())
    }

    fn busy_poll_mut(&mut self) -> &mut BusyPoll {
        // `validate` refuses a budget without a time.
        self.busy_poll.get_or_insert(BusyPoll { usecs: 0, budget: BUSY_POLL_BUDGET })
    }
}

/// The options of the text form.
const OPTIONS: &str = "mode=auto|generic|native|zerocopy, first-queue=N, queues=N, ring=N, mac=ADDRESS, \
     busy-poll=USECS, busy-poll-budget=N or trust-checksums";

impl FromStr for AfXdpConfig {
    type Err = SetupError;

    /// Parses `IF[,option...]`.
    fn from_str(text: &str) -> Result<Self, SetupError> {
        let mut parts = text.split(',');
        let mut config = Self::new(parts.next().unwrap_or(""));
        for option in parts {
            config.set(option)?;
        }
        config.validate()?;
        Ok(config)
    }
}

/// Returns the size of the chunk for frames of `mtu`; `None` if no chunk is large enough.
pub(super) fn chunk_len(mtu: u32) -> Option<u32> {
    CHUNK_LENS.into_iter().find(|len| mtu <= len - RX_HEADROOM - LINK_HEADER_LEN_MAX)
}

fn mode(word: &str) -> Result<XdpMode, SetupError> {
    match word {
        "auto" => Ok(XdpMode::Auto),
        "generic" => Ok(XdpMode::Generic),
        "native" => Ok(XdpMode::Native),
        "zerocopy" => Ok(XdpMode::ZeroCopy),
        _ => {
            let allowed = "auto, generic, native or zerocopy";
            Err(SetupError::field("mode", word.escape_debug(), allowed))
        }
    }
}

fn number<T: FromStr>(field: &'static str, value: &str) -> Result<T, SetupError> {
    value.parse().map_err(|_| SetupError::field(field, value.escape_debug(), "a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_with_options_is_parsed() {
        let config: AfXdpConfig = "eth0".parse().expect("a name is enough");
        assert_eq!(config, AfXdpConfig::new("eth0"));
        let text = "veth1,mode=native,first-queue=1,queues=2,ring=512,mac=02:00:00:00:00:05,\
                    busy-poll=50,busy-poll-budget=16,trust-checksums";
        let config: AfXdpConfig = text.parse().expect("all options");
        assert_eq!(
            config,
            AfXdpConfig {
                mode: XdpMode::Native,
                first_queue: 1,
                queues: Some(2),
                ring: 512,
                mac: Some([2, 0, 0, 0, 0, 5]),
                busy_poll: Some(BusyPoll { usecs: 50, budget: 16 }),
                trust_checksums: true,
                ..AfXdpConfig::new("veth1")
            }
        );
    }

    #[test]
    fn refusals_name_the_field() {
        for (text, word) in [
            ("", "interface name"),
            ("a/b", "interface name"),
            ("eth0,", "option"),
            ("eth0,mode=fast", "mode"),
            ("eth0,queues=0", "queues"),
            ("eth0,first-queue=x", "first-queue"),
            ("eth0,queues=-1", "queues"),
            ("eth0,ring=1000", "ring"),
            ("eth0,ring=32", "ring"),
            ("eth0,ring=65536", "ring"),
            ("eth0,mac=03:00:00:00:00:05", "mac"),
            ("eth0,busy-poll=0", "busy-poll"),
            ("eth0,busy-poll-budget=8", "busy-poll"),
            ("eth0,trust-checksums=1", "option"),
            ("eth0,zero", "option"),
        ] {
            let error = text.parse::<AfXdpConfig>().expect_err(text).to_string();
            assert!(error.starts_with(word) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_frame_fits_into_its_chunk() {
        assert_eq!(chunk_len(1500), Some(2048));
        assert_eq!(chunk_len(1774), Some(2048));
        assert_eq!(chunk_len(1775), Some(4096));
        assert_eq!(chunk_len(MTU_MAX), Some(4096));
        assert_eq!(chunk_len(MTU_MAX + 1), None);
        let config = AfXdpConfig { mtu: Some(MTU_MAX + 1), ..AfXdpConfig::new("eth0") };
        assert!(config.validate().is_err());
    }
}
