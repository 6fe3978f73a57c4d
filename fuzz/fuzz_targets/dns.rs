//! Answers of name servers to the stub resolver, by UDP and TCP. `quietline_config::fuzzing`
//! describes the format of the input and the properties checked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    config::fuzzing::dns(data);
});
