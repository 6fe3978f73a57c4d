//! Two engines and an adversary that controls every segment, timer, call and option. `sim::engine_pair`
//! describes the format of the input and the requirements on the engines.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sim::engine_pair::run_brief(data);
});
