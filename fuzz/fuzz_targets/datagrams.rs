//! Datagram sockets of a host, with any sequence of packets, delays and socket calls of both IP
//! versions. `sim::hostile_datagrams` describes the format of the input and the properties checked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sim::hostile_datagrams::run(data);
});
