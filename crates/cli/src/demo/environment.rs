//! The machine on which results were measured.

use serde::Serialize;

/// The machine on which a demo ran.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Environment {
    /// Version of this program.
    pub(super) version: &'static str,
    /// Hardware threads this process may use.
    pub(super) cpus: usize,
    /// Name of the processor.
    pub(super) cpu_model: String,
    /// Kernel release.
    pub(super) kernel_release: String,
    /// MTU of the kernel's loopback interface.
    pub(super) loopback_mtu: Option<u32>,
    /// Whether this program was built with optimization.
    pub(super) optimized: bool,
}

impl Environment {
    /// Reads the properties of the machine. Unknown ones are left out.
    pub(super) fn read() -> Self {
        let file = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            cpus,
            cpu_model: cpu_model(&file("/proc/cpuinfo")).unwrap_or("unknown").to_owned(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            loopback_mtu: file("/sys/class/net/lo/mtu").trim().parse().ok(),
            optimized: !cfg!(debug_assertions),
        }
    }

    /// Returns one line for the text output.
    pub(super) fn sentence(&self) -> String {
        let mtu = self.loopback_mtu.map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
        format!(
            "quietline {} on {} × {}, Linux {}, loopback MTU {mtu}{}",
            self.version,
            self.cpus,
            self.cpu_model,
            self.kernel_release,
            if self.optimized { "" } else { "; UNOPTIMIZED BUILD: the numbers are meaningless" },
        )
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_model_is_read_from_cpuinfo() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(cpu_model(cpuinfo), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_model("Hardware : x"), None);
    }
}
