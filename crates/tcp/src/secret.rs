//! The secret behind numbers that an outsider must not predict: initial sequence numbers, ports, SYN cookies.
//!
//! Each of them needs two functions that know nothing of each other, so a secret is two keys of SipHash-2-4.

use siphasher::sip::SipHasher24;

/// Bytes of a secret, which must come from the operating system's source of randomness except in tests and simulations.
pub const SECRET_BYTES: usize = 32;

/// The two functions of a secret.
pub(crate) fn keyed_pair(secret: &[u8; SECRET_BYTES]) -> [SipHasher24; 2] {
    let (mut first, mut second) = ([0; 16], [0; 16]);
    first.copy_from_slice(&secret[..16]);
    second.copy_from_slice(&secret[16..]);
    [first, second].map(|key| SipHasher24::new_with_key(&key))
}
