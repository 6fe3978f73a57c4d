//! Who processes a received segment: softirq context, the owner of the socket from its backlog, or a thread that waits
//! in `recv` from its prequeue. One host and a peer of bytes, a reader that runs when the test says so.

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
