//! The five experiments: one for each change of Linux that this stack reproduces as a switch.
//!
//! Above: the command. Below: crate `quietline`, as any program uses it.
//!
//! Each file declares one experiment as the method section of a paper does: the claim, the traffic,
//! the arms, the metrics, the controls that prove that the mechanism ran, and what the measurement
//! cannot show. The rest of the file is the workload.

pub mod dst_layout;
pub mod gro_batch;
pub mod prequeue;
pub mod recycle;
pub mod selftest;
pub mod tsq;

mod delay_meter;
mod generator;
mod link_meter;
mod receiver;
mod simulation;
pub(crate) mod threads;

use crate::experiment::Experiment;

/// An experiment of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// [`prequeue`].
    Prequeue,
    /// [`gro_batch`].
    GroBatch,
    /// [`dst_layout`].
    DstLayout,
    /// [`tsq`].
    Tsq,
    /// [`recycle`].
    SkbCache,
    /// [`selftest`], which is none of the claims.
    Selftest,
}

impl Name {
    /// Every experiment about a claim, in the order in which `all` runs them.
    pub const ALL: [Self; 5] =
        [Self::Prequeue, Self::GroBatch, Self::DstLayout, Self::Tsq, Self::SkbCache];

    /// The declaration; `quick` leaves conditions out.
    #[must_use]
    pub fn experiment(self, quick: bool) -> Experiment {
        match self {
            Self::Prequeue => prequeue::experiment(quick),
            Self::GroBatch => gro_batch::experiment(quick),
            Self::DstLayout => dst_layout::experiment(quick),
            Self::Tsq => tsq::experiment(quick),
            Self::SkbCache => recycle::experiment(quick),
            Self::Selftest => selftest::experiment(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use quietline::Stack;

    use super::*;

    /// A name that does not exist would make a comparison silently absent.
    #[test]
    fn every_declaration_names_what_it_declares() {
        for experiment in
            Name::ALL.iter().flat_map(|name| [true, false].map(|q| name.experiment(q)))
        {
            let name = experiment.name;
            let arms: BTreeSet<_> = experiment.arms.iter().map(|arm| arm.name.as_str()).collect();
            assert_eq!(arms.len(), experiment.arms.len(), "{name}: two arms of one name");
            let metrics: Vec<_> = experiment.metrics.iter().map(|metric| metric.name).collect();
            for comparison in &experiment.comparisons {
                assert!(arms.contains(comparison.baseline), "{name}: {comparison:?}");
                assert!(arms.contains(comparison.arm), "{name}: {comparison:?}");
                assert!(metrics.contains(&comparison.metric), "{name}: {comparison:?}");
            }
            for control in &experiment.controls {
                for arm in control.moves_in.iter().chain(&control.still_in) {
                    assert!(arms.contains(arm), "{name}: {control:?}");
                }
            }
            let conditions: BTreeSet<_> =
                experiment.conditions.iter().map(|condition| &condition.name).collect();
            assert_eq!(conditions.len(), experiment.conditions.len(), "{name}");
            for text in [experiment.title, experiment.claim, experiment.workload, experiment.limits]
            {
                assert!(!text.is_empty() && !text.contains("  "), "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn every_setting_and_counter_of_a_declaration_exists() {
        let stack = Stack::builder().manual().build().expect("a stack");
        let counters = stack.counters();
        for name in Name::ALL {
            let experiment = name.experiment(false);
            for (setting, value) in experiment.arms.iter().flat_map(|arm| &arm.settings) {
                let built = Stack::builder().manual().sysctl(setting, value).build();
                assert!(built.is_ok(), "{name:?}: {setting}={value}: {built:?}");
            }
            for control in &experiment.controls {
                assert!(counters.get(control.counter).is_some(), "{name:?}: {control:?}");
            }
        }
    }
}
