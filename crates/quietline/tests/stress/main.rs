//! Stress test with many threads: connections are opened, used, half-closed, aborted and dropped at
//! the same time.
//!
//! Invariants: no call blocks forever, every byte of an orderly conversation arrives, and
//! afterwards no connection is in a table and no packet is live. `STRESS_SECONDS` makes each
//! scenario longer, `SEED` repeats a choice of conversations; the interleaving of threads is never
//! repeated.

#[cfg(test)]
mod conversation;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod scenarios;
