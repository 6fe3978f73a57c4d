//! Allowed dependencies between crates, and names that the inner crates may not use.
//!
//! The tables below are the crates of ARCHITECTURE.md. Cargo ensures that a crate uses only its
//! declared dependencies; this check restricts the declarations.
//!
//! Not here: the order of the modules inside a crate (`module_order`), rules that clippy checks
//! (`crates/{tcp,stack}/clippy.toml`).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::findings::Findings;
use crate::module_order;
use crate::source::RustSource;
use crate::steps;

/// Allowed dependencies of one crate.
struct Layer {
    package: &'static str,
    /// Crates of this workspace.
    inner: &'static [&'static str],
    /// Crates from outside; with `None` deny.toml decides. An inner crate has a closed list,
    /// because a dependency is another way to reach a clock, a thread or a syscall.
    outer: Option<&'static [&'static str]>,
}

const LAYERS: &[Layer] = &[
    Layer { package: "quietline-sync", inner: &[], outer: Some(&["loom"]) },
    // pkt → sync: one lock-free list for returned packets, model-checked once.
    Layer {
        package: "quietline-pkt",
        inner: &["quietline-sync"],
        outer: Some(&["arrayvec", "loom"]),
    },
    Layer {
        package: "quietline-tcp",
        inner: &["quietline-pkt"],
        outer: Some(&["arrayvec", "bitflags", "siphasher"]),
    },
    Layer {
        package: "quietline-stack",
        inner: &["quietline-tcp", "quietline-sync", "quietline-pkt"],
        outer: Some(&["arrayvec", "bitflags", "ipnet", "siphasher", "thiserror", "zerocopy"]),
    },
    // Linux's socket calls over the stack. They never block; sleeping, descriptors and pointers are
    // their drivers'.
    Layer {
        package: "quietline-posix",
        inner: &["quietline-stack", "quietline-tcp", "quietline-sync", "quietline-pkt"],
        outer: Some(&[]),
    },
    // Devices fill packets and sockets wait on eventcounts: the outermost library crate uses all
    // inner ones.
    Layer {
        package: "quietline",
        inner: &["quietline-stack", "quietline-tcp", "quietline-sync", "quietline-pkt"],
        outer: None,
    },
    // Formats of the network and of files are parsed by libraries, which `quietline` does not
    // depend on. The stack is used by its public interface.
    Layer {
        package: "quietline-config",
        inner: &["quietline"],
        outer: Some(&[
            "dhcproto",
            "fastrand",
            "hickory-proto",
            "ipnet",
            "rustix",
            "serde",
            "thiserror",
            "toml",
        ]),
    },
    // The experiments use the stack as its users do.
    Layer { package: "quietline-lab", inner: &["quietline"], outer: None },
    Layer {
        package: "quietline-cli",
        inner: &["quietline", "quietline-config", "quietline-lab"],
        outer: None,
    },
    Layer {
        package: "quietline-sim",
        inner: &[
            "quietline-posix",
            "quietline-stack",
            "quietline-tcp",
            "quietline-sync",
            "quietline-pkt",
        ],
        outer: Some(&["arrayvec", "pcap-file"]),
    },
    // A host without an operating system, as in the simulator, but behind a C boundary.
    Layer {
        package: "quietline-packetdrill",
        inner: &["quietline-posix", "quietline-stack", "quietline-pkt"],
        outer: Some(&["arrayvec", "ipnet", "libc", "rustix"]),
    },
    // The C interface: socket calls of `posix` over stacks of `quietline`, and host files.
    Layer {
        package: "quietline-capi",
        inner: &[
            "quietline",
            "quietline-config",
            "quietline-posix",
            "quietline-stack",
            "quietline-sync",
        ],
        outer: Some(&["libc"]),
    },
    // Tests use the sockets of a stack, and one runs an experiment of the lab.
    Layer { package: "netns-tests", inner: &["quietline", "quietline-lab"], outer: None },
    Layer { package: "instructions", inner: &["quietline"], outer: Some(&[]) },
    // Other stacks, which no crate of the product may use.
    Layer {
        package: "bench-peers",
        inner: &["netns-tests", "quietline", "quietline-pkt"],
        outer: None,
    },
    Layer { package: "xtask", inner: &[], outer: None },
];

/// Names that no file of `tcp`, `stack` or `posix` may use, with the alternative. A test may read a
/// file to compare with the kernel; clippy bans clocks and threads in tests, too.
const BANNED_PATHS: &[(&str, &str)] = &[
    ("std::time::Instant", "time is an argument (pkt::Instant)"),
    ("Instant::now", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("std::thread", "threads belong to crate quietline"),
    ("thread::spawn", "threads belong to crate quietline"),
    ("std::fs", "files belong to crate quietline"),
    ("std::env", "settings arrive as sysctls"),
    ("std::process", "processes belong to crate quietline"),
    ("std::os", "descriptors belong to crate quietline"),
    ("TcpStream::connect", "kernel sockets belong to crate quietline"),
    ("async fn", "no async between device and socket"),
    ("println!", "the data path counts, it does not print"),
];

/// Checks the crate graph, the order of the modules, and the banned names.
pub(crate) fn check() -> Result<Findings> {
    let mut findings = Findings::default();
    check_graph(&metadata()?, &mut findings);
    let sources = RustSource::load_all()?;
    for source in &sources {
        check_names(source, &mut findings);
        module_order::check(source, &mut findings);
    }
    module_order::check_tables(&sources, &mut findings);
    Ok(findings)
}

fn metadata() -> Result<Value> {
    let output = steps::cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .context("running cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("reading cargo metadata")
}

fn check_graph(metadata: &Value, findings: &mut Findings) {
    let empty = Vec::new();
    let packages = metadata["packages"].as_array().unwrap_or(&empty);
    let layers: BTreeMap<&str, &Layer> =
        LAYERS.iter().map(|layer| (layer.package, layer)).collect();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(layer) = layers.get(name) else {
            findings.note("", 0, format!("crate {name} has no row in the table of layers"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap_or(&empty) {
            let target = dependency["name"].as_str().unwrap_or_default();
            let development = dependency["kind"].as_str() == Some("dev");
            let ours = layers.contains_key(target);
            let allowed = match (ours, layer.outer) {
                // The tests of a crate may enable its own features.
                (true, _) if development && target == name => true,
                (true, _) => layer.inner.contains(&target),
                (false, Some(outer)) => development || outer.contains(&target),
                (false, None) => true,
            };
            if !allowed {
                findings.note("", 0, format!("crate {name} may not depend on {target}"));
            }
        }
    }
}

fn check_names(source: &RustSource, findings: &mut Findings) {
    let Some(folder) = ["crates/tcp/src/", "crates/stack/src/", "crates/posix/src/"]
        .iter()
        .find(|folder| source.path.starts_with(**folder))
    else {
        return;
    };
    let product = source.code.split("#[cfg(test)]").next().unwrap_or_default();
    let is_test = source.path.ends_with("/tests.rs") || source.path.contains("/tests/");
    for (index, line) in product.lines().enumerate().filter(|_| !is_test) {
        for (name, instead) in BANNED_PATHS {
            if line.contains(name) {
                findings.note(&source.path, index + 1, format!("`{name}`: {instead}"));
            }
        }
    }
    if source.path == format!("{folder}lib.rs") {
        require(source, "#![forbid(unsafe_code)]", findings);
        if *folder == "crates/tcp/src/" {
            require(source, "no_std", findings);
        }
    }
}

fn require(source: &RustSource, text: &str, findings: &mut Findings) {
    if !source.code.contains(text) {
        findings.note(&source.path, 0, format!("`{text}` is missing"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_keeps_its_layers() {
        check().expect("layers runs").assert_empty();
    }

    #[test]
    fn a_forbidden_edge_is_found() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "quietline-tcp", "dependencies": [
                { "name": "quietline-pkt", "kind": null },
                { "name": "quietline-sync", "kind": null },
                { "name": "rustix", "kind": null },
                { "name": "proptest", "kind": "dev" },
                { "name": "quietline-tcp", "kind": "dev" },
            ]},
            { "name": "stray", "dependencies": [] },
        ]});
        let mut findings = Findings::default();
        check_graph(&metadata, &mut findings);
        let messages: Vec<&str> = findings.iter().map(|f| f.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "crate quietline-tcp may not depend on quietline-sync",
                "crate quietline-tcp may not depend on rustix",
                "crate stray has no row in the table of layers",
            ]
        );
    }

    #[test]
    fn a_clock_in_the_stack_is_found() {
        let mut findings = Findings::default();
        let text = "// Instant::now in a comment is fine.\nfn f() { std::time::Instant::now(); }\n";
        check_names(&RustSource::new("crates/stack/src/a.rs", text.to_owned()), &mut findings);
        assert_eq!(findings.iter().map(|f| f.line).collect::<Vec<_>>(), [2, 2]);
    }
}
