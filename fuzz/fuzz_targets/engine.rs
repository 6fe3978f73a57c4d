//! Two engines and an adversary who decides over every segment, timer, call and option. `sim::engine_pair` says how the input is
//! read and what is asked of the engines.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sim::engine_pair::run_brief(data);
});
