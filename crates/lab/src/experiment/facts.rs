//! The machine on which an experiment ran.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::coherence::calibrate::Calibration;

/// Facts about the machine. Unknown facts are absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor.
    pub cpu_model: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Clock of the first CPU at the start, in MHz.
    pub clock_mhz: Option<f64>,
    /// Kernel release.
    pub kernel: String,
    /// Clock source of the kernel.
    pub clock_source: Option<String>,
    /// Hypervisor flag of the processor: a virtual machine.
    pub is_virtual: bool,
    /// Load averages of 1, 5 and 15 minutes at the start.
    pub load: Option<[f64; 3]>,
    /// Whether this program was built with optimization.
    pub optimized: bool,
    /// Costs of cache lines between two CPUs; absent in results that measured none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

impl Machine {
    /// Reads the facts.
    #[must_use]
    pub fn read() -> Self {
        let file = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = file("/proc/cpuinfo");
        let clock_source = file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let field = |name| field(&cpuinfo, name);
        Self {
            cpu_model: field("model name").unwrap_or("unknown").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            clock_mhz: field("cpu MHz").and_then(|mhz| mhz.parse().ok()),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            clock_source: Some(clock_source.trim().to_owned()).filter(|name| !name.is_empty()),
            is_virtual: field("flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            load: load(&file("/proc/loadavg")),
            optimized: !cfg!(debug_assertions),
            calibration: None,
        }
    }
}

fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

fn load(text: &str) -> Option<[f64; 3]> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_kernel_s_texts() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\ncpu MHz\t\t: 2099.9\n";
        assert_eq!(field(cpuinfo, "model name"), Some("A CPU @ 2 GHz"));
        assert_eq!(field(cpuinfo, "cpu MHz"), Some("2099.9"));
        assert_eq!(field(cpuinfo, "flags"), None);
        assert_eq!(load("0.50 1.25 2.00 1/100 99\n"), Some([0.5, 1.25, 2.0]));
        assert_eq!(load("0.50"), None);
        assert!(Machine::read().cpus >= 1);
    }
}
