//! The laboratory of quietline: experiments that switch a mechanism on and off and say whether the difference is real.
//!
//! Above: the command (`quietline lab`). Below: the stack as its users see it.
//!
//! [`statistics`] has the tests and intervals that an experiment reports, [`coherence`] a model of many CPUs.

pub mod coherence;
pub mod statistics;
