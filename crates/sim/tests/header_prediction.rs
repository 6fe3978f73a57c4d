//! Header prediction has no observable effect: whole networks, played with it and without, are
//! equal frame by frame.
//!
//! `FIRST=n SEEDS=m cargo test -p quietline-sim --test header_prediction` plays other seeds.

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

    /// Compares scenarios of some seeds, each changed by `change`, and adds up the results.
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
        assert!(sum.predicted * 20 > sum.frames, "too few segments were predicted: {sum:?}");
        sum
    }

    /// Sends single segments with pauses, over paths that only delay: the traffic with the most
    /// predicted segments.
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
    fn prediction_is_invisible_in_drawn_scenarios() {
        compare(|_| ());
    }

    #[test]
    fn prediction_is_invisible_with_late_completions() {
        compare(|scenario| scenario.completes_after = Some(Duration::from_micros(300)));
    }

    /// A single write must wait for uncompleted packets of the device. This limit has no
    /// exemptions.
    #[test]
    fn prediction_is_invisible_at_a_tsq_limit_of_one_byte() {
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
    fn prediction_is_invisible_under_memory_pressure() {
        let summary = compare(|scenario| each_host(scenario, scarce));
        assert!(summary.pressures > 10, "{summary:?}");
    }

    #[test]
    fn prediction_is_invisible_under_memory_pressure_with_late_completions() {
        let summary = compare(|scenario| {
            each_host(scenario, scarce);
            scenario.completes_after = Some(Duration::from_micros(300));
        });
        assert!(summary.pressures > 10, "{summary:?}");
    }
}
