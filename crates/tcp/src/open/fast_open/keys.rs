//! Keys of a Fast Open server, which generates the cookie of a client address with them and
//! verifies the cookie of a SYN.
//!
//! RFC 7413 §4.1. Not here: the cookie as bytes of an option (`wire::cookie`), the client's cache
//! (`stack::socket::fast_open`).

use core::fmt;

use siphasher::sip::SipHasher24;

use crate::wire::{
    cookie::Cookie,
    four_tuple::{FourTuple, write_address},
};

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

/// The key that a cookie was generated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUsed {
    /// The current key.
    Primary,
    /// The previous key: the client gets a new cookie.
    Backup,
}

/// The server's keys. The primary generates cookies, and both verify them, so that a key can be
/// replaced without invalidating cookies at once (RFC 7413 §4.1.2).
#[derive(Clone)]
pub struct FastOpenKeys {
    primary: SipHasher24,
    backup: Option<SipHasher24>,
}

impl FastOpenKeys {
    /// Creates the keys from the values of `tcp_fastopen_key`.
    #[must_use]
    pub fn new(primary: &[u8; KEY_BYTES], backup: Option<&[u8; KEY_BYTES]>) -> Self {
        Self {
            primary: SipHasher24::new_with_key(primary),
            backup: backup.map(SipHasher24::new_with_key),
        }
    }

    /// Returns the cookie for `tuple`: a hash of the client's and the server's address, without
    /// ports. With the same key Linux computes the same cookie, so that servers of both kinds can
    /// share one address.
    #[must_use]
    pub fn cookie(&self, tuple: &FourTuple) -> Cookie {
        cookie(&self.primary, tuple)
    }

    /// Returns the key that `offered` was generated with, if it is this client's cookie.
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
    /// Omits the secret.
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
    fn a_cookie_depends_on_the_address_and_not_on_the_port() {
        let keys = FastOpenKeys::new(&[1; KEY_BYTES], None);
        let cookie = keys.cookie(&tuple("10.0.0.2:1000"));
        assert_eq!(cookie.as_bytes().len(), 8);
        assert_eq!(keys.check(&tuple("10.0.0.2:2000"), &cookie), Some(KeyUsed::Primary));
        assert_eq!(keys.check(&tuple("10.0.0.3:1000"), &cookie), None);
        assert_eq!(keys.check(&tuple("10.0.0.2:1000"), &Cookie::REQUEST), None);
    }

    #[test]
    fn the_backup_key_still_verifies_cookies() {
        let old = FastOpenKeys::new(&[1; KEY_BYTES], None);
        let new = FastOpenKeys::new(&[2; KEY_BYTES], Some(&[1; KEY_BYTES]));
        let cookie = old.cookie(&tuple("10.0.0.2:1000"));
        assert_eq!(new.check(&tuple("10.0.0.2:1000"), &cookie), Some(KeyUsed::Backup));
        assert_ne!(new.cookie(&tuple("10.0.0.2:1000")), cookie);
    }
}
