//! TCP Small Queues against a device that completes when the test says so: the scenarios, what went wrong elsewhere, and what
//! always holds.
//!
//! Not here: the delay and throughput that follow on a link (`small_queues`), the protocol's races, which are modelled
//! (`sync::small_queue`).

#[cfg(test)]
mod bugs;
#[cfg(test)]
mod interactions;
#[cfg(test)]
mod manual_device;
#[cfg(test)]
mod scenarios;
