//! The corpus of the fuzz target `offload`: defines its seeds, and plays every input of it.
//!
//! `UPDATE_CORPUS=1 cargo test -p quietline-sim --test offload` writes the seeds to
//! `fuzz/corpus/offload`. Other files there are inputs that once found a fault, under names that
//! describe it.

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use sim::offload::{self, Outcome};
    use tcp::Rng;

    /// A frame of flow `flow` that continues it.
    const fn next(flow: u8) -> [u8; 3] {
        [flow, 0, 0]
    }

    /// Bits of the first byte that make the lower and the upper half of the flows IPv6.
    const LOWER_V6: u8 = 8;
    const UPPER_V6: u8 = 16;

    fn seeds() -> Vec<(String, Vec<u8>)> {
        let mut seeds = Vec::new();
        for (family, v6) in [("", 0), ("6", LOWER_V6)] {
            for exit in 0..4 {
                let how = exit | v6;
                let train = [next(0), next(0), next(1), next(0), next(1)].concat();
                seeds.push((format!("train{family}-{exit}"), [&[how, 0x1c][..], &train].concat()));
                let long: Vec<u8> = next(2).repeat(60);
                seeds
                    .push((format!("long{family}-{exit}"), [&[how | 4, 0x1c][..], &long].concat()));
                let jumbo = [2, 255, 0].repeat(60);
                seeds
                    .push((format!("big{family}-{exit}"), [&[how | 4, 0x1d][..], &jumbo].concat()));
            }
            for oddity in (128..160).chain([200, 210]) {
                let odd = [0, 0, oddity, 7, 7, 7];
                let train = [next(0), next(0)].concat();
                let train = [&[v6, 0x1c][..], &train, &odd, &train].concat();
                seeds.push((format!("odd{family}-{oddity}"), train));
            }
        }
        seeds
            .push(("polls".into(), [&[0, 0x1c][..], &[0x80, 0, 0, 0xc0, 0, 0].repeat(9)].concat()));
        // Two flows of two address families with almost the same ports, in turn.
        let both = [next(0), next(4)].concat().repeat(20);
        seeds.push(("both-families".into(), [&[UPPER_V6, 0x1c][..], &both].concat()));
        seeds
    }

    fn corpus() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/offload")
    }

    #[test]
    fn every_input_of_the_corpus_passes() {
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            fs::create_dir_all(corpus()).expect("a directory");
            for (name, bytes) in seeds() {
                fs::write(corpus().join(name), bytes).expect("the corpus is writable");
            }
        }
        let mut played = 0;
        for entry in fs::read_dir(corpus()).expect("the corpus") {
            let path = entry.expect("a file").path();
            offload::run(&fs::read(&path).expect("a file"));
            played += 1;
        }
        assert!(played >= seeds().len(), "{played} inputs");
    }

    #[test]
    fn the_seeds_reach_the_code_they_are_named_for() {
        for (name, bytes) in seeds() {
            let Outcome { frames, superframes, superframes_v6, largest, largest_bytes } =
                offload::run(&bytes);
            assert!(frames > 0, "{name}");
            if name == "both-families" {
                assert!(superframes_v6 > 0 && superframes_v6 < superframes, "{superframes_v6}");
            } else {
                let of_v6 = if name.contains("6-") { superframes } else { 0 };
                assert_eq!(superframes_v6, of_v6, "{name}");
            }
            if name.starts_with("big") {
                // At most 17 packets of 9,052 bytes: one that spans two pages needs two frags.
                assert!(largest_bytes > 120_000, "{name}: {largest_bytes} bytes");
            }
            if name.starts_with("long") {
                assert!(superframes > 0 && largest >= 17, "{name}: {largest} segments");
            }
        }
    }

    #[test]
    fn superframes_of_random_trains_are_cut_into_the_original_frames() {
        let mut rng = Rng::new(3);
        let (mut superframes, mut superframes_v6) = (0, 0);
        for _ in 0..3000 {
            let length = 3 * rng.below(200);
            // Mostly continuing frames: a train of irregular frames is not merged.
            let byte = |rng: &mut Rng, at| match (at % 3, rng.below(3)) {
                (2, 1..) => 0,
                _ => u8::try_from(rng.below(256)).expect("a byte"),
            };
            let input: Vec<u8> = (0..length + 2).map(|at| byte(&mut rng, at + 1)).collect();
            let outcome = offload::run(&input);
            superframes += outcome.superframes;
            superframes_v6 += outcome.superframes_v6;
        }
        assert!(superframes > 5000, "{superframes} superframes");
        assert!(superframes_v6 > 2000, "{superframes_v6} superframes of IPv6");
    }
}
