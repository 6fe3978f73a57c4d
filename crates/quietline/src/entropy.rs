//! Random numbers from the kernel: the keys of a host and the generator of a context.
//!
//! getrandom(2) of Linux 3.17 and later. It blocks until the kernel's generator has been seeded,
//! once after boot, and then returns up to 256 bytes in one call.

use stack::Secrets;

/// Returns keys for a host, 16 or 32 bytes each from the kernel's random generator. Every call
/// returns different keys.
///
/// # Panics
/// If the kernel returns no random bytes: getrandom(2) is missing before Linux 3.17, or a seccomp
/// filter forbids it.
#[must_use]
pub fn secrets() -> Secrets {
    let drawn = Secrets::try_draw(|key| {
        fill(key);
        Ok::<(), std::convert::Infallible>(())
    });
    match drawn {
        Ok(secrets) => secrets,
    }
}

/// Returns a generator for a [`Cx`](stack::Cx), keyed by the kernel's random generator.
///
/// # Panics
/// As [`secrets`].
#[must_use]
pub fn rng() -> tcp::Rng {
    let mut key = [0; tcp::RNG_KEY_BYTES];
    fill(&mut key);
    tcp::Rng::keyed(&key)
}

/// Fills `key`, which has at most 256 bytes.
fn fill(key: &mut [u8]) {
    let wanted = key.len();
    let filled = rustix::rand::getrandom(key, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(wanted), "getrandom returns all bytes of a key");
}

#[cfg(test)]
mod tests {
    use stack::Secrets;

    use super::{fill, rng, secrets};

    #[test]
    fn every_call_returns_new_keys() {
        let mut keys = [[0_u8; 32]; 2];
        keys.iter_mut().for_each(|key| fill(key));
        assert_ne!(keys[0], keys[1]);
        assert!(keys.iter().all(|key| key.iter().any(|byte| *byte != 0)));
        assert_ne!(rng().next_u64(), rng().next_u64());
        let _: Secrets = secrets();
    }
}
