//! Hostile servers for the fuzz targets `dhcp` and `dns`, with the properties that they check.
//!
//! Above: `fuzz/fuzz_targets`, and the tests below, which play the committed inputs. Below:
//! `dhcp::Client` and `dns::Resolver`, both in virtual time.
//!
//! Each run reads its steps from the front of an input. Any bytes are a valid input.

mod dhcp;
mod dns;

pub use self::{dhcp::run as dhcp, dns::run as dns};

/// The input of a run. After its end it reads as zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Returns the next byte, if there is one.
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn next_u8(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    fn next_u16(&mut self) -> u16 {
        u16::from_be_bytes([self.next_u8(), self.next_u8()])
    }

    /// Returns as many bytes as the next byte says, or all that are left.
    fn counted(&mut self) -> &'a [u8] {
        let count = usize::from(self.next_u8()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::prelude::*;

    /// Plays the committed inputs of a target.
    fn play(target: &str, run: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let mut count = 0;
        for entry in fs::read_dir(corpus).expect("a corpus") {
            run(&fs::read(entry.expect("an entry").path()).expect("an input"));
            count += 1;
        }
        assert!(count > 0, "{target} has no inputs");
    }

    #[test]
    fn the_committed_inputs_of_both_targets_pass() {
        play("dhcp", super::dhcp);
        play("dns", super::dns);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_input_of_both_targets_passes(data in prop::collection::vec(any::<u8>(), 0..300)) {
            super::dhcp(&data);
            super::dns(&data);
        }
    }
}
