//! Contexts that process a received segment: softirq, the owner of the socket from its backlog, or
//! a thread that sleeps in `recv` from its prequeue. One host, a peer made of bytes, and a reader
//! that runs when the test steps it.

#[cfg(test)]
mod backlog;
#[cfg(test)]
mod bugs;
#[cfg(test)]
mod interactions;
#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod paths;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod waiting;
