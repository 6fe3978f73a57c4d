//! TCP Small Queues against a device that completes when the test tells it: scenarios, defects of
//! other stacks, and invariants.
//!
//! Not here: the resulting delay and throughput on a link (`small_queues`), the races of the
//! protocol, which are model-checked (`sync::small_queue`).

#[cfg(test)]
mod bugs;
#[cfg(test)]
mod interactions;
#[cfg(test)]
mod manual_device;
#[cfg(test)]
mod scenarios;
