//! The keys of a Fast Open server. They make the cookie of a client's address, and check the cookie
//! of a SYN.
//!
//! RFC 7413 §4.1. Not here: the cookie as bytes of an option (`wire::cookie`), the client's cache
//! (`stack::fast_open`).

use core::fmt;

use siphasher::sip::SipHasher24;

use crate::wire::{
    cookie::Cookie,
    four_tuple::{FourTuple, write_address},
};

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

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
    Cookie::of_hash(key.hash(&bytes[..end]).to_le_bytes())
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
}
