//! Answers of DHCP servers to the client, over time and changes of the link.
//! `quietline_config::fuzzing` describes the format of the input and the properties checked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    config::fuzzing::dhcp(data);
});
