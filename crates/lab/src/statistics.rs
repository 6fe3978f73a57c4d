//! Statistics of an experiment: summaries, tests of a difference, intervals of a ratio, censored
//! means, power.
//!
//! Above: the experiments. Student's t and the normal distribution come from `statrs`; everything
//! else is short and stands here, because its published test vectors are the specification.
//!
//! The unit of every test is one run: a run gives one number per metric. Numbers from within a run
//! are not independent and never enter a test.
//!
//! Not here: which comparisons an experiment makes, and the verdict (`experiment`).

mod bootstrap;
mod censored;
mod holm;
mod normal;
mod permutation;
mod power;
mod summary;
mod welch;

pub use bootstrap::{Interval, ratio_of_means};
pub use censored::{Censored, CensoredError, likelihood_ratio};
pub use holm::holm;
pub use permutation::{pairs, two_samples};
pub use power::{power, runs_for};
pub use summary::Summary;
pub use welch::{Welch, welch};
