//! A whole host, from its device to its sockets, against any sequence of frames, delays and socket calls. `sim::hostile`
//! says how the input is read and what is asked of the host.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sim::hostile::run(data);
});
