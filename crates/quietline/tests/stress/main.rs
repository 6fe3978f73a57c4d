//! Threads against the whole stack: connections that are opened, used, half-closed, aborted and forgotten, all at once.
//!
//! What must hold: no call hangs, every byte of an orderly conversation arrives, and afterwards no connection is left in
//! a table and no packet alive. `STRESS_SECONDS` makes each scenario longer, `SEED` repeats one choice of conversations;
//! how threads meet is never repeated.

#[cfg(test)]
mod conversation;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod scenarios;
