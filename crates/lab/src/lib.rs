//! The laboratory of quietline: experiments that switch a mechanism on and off and say whether the
//! difference is real.
//!
//! Above: the command (`quietline lab`). Below: the stack as its users see it.
//!
//! [`experiments`] declares what is compared, [`experiment`] runs a declaration and judges its
//! results, [`statistics`] has the tests and intervals, [`coherence`] a model of many CPUs.

#![forbid(unsafe_code)]

pub mod coherence;
pub mod experiment;
pub mod experiments;
pub mod statistics;

mod copy_link;
