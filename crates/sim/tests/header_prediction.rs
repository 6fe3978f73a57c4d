//! Header prediction changes nothing that anybody can see: whole networks, played with it and without, frame by frame.
//!
//! `FIRST=n SEEDS=m cargo test -p quietline-sim --test header_prediction` plays others.

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sim::{
        network::PathConfig,
        scenario::{PredictionSummary, Scenario, compare_prediction},
        traffic::Ending,
    };
    use stack::sysctl::Sysctls;

    fn number(name: &str, default: u64) -> u64 {
        let text = std::env::var(name).ok();
        text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
    }

    /// Plays scenarios of some seeds, each changed, and adds up what they have shown.
    fn compare(change: impl Fn(&mut Scenario)) -> PredictionSummary {
        let first = number("FIRST", 0);
        let mut sum = PredictionSummary::default();
        for seed in first..first + number("SEEDS", 40) {
            let mut scenario = Scenario::of(seed);
            if seed % 2 == 1 {
                converse(&mut scenario);
            }
            change(&mut scenario);
            match compare_prediction(&scenario) {
                Ok(summary) => {
                    sum.predicted += summary.predicted;
                    sum.pressures += summary.pressures;
                    sum.frames += summary.frames;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        println!("{sum:?}");
        assert!(sum.predicted * 20 > sum.frames, "hardly anything was predicted: {sum:?}");
        sum
    }

    /// Writes of a segment and pauses, over paths that only delay: what is predicted most.
    fn converse(scenario: &mut Scenario) {
        for path in &mut scenario.paths {
            *path = PathConfig { delay: path.delay, ..PathConfig::default() };
        }
        for session in &mut scenario.sessions {
            for behavior in [&mut session.up, &mut session.down] {
                if behavior.length > 0 && matches!(behavior.ending, Ending::First | Ending::Last) {
                    behavior.length = 30_000;
                }
                (behavior.write_max, behavior.pauses, behavior.option_changes) = (1_000, 900, 0);
                behavior.write_pause = Duration::from_millis(30);
            }
        }
    }

    fn each_host(scenario: &mut Scenario, change: impl Fn(&mut Sysctls)) {
        scenario.hosts.iter_mut().for_each(change);
    }

    fn scarce(sysctls: &mut Sysctls) {
        sysctls.set("net.ipv4.tcp_mem", "8 12 4194304").expect("three numbers of pages");
    }

    #[test]
    fn as_the_seed_has_it() {
        compare(|_| ());
    }

    #[test]
    fn with_devices_that_complete_later() {
        compare(|scenario| scenario.completes_after = Some(Duration::from_micros(300)));
    }

    /// A lone write may not pass what the device has not completed. The limit is one that nothing is exempt from.
    #[test]
    fn where_nothing_may_wait_below() {
        compare(|scenario| {
            converse(scenario);
            each_host(scenario, |sysctls| {
                sysctls.set("net.quietline.tsq_limit", "static131072_ge").expect("a mode");
                sysctls.set("net.ipv4.tcp_limit_output_bytes", "1").expect("a byte");
            });
            scenario.completes_after = Some(Duration::from_millis(40));
        });
    }

    #[test]
    fn where_memory_is_scarce() {
        let summary = compare(|scenario| each_host(scenario, scarce));
        assert!(summary.pressures > 10, "{summary:?}");
    }

    #[test]
    fn where_memory_is_scarce_and_devices_complete_later() {
        let summary = compare(|scenario| {
            each_host(scenario, scarce);
            scenario.completes_after = Some(Duration::from_micros(300));
        });
        assert!(summary.pressures > 10, "{summary:?}");
    }
}
