//! Receive offload against any train of frames. `sim::offload` says how the input is read and what is asked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sim::offload::run_brief(data);
});
