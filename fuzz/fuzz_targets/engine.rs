//! Two engines and an adversary that controls every segment, timer, call and option. `sim::duel`
//! describes the format of the input and the properties checked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sim::duel::run_brief(data);
});
