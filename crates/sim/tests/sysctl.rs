//! docs/sysctl.md: every setting with its default, the values it accepts and its description,
//! grouped by tier.
//!
//! The page is generated from the rows of the tables, so that code and page agree. After a change
//! of a row: `UPDATE_DOCS=1 cargo test -p quietline-sim --test sysctl`.

#[cfg(test)]
mod tests {
    use std::{
        fmt::Write as _,
        fs,
        path::{Path, PathBuf},
    };

    use stack::sysctl::{Row, Sysctls, Tier};

    const HEAD: &str = "# Settings

Every setting of a host. Set one by `StackBuilder::sysctl(NAME, VALUE)`, by `--sysctl NAME=VALUE` on the command line, or by
`Stack::set_sysctl` while the stack runs. Names, forms and defaults are those of Linux (Documentation/networking/ip-sysctl.rst
and admin-guide/sysctl/net.rst), except below `net.quietline`: these settings are constants in Linux, are in sysfs there, or do
not exist there. A value out of bounds is refused, and the message names the bounds. `quietline sysctl` lists this page in a
terminal.

The settings are in three tiers: *Operate* is for administrators, *Tune* for measured problems, *Lab* for comparisons and
tests. A name below `net.quietline.dev.default` sets all devices; `net.quietline.dev.tap0.gro` sets one device, and
`net.quietline.dev.tap0.rx-1.rps_cpus` one queue.

`crates/sim/tests/sysctl.rs` writes this page from the tables of the code.
";

    const COLUMNS: &str = "| setting | default | accepts | description |\n|---|---|---|---|\n";

    fn page() -> String {
        let defaults = Sysctls::default();
        let mut page = String::from(HEAD);
        for tier in Tier::ALL {
            write!(page, "\n## {tier}\n\n{}\n\n{COLUMNS}", tier.description()).unwrap();
            let mut rows: Vec<_> = Sysctls::rows().filter(|row| row.tier == tier).collect();
            rows.sort_unstable_by_key(|row| row.name);
            for Row { name, accepts, description, .. } in rows {
                let default = match name {
                    "net.ipv4.tcp_mem" => String::from("by the packet memory"),
                    _ => defaults.get(name).expect("it is listed").replace('\t', " "),
                };
                let accepts = accepts.replace('|', "\\|");
                writeln!(page, "| `{name}` | {default} | {accepts} | {description} |").unwrap();
            }
        }
        page
    }

    #[test]
    fn the_page_of_settings_is_up_to_date() {
        let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sysctl.md");
        let page = page();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, &page).expect("docs are writable");
        }
        // Only CI fails, so that two branches that add a row each do not conflict.
        if !std::env::var("CI").is_ok_and(|value| value == "true") {
            return;
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == page, "stale: UPDATE_DOCS=1 cargo test -p quietline-sim --test sysctl");
    }
}
