//! Options are written in Linux's layout, parsed with Linux's tolerance, and parsed unchanged after
//! they were written.

use std::vec::Vec;

use proptest::prelude::*;

use super::{OPTIONS_BYTES_MAX, Options, SACK_BLOCKS_MAX, WINDOW_SCALE_MAX};
use crate::wire::seq::SeqNum;

fn emitted(options: &Options) -> Vec<u8> {
    let mut bytes = std::vec![0xee; options.encoded_len()];
    assert_eq!(options.emit(&mut bytes), bytes.len());
    bytes
}

fn blocks(edges: &[(u32, u32)]) -> Options {
    Options {
        sack_blocks: edges.iter().map(|&(left, right)| (SeqNum(left), SeqNum(right))).collect(),
        ..Options::new()
    }
}

#[test]
fn a_syn_has_the_option_order_and_bytes_of_linux() {
    let options = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((0x0102_0304, 0)),
        ..Options::new()
    };
    let expected = [2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
    assert_eq!(emitted(&options), expected);
    assert_eq!(Options::parse(&expected, true), options);
}

#[test]
fn a_syn_without_timestamps_pads_sack_permitted() {
    let options =
        Options { mss: Some(536), window_scale: Some(0), sack_permitted: true, ..Options::new() };
    assert_eq!(emitted(&options), [2, 4, 2, 24, 1, 1, 4, 2, 1, 3, 3, 0]);
}

#[test]
fn a_list_without_options_has_no_bytes() {
    assert_eq!(Options::new().encoded_len(), 0);
    assert_eq!(Options::parse(&[], true), Options::new());
}

#[test]
fn three_sack_blocks_fit_beside_timestamps() {
    let mut options = blocks(&[(1, 2), (3, 4), (5, 6), (7, 8)]);
    assert_eq!(options.encoded_len(), 36);
    options.timestamps = Some((1, 2));
    assert_eq!(options.encoded_len(), OPTIONS_BYTES_MAX);
    let read = Options::parse(&emitted(&options), false);
    assert_eq!(read.sack_blocks[..], options.sack_blocks[..3]);
}

#[test]
fn handshake_options_are_ignored_outside_a_syn() {
    let bytes = [2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
    let read = Options::parse(&bytes, false);
    assert_eq!(read, Options { timestamps: Some((0x0102_0304, 0)), ..Options::new() });
}

#[test]
fn the_fast_path_for_timestamps_alone_agrees_with_the_general_parser() {
    let alone = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    // Four bytes longer, so that the general parser reads the same option.
    let mut general = alone.to_vec();
    general.extend([1, 1, 1, 0]);
    assert_eq!(Options::parse(&alone, false).timestamps, Some((1, 2)));
    assert_eq!(Options::parse(&alone, false), Options::parse(&general, false));
}

#[test]
fn the_options_before_a_malformed_length_or_the_end_of_the_list_are_kept() {
    let mss = Options { mss: Some(1000), ..Options::new() };
    for tail in [&[8u8, 1][..], &[8, 0], &[8], &[8, 10, 0], &[3, 200, 7], &[0, 3, 3, 7]] {
        let mut bytes = std::vec![2, 4, 3, 0xe8];
        bytes.extend(tail);
        assert_eq!(Options::parse(&bytes, true), mss, "{tail:?}");
    }
}

#[test]
fn an_option_of_the_wrong_length_is_skipped() {
    // Wrong lengths: MSS 3, window scale 4, SACK-permitted 3, timestamps 6. Then an unknown
    // experimental option, and a valid MSS option.
    let bytes = [2, 3, 9, 3, 4, 7, 7, 4, 3, 0, 8, 6, 1, 2, 3, 4, 254, 4, 0, 0, 2, 4, 1, 0];
    assert_eq!(Options::parse(&bytes, true), Options { mss: Some(256), ..Options::new() });
}

#[test]
fn sack_options_of_invalid_length_are_ignored_and_the_last_valid_one_is_used() {
    assert!(Options::parse(&[5, 2], false).sack_blocks.is_empty());
    assert!(Options::parse(&[5, 6, 0, 0, 0, 1], false).sack_blocks.is_empty());
    let twice = [5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 5, 10, 0, 0, 0, 3, 0, 0, 0, 4];
    assert_eq!(Options::parse(&twice, false), blocks(&[(3, 4)]));
}

#[test]
fn a_zero_mss_is_ignored_and_a_large_shift_is_clamped() {
    assert_eq!(Options::parse(&[2, 4, 0, 0], true).mss, None);
    assert_eq!(Options::parse(&[3, 3, 200], true).window_scale, Some(WINDOW_SCALE_MAX));
}

fn any_options() -> impl Strategy<Value = Options> {
    (
        any::<Option<u16>>(),
        proptest::option::of(0..=WINDOW_SCALE_MAX),
        any::<bool>(),
        any::<Option<(u32, u32)>>(),
        proptest::collection::vec(any::<(u32, u32)>(), 0..=SACK_BLOCKS_MAX),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, edges)| Options {
            mss: mss.filter(|&mss| mss != 0),
            window_scale,
            sack_permitted,
            timestamps,
            ..blocks(&edges)
        })
}

proptest! {
    #[test]
    fn written_options_are_parsed_unchanged(options in any_options()) {
        let bytes = emitted(&options);
        prop_assert!(bytes.len() <= OPTIONS_BYTES_MAX && bytes.len().is_multiple_of(4));
        let fit = options.sack_blocks_that_fit();
        let mut expected = options;
        expected.sack_blocks.truncate(fit);
        prop_assert_eq!(Options::parse(&bytes, true), expected);
    }

    #[test]
    fn arbitrary_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), is_syn: bool) {
        let read = Options::parse(&bytes, is_syn);
        prop_assert!(read.encoded_len() <= OPTIONS_BYTES_MAX);
        if !is_syn {
            prop_assert!(read.mss.is_none() && read.window_scale.is_none() && !read.sack_permitted);
        }
    }

    #[test]
    fn parsed_timestamps_mss_and_window_scale_are_written_unchanged(bytes in proptest::collection::vec(0u8..12, 0..40), is_syn: bool) {
        // Small byte values make valid kinds and lengths likely.
        let read = Options::parse(&bytes, is_syn);
        let again = Options::parse(&emitted(&read), is_syn);
        prop_assert_eq!(again.timestamps, read.timestamps);
        prop_assert_eq!(again.mss, read.mss);
        prop_assert_eq!(again.window_scale, read.window_scale);
    }
}
