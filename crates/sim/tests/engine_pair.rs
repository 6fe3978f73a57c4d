//! The corpus of the fuzz target `engine`: plays every input of it, and random strings, in
//! different modes.
//!
//! `PLAY=file cargo test -p quietline-sim --test engine_pair` plays one input. An input with which
//! the fuzzer found a fault is added to `fuzz/corpus/engine`, under a name that describes the
//! fault.

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use sim::{engine_pair, modes};
    use tcp::Rng;

    fn corpus() -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/engine"))
    }

    #[test]
    fn every_input_of_the_corpus_passes() {
        if let Ok(path) = std::env::var("PLAY") {
            println!("{:?}", engine_pair::run(&fs::read(path).expect("PLAY names an input")));
            return;
        }
        let failed = modes::failures(&corpus(), |input, settings| {
            engine_pair::run_in(input, settings);
        });
        assert_eq!(failed, [""; 0]);
    }

    #[test]
    fn random_inputs_pass() {
        let (mut rng, mut mode) = (Rng::new(1), Rng::new(2));
        let (mut established, mut complete, mut received) = (0, 0, 0);
        for _ in 0..2000 {
            let mut input = vec![0; 20 + rng.below(600) as usize];
            rng.fill(&mut input);
            // Reach ESTABLISHED without interference.
            input[0] |= 4;
            let outcome = engine_pair::run_in(&input, &modes::settings(&modes::draw(&mut mode)));
            established += u32::from(outcome.established);
            complete += u32::from(outcome.complete);
            received += outcome.received;
        }
        assert!(established > 1000 && received > 1_000_000, "{established} {received}");
        assert!(complete > 0, "no run was complete");
    }

    /// No segment is forged, dropped or changed.
    #[test]
    fn without_an_adversary_everything_arrives() {
        let write = [18, 0xff, 0xfc, 1, 0x80 | 18, 0x40, 0, 1];
        let outcome = engine_pair::run(&[&[4, 0, 0, 0, 0][..], &write, &[16, 31], &write].concat());
        assert!(outcome.established && outcome.complete, "{outcome:?}");
        assert!(outcome.received > 0x10_000, "{outcome:?}");
    }

    #[test]
    fn both_ends_may_open_simultaneously() {
        let outcome = engine_pair::run(&[6, 0, 0, 0, 0, 18, 1, 0, 1]);
        assert!(outcome.established && outcome.complete, "{outcome:?}");
        assert_eq!(outcome.received, 0x100);
    }
}
