//! The engine's source of chance: small, fast, seeded.
//!
//! xoshiro256++ filled from SplitMix64 (Blackman and Vigna). One seed gives one sequence, which
//! lets the simulator replay a run.
//!
//! Not for secrets: an observer of some outputs can compute the rest. What an outsider must not
//! guess comes from [`crate::isn`] and [`crate::ports`], whose secrets the stack draws from the
//! operating system.

/// A seeded generator of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator whose whole sequence follows from `seed`; any seed will do.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut fill = seed;
        Self { state: core::array::from_fn(|_| split_mix(&mut fill)) }
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// The next 32 bits: the upper half of [`Rng::next_u64`].
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// A number below `bound`; 0 when `bound` is 0.
    ///
    /// Multiply and shift: the bias is below `bound` / 2^32, which no caller here can notice.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
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
    use super::{Rng, split_mix};

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
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let got: [u64; 4] = core::array::from_fn(|_| rng.next_u64());
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
    fn below_stays_below_and_reaches_all() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 6];
        for _ in 0..6_000 {
            seen[rng.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1_200).contains(&count)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn fill_covers_a_ragged_tail() {
        let mut bytes = [0u8; 37];
        Rng::new(3).fill(&mut bytes);
        assert!(bytes[32..].iter().any(|&byte| byte != 0));
        assert!(bytes.iter().filter(|&&byte| byte == 0).count() < 6);
    }
}
