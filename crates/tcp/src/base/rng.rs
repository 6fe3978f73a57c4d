//! The engine's random numbers: a keyed generator, and a seeded one for replays.
//!
//! The keyed generator is SipHash-2-4 over a counter: with a key from the operating system, an
//! observer of any number of outputs cannot compute another one. The seeded generator is
//! xoshiro256++ filled from SplitMix64 (Blackman and Vigna): one seed gives one sequence, with
//! which the simulator can repeat a simulation. A few of its outputs reveal all others, so it is no
//! source of secrets.
//!
//! Not here: the keyed hashes behind sequence numbers, ports and cookies (`open::isn::keyed_pair`).

use core::fmt;

use siphasher::sip::SipHasher24;

/// A generator of random numbers.
#[derive(Clone)]
pub struct Rng {
    source: Source,
}

/// Bytes of the key of [`Rng::keyed`].
pub const RNG_KEY_BYTES: usize = 16;

#[derive(Clone)]
enum Source {
    Keyed { key: SipHasher24, counter: u64 },
    Replay([u64; 4]),
}

impl Rng {
    /// Returns a generator that cannot be predicted without `key`, which must come from the
    /// operating system.
    #[must_use]
    pub fn keyed(key: &[u8; RNG_KEY_BYTES]) -> Self {
        Self { source: Source::Keyed { key: SipHasher24::new_with_key(key), counter: 0 } }
    }

    /// Returns a generator whose whole sequence follows from `seed`, which may be any number.
    /// Simulations, tests and simulated links use it, because they must be repeatable.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut fill = seed;
        Self { source: Source::Replay(core::array::from_fn(|_| split_mix(&mut fill))) }
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        match &mut self.source {
            Source::Replay(state) => xoshiro(state),
            Source::Keyed { key, counter } => {
                *counter += 1;
                key.hash(&counter.to_le_bytes())
            }
        }
    }

    /// Returns the next 32 bits: the upper half of [`Rng::next_u64`].
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Returns a number below `bound`, or 0 when `bound` is 0.
    ///
    /// The number is the upper half of a product. Its bias is below `bound` / 2^32, which is
    /// negligible for every caller.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    /// Fills `bytes` with random numbers.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

impl fmt::Debug for Rng {
    /// Omits the state, from which all further numbers follow.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rng").finish_non_exhaustive()
    }
}

/// One step of xoshiro256++.
#[inline]
fn xoshiro(state: &mut [u64; 4]) -> u64 {
    let [a, b, c, d] = *state;
    let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
    let (c, d) = (c ^ a, d ^ b);
    *state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
    result
}

/// One step of SplitMix64.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::{RNG_KEY_BYTES, Rng, split_mix, xoshiro};

    #[test]
    fn split_mix_matches_the_published_vector() {
        let mut state = 1_234_567;
        let got: [u64; 5] = core::array::from_fn(|_| split_mix(&mut state));
        assert_eq!(
            got,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
    }

    #[test]
    fn xoshiro_matches_the_published_vector() {
        let mut state = [1, 2, 3, 4];
        let got: [u64; 4] = core::array::from_fn(|_| xoshiro(&mut state));
        assert_eq!(got, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn one_seed_gives_one_sequence() {
        let (mut a, mut b, mut c) = (Rng::new(7), Rng::new(7), Rng::new(8));
        let same: [u64; 8] = core::array::from_fn(|_| a.next_u64());
        assert_eq!(same, core::array::from_fn(|_| b.next_u64()));
        assert_ne!(same, core::array::from_fn(|_| c.next_u64()));
    }

    #[test]
    fn different_keys_give_different_numbers() {
        let draw = |key: [u8; RNG_KEY_BYTES]| -> [u64; 64] {
            let mut rng = Rng::keyed(&key);
            core::array::from_fn(|_| rng.next_u64())
        };
        let numbers = draw([1; RNG_KEY_BYTES]);
        assert_eq!(numbers, draw([1; RNG_KEY_BYTES]));
        // Flipping one bit of the key changes every number.
        let mut other = [1; RNG_KEY_BYTES];
        other[15] ^= 0x80;
        assert!(numbers.iter().zip(draw(other)).all(|(a, b)| *a != b));
        // 4,096 bits, half of them ones on average, with a standard deviation of 32.
        let ones: u32 = numbers.iter().map(|number| number.count_ones()).sum();
        assert!((1_888..2_208).contains(&ones), "{ones} of 4,096 bits are ones");
    }

    #[test]
    fn debug_output_hides_the_state() {
        assert_eq!(format!("{:?}", Rng::new(1)), "Rng { .. }");
        assert_eq!(format!("{:?}", Rng::keyed(&[1; RNG_KEY_BYTES])), "Rng { .. }");
    }

    #[test]
    fn below_returns_every_number_below_its_bound() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 6];
        for _ in 0..6_000 {
            seen[rng.below(6) as usize] += 1;
        }
        assert!(
            seen.iter().all(|&count| (800..1_200).contains(&count)),
            "the numbers are not uniform: {seen:?}"
        );
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn fill_also_fills_an_incomplete_last_word() {
        let mut bytes = [0u8; 37];
        Rng::new(3).fill(&mut bytes);
        assert!(bytes[32..].iter().any(|&byte| byte != 0));
        assert!(bytes.iter().filter(|&&byte| byte == 0).count() < 6);
    }
}
