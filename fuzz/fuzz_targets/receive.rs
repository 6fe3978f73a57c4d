//! A whole host, from its device to its sockets, with any sequence of frames, delays and socket
//! calls. `sim::hostile` describes the format of the input and the properties checked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sim::hostile::run(data);
});
