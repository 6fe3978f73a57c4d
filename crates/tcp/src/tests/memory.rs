//! Packet memory runs out: everything waits and nothing is lost.
