//! Secret keys of a host: for sequence numbers, ports, cookies, identifications, and the hashes of
//! its tables.
//!
//! Each key is drawn separately, 16 or 32 bytes from a source given by the caller, so no key can be
//! derived from another. This crate reads nothing from the operating system: crate `quietline`
//! provides the kernel's random generator.
//!
//! Not here: the generator of a context ([`tcp::Rng`]), which draws single-use values.

use std::{convert::Infallible, fmt};

use tcp::open::{fast_open::keys::KEY_BYTES, isn::SECRET_BYTES};

/// Length of a SipHash key in bytes.
const HASH_KEY_BYTES: usize = 16;

/// A key that `Debug` does not print.
#[derive(Clone, Copy)]
pub(crate) struct HashKey(pub(crate) [u8; HASH_KEY_BYTES]);

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// The keys of one host. No two hosts share them, and there is no default.
#[derive(Clone)]
pub struct Secrets {
    /// Key of the path MTU exception buckets.
    pub(crate) exceptions: HashKey,
    /// Key of the connection and listener buckets, and of the packet flow hash.
    pub(crate) demux: HashKey,
    /// Key of initial sequence numbers and timestamp offsets.
    pub(crate) isn: [u8; SECRET_BYTES],
    /// Key of the local ports of active opens.
    pub(crate) ports: [u8; SECRET_BYTES],
    /// Key of SYN cookies.
    pub(crate) syn_cookies: [u8; SECRET_BYTES],
    /// Key of Fast Open cookies.
    pub(crate) fast_open: HashKey,
    /// Key of IPv4 identifications.
    pub(crate) ip_ids: [u8; SECRET_BYTES],
    /// Key of IPv6 interface identifiers (RFC 7217).
    pub(crate) interface_ids: HashKey,
}

impl Secrets {
    /// Draws keys from `fill`, which must fill a slice with unpredictable bytes.
    ///
    /// # Errors
    /// Errors of `fill`.
    pub fn try_draw<E>(mut fill: impl FnMut(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut secrets = Self {
            exceptions: HashKey([0; HASH_KEY_BYTES]),
            demux: HashKey([0; HASH_KEY_BYTES]),
            isn: [0; SECRET_BYTES],
            ports: [0; SECRET_BYTES],
            syn_cookies: [0; SECRET_BYTES],
            fast_open: HashKey([0; KEY_BYTES]),
            ip_ids: [0; SECRET_BYTES],
            interface_ids: HashKey([0; HASH_KEY_BYTES]),
        };
        let Self { exceptions, demux, isn, ports, syn_cookies, fast_open, ip_ids, interface_ids } =
            &mut secrets;
        // Replays depend on this order: a seed must keep giving the same keys.
        let keys: [&mut [u8]; 8] = [
            &mut exceptions.0,
            &mut demux.0,
            isn,
            ports,
            syn_cookies,
            &mut fast_open.0,
            ip_ids,
            &mut interface_ids.0,
        ];
        for key in keys {
            fill(key)?;
        }
        Ok(secrets)
    }

    /// Derives keys from `seed`. Only for runs that must repeat: 64 bits can be searched
    /// exhaustively, and the generator does not hide its seed.
    #[must_use]
    pub fn replay(seed: u64) -> Self {
        let mut rng = tcp::Rng::new(seed);
        let drawn = Self::try_draw(|key| {
            rng.fill(key);
            Ok::<(), Infallible>(())
        });
        match drawn {
            Ok(secrets) => secrets,
        }
    }
}

impl fmt::Debug for Secrets {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::Secrets;

    /// Returns every key, in the order of the struct.
    fn keys(secrets: &Secrets) -> [&[u8]; 8] {
        let Secrets {
            exceptions,
            demux,
            isn,
            ports,
            syn_cookies,
            fast_open,
            ip_ids,
            interface_ids,
        } = secrets;
        [&exceptions.0, &demux.0, isn, ports, syn_cookies, &fast_open.0, ip_ids, &interface_ids.0]
    }

    #[test]
    fn every_key_is_drawn_completely_from_the_source() {
        let mut drawn = Vec::new();
        let secrets = Secrets::try_draw(|key| {
            // The source numbers its bytes, which would reveal a key that is too short or shares
            // bytes with another.
            for byte in key.iter_mut() {
                *byte =
                    u8::try_from(drawn.len()).expect("all keys together have fewer than 256 bytes");
                drawn.push(*byte);
            }
            Ok::<(), ()>(())
        });
        let secrets = secrets.expect("the source has no error");
        assert_eq!(keys(&secrets).concat(), drawn);
        assert!(keys(&secrets).iter().all(|key| key.len() >= 16));
    }

    #[test]
    fn a_source_that_fails_gives_no_keys() {
        let mut calls = 0;
        let failing = |_: &mut [u8]| {
            calls += 1;
            if calls == 3 { Err("empty") } else { Ok(()) }
        };
        assert_eq!(Secrets::try_draw(failing).err(), Some("empty"));
    }

    #[test]
    fn a_seed_gives_the_same_keys_again_and_other_seeds_other_keys() {
        let (same, other) = (Secrets::replay(7), Secrets::replay(8));
        assert_eq!(keys(&Secrets::replay(7)), keys(&same));
        assert!(keys(&same).iter().zip(keys(&other)).all(|(a, b)| **a != *b));
    }

    #[test]
    fn debug_shows_no_key() {
        assert_eq!(format!("{:?}", Secrets::replay(1)), "Secrets { .. }");
    }
}
