//! `tcp_fastopen_key`.

use std::ops::RangeInclusive;

use super::Codec;

/// Keys of Fast Open cookies: the present one, and the one before, which is still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastOpenKey {
    /// Makes cookies.
    pub primary: [u8; 16],
    /// Is only read.
    pub backup: Option<[u8; 16]>,
}

/// One or two keys as Linux writes them. Zero is none: the host draws its own.
pub(in crate::sysctl) struct Keys;

impl Keys {
    pub(in crate::sysctl) const FORM: &str = "one or two keys, separated by a comma, each of four groups of eight hexadecimal digits joined by \"-\"; a digit is";
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

/// The groups are numbers, least significant byte first in memory.
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
