//! A suite that checks whether a device keeps the contract of [`Device`].
//!
//! A device of an application's own is tested with it as the devices of this crate are. The suite makes pairs of devices whose
//! ends see each other's frames, calls their methods directly, and then runs stacks on them. It uses only what a stack uses, so
//! a device that passes can be given to [`Stack::builder`](crate::Stack::builder).
//!
//! The crate feature `conformance` switches this module on; a crate with a device has it among its dev-dependencies:
//!
//! ```toml
//! [dev-dependencies]
//! quietline = { version = "0.1", features = ["conformance"] }
//! ```
//!
//! ```
//! use quietline::device::conformance::{self, Pair};
//! use quietline::{Wire, WireConfig};
//!
//! let report = conformance::run(|| {
//!     // Two new ends that see each other's frames. Here: a wire; otherwise two devices of your own.
//!     let (left, right) = Wire::pair(&WireConfig::default()).expect("a wire");
//!     Pair::new(left, right)
//! });
//! // Panics if a check failed, with one line for each check.
//! report.assert_passed();
//! ```
//!
//! | check | rule |
//! |---|---|
//! | `capabilities_are_valid` | the values of [`Capabilities`](super::Capabilities) are in their ranges, agree with each other and never change |
//! | `an_idle_queue_gives_no_frame` | `receive` and `complete` on a new device return nothing and add nothing |
//! | `frames_arrive_whole_and_in_order` | frames of every size up to the MTU arrive once, unchanged, in order, with the time of arrival |
//! | `a_poll_keeps_to_its_budget` | `receive` takes no more than `budget`, and says how many it took |
//! | `a_full_device_leaves_packets_in_the_list` | without room, the rest of the list stays in its order, and is taken later |
//! | `every_packet_is_completed_once` | each packet that `transmit` has taken ends once: its charge ends, and `complete` counts it if it is asynchronous |
//! | `partial_checksums_are_completed` | with `tx_checksum`, the receiver gets a good checksum or knows that it is not complete |
//! | `superframes_arrive_whole` | with `tso4`, all payload of a superframe arrives, in segments or as a superframe |
//! | `every_queue_carries_frames` | frames leave on each queue and arrive on some queue |
//! | `threads_transmit_at_the_same_time` | `transmit` of several threads on one queue loses nothing |
//! | `a_device_that_was_down_carries_frames_again` | `stop` drops the frames that have arrived, and `start` takes the queue up again |
//! | `a_dropped_device_frees_its_packets` | frames on their way and packets in flight are freed with the device |
//! | `a_stack_has_its_device_alone` | `is_attached` is true once a stack has the device, and a second stack is refused |
//! | `an_arrival_wakes_a_sleeping_worker` | a frame that arrives while the worker sleeps is received at once |
//! | `streams_carry_bytes_both_ways` | TCP streams carry a megabyte each way, unchanged |
//! | `a_removed_device_is_released` | after `Stack::remove_device` nothing refers to the device |
//! | `a_device_that_is_gone_is_removed` | after [`Pair::unplug`] the stack removes the device and reports it |
//!
//! Not here: speed, and behavior on lossy links. Links of a pair have to be reliable.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

#[cfg(doc)]
use super::Device;

mod bench;
mod direct;
mod frames;
mod pair;
mod stacks;

pub use pair::Pair;

/// Runs all checks, each on a new pair that `make` returns.
///
/// A check waits up to ten seconds for frames, so a device that loses them takes a few minutes. A panic of the device is a
/// failure of its check.
pub fn run(mut make: impl FnMut() -> Pair) -> Report {
    let checks = direct::CHECKS.iter().chain(&stacks::CHECKS);
    let results = checks.map(|(name, check)| {
        let caught = catch_unwind(AssertUnwindSafe(|| check(make())));
        let result = caught.unwrap_or_else(|panic| Err(Unmet::Failed(panic_text(&*panic))));
        (*name, result)
    });
    Report { results: results.collect() }
}

/// Why a check has not passed.
#[derive(Debug)]
enum Unmet {
    /// The device has broken the rule.
    Failed(String),
    /// The rule is about something that the device does not have.
    NotApplicable(&'static str),
}

/// How one check ended.
type Outcome = Result<(), Unmet>;

/// A check: its name, and its function.
type Check = (&'static str, fn(Pair) -> Outcome);

/// Fails with a text.
fn fail(text: impl Into<String>) -> Unmet {
    Unmet::Failed(text.into())
}

/// Fails with the text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::device::conformance::fail(format!($($text)+)));
        }
    };
}
use ensure;

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a text"))
}

/// Results of a run, in the order of the checks. `Display` prints one line for each.
#[derive(Debug)]
#[must_use = "a report may say that checks have failed"]
pub struct Report {
    results: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// Names of the checks that failed, and the reasons.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.results.iter().filter_map(|(name, outcome)| match outcome {
            Err(Unmet::Failed(why)) => Some((*name, why.as_str())),
            _ => None,
        })
    }

    /// Names of the checks that passed.
    pub fn passed(&self) -> impl Iterator<Item = &'static str> {
        self.results.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(name, _)| *name)
    }

    /// Panics with the whole report if a check failed.
    ///
    /// # Panics
    ///
    /// A check failed.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.failures().next().is_none(), "the device breaks its contract\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.results {
            match outcome {
                Ok(()) => writeln!(f, "ok      {name}")?,
                Err(Unmet::Failed(why)) => writeln!(f, "FAILED  {name}: {why}")?,
                Err(Unmet::NotApplicable(why)) => writeln!(f, "n/a     {name}: {why}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
