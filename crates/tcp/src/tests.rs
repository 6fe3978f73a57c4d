//! The engine under test: two control blocks joined by a network in virtual time.

mod net;
mod states;
mod stress;
