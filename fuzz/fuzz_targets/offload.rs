//! Receive offload with any train of frames. `sim::offload` describes the format of the input and
//! the properties checked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sim::offload::run_brief(data);
});
