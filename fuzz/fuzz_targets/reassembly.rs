//! Fragments of a few datagrams in any order, size and time. `sim::reassembly` describes the format
//! of the input and the properties checked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sim::reassembly::run(data);
});
