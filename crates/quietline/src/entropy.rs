//! Chance from the kernel: the keys of a host and the generator of a context.
//!
//! getrandom(2) of Linux 3.17 and later. It waits until the kernel's generator has been seeded, once after boot, and then gives
//! up to 256 bytes in one piece.

use stack::Secrets;

/// Keys for a host, 16 or 32 bytes each from the kernel's random generator. Two hosts never have the same.
///
/// # Panics
/// If the kernel gives no random bytes: getrandom(2) is missing before Linux 3.17, or forbidden by a seccomp filter.
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

/// A generator for a [`Cx`](stack::Cx), keyed by the kernel's random generator.
///
/// # Panics
/// As [`secrets`].
#[must_use]
pub fn rng() -> tcp::Rng {
    let mut key = [0; tcp::RNG_KEY_BYTES];
    fill(&mut key);
    tcp::Rng::keyed(&key)
}

/// Fills a key, of at most 256 bytes.
fn fill(key: &mut [u8]) {
    let wanted = key.len();
    let filled = rustix::rand::getrandom(key, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(wanted), "getrandom gives all bytes of a key");
}

#[cfg(test)]
mod tests {
    use stack::Secrets;

    use super::{fill, rng, secrets};

    #[test]
    fn keys_are_drawn_anew_each_time() {
        let mut keys = [[0_u8; 32]; 2];
        keys.iter_mut().for_each(|key| fill(key));
        assert_ne!(keys[0], keys[1]);
        assert!(keys.iter().all(|key| key.iter().any(|byte| *byte != 0)));
        assert_ne!(rng().next_u64(), rng().next_u64());
        let _: Secrets = secrets();
    }
}
