//! Formats of setting values: one type per form, with conversions from and to text.

use std::{ops::RangeInclusive, time::Duration};

use tcp::BufferLimits;

use super::qdisc::QdiscConfig;
use crate::base::tcp_memory::MemoryLimits;

mod words;

pub(super) use words::{
    ArpIgnores, AvailableCongestionControl, BusyPollFlushes, CongestionControl, DefaultQdiscs,
    DevOrphans, DstChecks, DstLayouts, DstRefModes, GroExits, HystartDetects, PacketRecycles,
    Presets, RxContexts, RxDstModes, TsqLimitWord, TsqProtocols,
};

/// Conversion between the text of a setting and a field of type `T`.
pub(super) trait Codec<T> {
    /// Returns the value of `text`, or `None` if it has another form or contains a number outside
    /// `allowed`.
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<T>;

    /// Returns the text of a value, from which `parse` returns the same value.
    fn format(value: &T) -> String;
}

/// Parses exactly `N` decimal numbers within bounds.
fn numbers<const N: usize>(text: &str, allowed: &RangeInclusive<u64>) -> Option<[u64; N]> {
    let mut words = text.split_ascii_whitespace();
    let mut values = [0; N];
    for value in &mut values {
        // `parse` alone would accept a leading plus sign.
        let word = words.next().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))?;
        *value = word.parse().ok().filter(|value| allowed.contains(value))?;
    }
    if words.next().is_some() { None } else { Some(values) }
}

/// One number.
pub(super) struct Number;

impl Number {
    pub(super) const FORM: &str = "a number";
}

impl<T: TryFrom<u64> + ToString> Codec<T> for Number {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<T> {
        let [value] = numbers(text, allowed)?;
        T::try_from(value).ok()
    }

    fn format(value: &T) -> String {
        value.to_string()
    }
}

/// 0 or 1.
pub(super) struct Switch;

impl Switch {
    pub(super) const FORM: &str = "a number";
}

impl Codec<bool> for Switch {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<bool> {
        let [value] = numbers(text, allowed)?;
        Some(value != 0)
    }

    fn format(value: &bool) -> String {
        u8::from(*value).to_string()
    }
}

/// Set of cores as Linux writes it: hexadecimal, in words of 32 bits separated by commas, the
/// highest first.
pub(super) struct Mask;

impl Mask {
    pub(super) const FORM: &str = "a mask of cores in hexadecimal, 32 bits to a word";
}

impl Codec<u64> for Mask {
    fn parse(text: &str, _: &RangeInclusive<u64>) -> Option<u64> {
        let mut mask = 0u64;
        for (index, word) in text.trim().split(',').enumerate() {
            let digits = if index == 0 { 1..=8 } else { 8..=8 };
            if !digits.contains(&word.len()) || !word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return None;
            }
            if mask >> 32 != 0 {
                return None;
            }
            mask = mask << 32 | u64::from_str_radix(word, 16).ok()?;
        }
        Some(mask)
    }

    fn format(value: &u64) -> String {
        match value >> 32 {
            0 => format!("{value:x}"),
            high => format!("{high:x},{:08x}", value & 0xffff_ffff),
        }
    }
}

/// One number, or `default` for the best known value of each device.
pub(super) struct NumberOrDefault;

impl NumberOrDefault {
    pub(super) const FORM: &str = "default, or a number";
}

impl Codec<Option<u32>> for NumberOrDefault {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<Option<u32>> {
        match text.trim() {
            "default" => Some(None),
            text => Number::parse(text, allowed).map(Some),
        }
    }

    fn format(value: &Option<u32>) -> String {
        value.map_or_else(|| "default".to_owned(), |value| Number::format(&value))
    }
}

/// One number that is a power of two.
pub(super) struct PowerOfTwo;

impl PowerOfTwo {
    pub(super) const FORM: &str = "a power of two";
}

impl Codec<u32> for PowerOfTwo {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<u32> {
        let [value] = numbers(text, allowed)?;
        u32::try_from(value).ok().filter(|value| value.is_power_of_two())
    }

    fn format(value: &u32) -> String {
        value.to_string()
    }
}

/// One number that is rounded up to a power of two; 0 stays 0.
pub(super) struct RoundedUp;

impl RoundedUp {
    pub(super) const FORM: &str = "a number";
}

impl Codec<u32> for RoundedUp {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<u32> {
        let [value] = numbers(text, allowed)?;
        match u32::try_from(value).ok()? {
            0 => Some(0),
            value => value.checked_next_power_of_two(),
        }
    }

    fn format(value: &u32) -> String {
        value.to_string()
    }
}

/// Three thresholds of `tcp_mem` or `udp_mem`, in pages.
pub(super) struct Pages;

impl Pages {
    pub(super) const FORM: &str = "three numbers of pages in ascending order, each";
}

impl Codec<MemoryLimits> for Pages {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<MemoryLimits> {
        let [low, pressure, high] = numbers(text, allowed)?;
        (low <= pressure && pressure <= high).then_some(MemoryLimits { low, pressure, high })
    }

    fn format(value: &MemoryLimits) -> String {
        format!("{}\t{}\t{}", value.low, value.pressure, value.high)
    }
}

/// Minimum, default and maximum of a buffer.
pub(super) struct Limits;

impl Limits {
    pub(super) const FORM: &str = "three numbers in ascending order, each";
}

impl Codec<BufferLimits> for Limits {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<BufferLimits> {
        let values = numbers(text, allowed)?;
        let [min, default, max] = values.map(u32::try_from);
        values.is_sorted().then_some(BufferLimits {
            min: min.ok()?,
            default: default.ok()?,
            max: max.ok()?,
        })
    }

    fn format(value: &BufferLimits) -> String {
        format!("{}\t{}\t{}", value.min, value.default, value.max)
    }
}

/// First and last port.
pub(super) struct Ports;

impl Ports {
    pub(super) const FORM: &str = "two numbers in ascending order, each";
}

impl Codec<RangeInclusive<u16>> for Ports {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<RangeInclusive<u16>> {
        let values = numbers(text, allowed)?;
        let [first, last] = values.map(u16::try_from);
        if values.is_sorted() { Some(first.ok()?..=last.ok()?) } else { None }
    }

    fn format(value: &RangeInclusive<u16>) -> String {
        format!("{}\t{}", value.start(), value.end())
    }
}

/// Queueing discipline as `tc qdisc` writes it, or `default`.
pub(super) struct Discipline;

impl Discipline {
    pub(super) const FORM: &str =
        "default, or as tc writes it: noqueue, pfifo_fast, tbf, fq or fq_codel with parameters";
}

impl Codec<Option<QdiscConfig>> for Discipline {
    fn parse(text: &str, _: &RangeInclusive<u64>) -> Option<Option<QdiscConfig>> {
        match text.trim() {
            "default" => Some(None),
            text => text.parse().ok().map(Some),
        }
    }

    fn format(value: &Option<QdiscConfig>) -> String {
        value.as_ref().map_or_else(|| "default".to_owned(), ToString::to_string)
    }
}

/// Time in seconds.
pub(super) struct Seconds;

impl Seconds {
    pub(super) const FORM: &str = "a number of seconds";
}

impl Codec<Duration> for Seconds {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<Duration> {
        let [value] = numbers(text, allowed)?;
        Some(Duration::from_secs(value))
    }

    fn format(value: &Duration) -> String {
        value.as_secs().to_string()
    }
}

/// Time in milliseconds.
pub(super) struct Millis;

impl Millis {
    pub(super) const FORM: &str = "a number of milliseconds";
}

impl Codec<Duration> for Millis {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<Duration> {
        let [value] = numbers(text, allowed)?;
        Some(Duration::from_millis(value))
    }

    fn format(value: &Duration) -> String {
        value.as_millis().to_string()
    }
}

/// Time in microseconds.
pub(super) struct Micros;

impl Micros {
    pub(super) const FORM: &str = "a number of microseconds";
}

impl Codec<Duration> for Micros {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<Duration> {
        let [value] = numbers(text, allowed)?;
        Some(Duration::from_micros(value))
    }

    fn format(value: &Duration) -> String {
        value.as_micros().to_string()
    }
}

/// Time in nanoseconds.
pub(super) struct Nanos;

impl Nanos {
    pub(super) const FORM: &str = "a number of nanoseconds";
}

impl Codec<Duration> for Nanos {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<Duration> {
        let [value] = numbers(text, allowed)?;
        Some(Duration::from_nanos(value))
    }

    fn format(value: &Duration) -> String {
        value.as_nanos().to_string()
    }
}

/// Keys of Fast Open cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastOpenKey {
    /// Key that creates and validates cookies.
    pub primary: [u8; 16],
    /// Previous key, which only validates cookies.
    pub backup: Option<[u8; 16]>,
}

/// One or two keys as Linux writes them. Zero means that no key is set and the host generates one.
pub(super) struct Keys;

impl Keys {
    pub(super) const FORM: &str = "one or two keys, separated by a comma, each of four groups of eight hexadecimal digits joined by \"-\"; a digit is";
}

impl Codec<Option<FastOpenKey>> for Keys {
    fn parse(text: &str, _allowed: &RangeInclusive<u64>) -> Option<Option<FastOpenKey>> {
        let mut keys = text.trim().split(',').map(parse_key);
        let primary = keys.next()??;
        let backup = match keys.next() {
            Some(backup) => Some(backup?),
            None => None,
        };
        if keys.next().is_some() {
            return None;
        }
        Some((primary != [0; 16] || backup.is_some()).then_some(FastOpenKey { primary, backup }))
    }

    fn format(value: &Option<FastOpenKey>) -> String {
        match value {
            None => format_key(&[0; 16]),
            Some(FastOpenKey { primary, backup: None }) => format_key(primary),
            Some(FastOpenKey { primary, backup: Some(backup) }) => {
                format!("{},{}", format_key(primary), format_key(backup))
            }
        }
    }
}

/// Parses a key. Each group is a 32-bit number, stored with its least significant byte first.
fn parse_key(text: &str) -> Option<[u8; 16]> {
    let mut key = [0; 16];
    let mut groups = text.split('-');
    for chunk in key.chunks_mut(4) {
        let group = groups.next()?;
        if group.len() != 8 || !group.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        chunk.copy_from_slice(&u32::from_str_radix(group, 16).ok()?.to_le_bytes());
    }
    groups.next().is_none().then_some(key)
}

fn format_key(key: &[u8; 16]) -> String {
    let group = |chunk: &[u8]| {
        format!("{:08x}", u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]))
    };
    key.chunks(4).map(group).collect::<Vec<_>>().join("-")
}
