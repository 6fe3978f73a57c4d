//! Cookies: what a client shows to have its data taken from a SYN, and the server's keys that make them.
//!
//! RFC 7413 §4.1. Not here: the option that carries one (`option`), who keeps a client's (`stack::fast_open`).

use core::fmt;

use siphasher::sip::SipHasher24;

use crate::four_tuple::{FourTuple, write_address};

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

/// Bytes of the longest cookie (RFC 7413 §4.1.1).
const COOKIE_BYTES_MAX: usize = 16;
/// Bytes of the shortest.
const COOKIE_BYTES_MIN: usize = 4;

/// What the Fast Open option carries; empty when a client asks for a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cookie {
    /// The option is the experimental one.
    experimental: bool,
    len: u8,
    bytes: [u8; COOKIE_BYTES_MAX],
}

impl Cookie {
    /// A client asks for one.
    pub const REQUEST: Self = Self { experimental: false, len: 0, bytes: [0; COOKIE_BYTES_MAX] };

    /// A cookie of these bytes, or a request; `None` for a length that RFC 7413 §4.1.1 does not allow.
    #[must_use]
    pub fn new(value: &[u8]) -> Option<Self> {
        let allowed = value.is_empty()
            || ((COOKIE_BYTES_MIN..=COOKIE_BYTES_MAX).contains(&value.len())
                && value.len().is_multiple_of(2));
        if !allowed {
            return None;
        }
        let mut bytes = [0; COOKIE_BYTES_MAX];
        bytes[..value.len()].copy_from_slice(value);
        Some(Self { experimental: false, len: u8::try_from(value.len()).ok()?, bytes })
    }

    /// The value.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The same in the experimental option (kind 254 with the number 0xF989), or in the one of RFC 7413.
    #[must_use]
    pub const fn in_form(self, experimental: bool) -> Self {
        Self { experimental, ..self }
    }

    /// It is carried by the experimental option.
    #[must_use]
    pub const fn is_experimental(&self) -> bool {
        self.experimental
    }

    /// A client asks for a cookie.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        self.len == 0
    }
}

/// Which key a cookie was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUsed {
    /// The present one.
    Primary,
    /// The one before: the client gets a new cookie.
    Backup,
}

/// The server's keys: one makes cookies, both read them, so that keys can be exchanged without a gap (RFC 7413 §4.1.2).
#[derive(Clone)]
pub struct FastOpenKeys {
    primary: SipHasher24,
    backup: Option<SipHasher24>,
}

impl FastOpenKeys {
    /// Keys as `tcp_fastopen_key` gives them.
    #[must_use]
    pub fn new(primary: &[u8; KEY_BYTES], backup: Option<&[u8; KEY_BYTES]>) -> Self {
        Self {
            primary: SipHasher24::new_with_key(primary),
            backup: backup.map(SipHasher24::new_with_key),
        }
    }

    /// The cookie of the client of `tuple`: of its address and ours, not of ports. It is the one that Linux makes with the same
    /// key, so that the servers behind one address may be of both kinds.
    #[must_use]
    pub fn cookie(&self, tuple: &FourTuple) -> Cookie {
        cookie(&self.primary, tuple)
    }

    /// Whether `offered` is the client's cookie, and under which key.
    #[must_use]
    pub fn check(&self, tuple: &FourTuple, offered: &Cookie) -> Option<KeyUsed> {
        let offered = &offered.in_form(false);
        if *offered == cookie(&self.primary, tuple) {
            return Some(KeyUsed::Primary);
        }
        let backup = self.backup.as_ref()?;
        (*offered == cookie(backup, tuple)).then_some(KeyUsed::Backup)
    }
}

fn cookie(key: &SipHasher24, tuple: &FourTuple) -> Cookie {
    let mut bytes = [0; 32];
    let client = write_address(&mut bytes, tuple.remote.ip());
    let end = client + write_address(&mut bytes[client..], tuple.local.ip());
    let hash = key.hash(&bytes[..end]).to_le_bytes();
    let mut value = [0; COOKIE_BYTES_MAX];
    value[..8].copy_from_slice(&hash);
    Cookie { experimental: false, len: 8, bytes: value }
}

impl fmt::Debug for FastOpenKeys {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastOpenKeys").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(client: &str) -> FourTuple {
        FourTuple::new("10.0.0.1:80".parse().unwrap(), client.parse().unwrap())
    }

    #[test]
    fn a_cookie_is_of_the_address_not_of_the_port() {
        let keys = FastOpenKeys::new(&[1; KEY_BYTES], None);
        let cookie = keys.cookie(&tuple("10.0.0.2:1000"));
        assert_eq!(cookie.as_bytes().len(), 8);
        assert_eq!(keys.check(&tuple("10.0.0.2:2000"), &cookie), Some(KeyUsed::Primary));
        assert_eq!(keys.check(&tuple("10.0.0.3:1000"), &cookie), None);
        assert_eq!(keys.check(&tuple("10.0.0.2:1000"), &Cookie::REQUEST), None);
    }

    #[test]
    fn a_key_that_was_exchanged_still_reads() {
        let old = FastOpenKeys::new(&[1; KEY_BYTES], None);
        let new = FastOpenKeys::new(&[2; KEY_BYTES], Some(&[1; KEY_BYTES]));
        let cookie = old.cookie(&tuple("10.0.0.2:1000"));
        assert_eq!(new.check(&tuple("10.0.0.2:1000"), &cookie), Some(KeyUsed::Backup));
        assert_ne!(new.cookie(&tuple("10.0.0.2:1000")), cookie);
    }

    #[test]
    fn lengths_are_those_of_the_rfc() {
        for len in 0..=20 {
            let allowed = matches!(len, 0 | 4 | 6 | 8 | 10 | 12 | 14 | 16);
            assert_eq!(Cookie::new(&[7; 20][..len]).is_some(), allowed, "{len}");
        }
    }
}
