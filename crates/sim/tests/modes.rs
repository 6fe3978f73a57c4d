//! Runs every packet script in every mode, by pairwise combination: `tcp/handshake/passive_open in
//! row 7`.
//!
//! The address family is one more mode of the rows: each family meets every value of every mode,
//! without a further run.
//!
//! A script's own settings take precedence. A script that shows a behavior of one mode selects that
//! mode in its first lines.
//!
//! Not here: the list of modes (`sim::modes`), the scripts in their own settings alone
//! (`scripts.rs`).

use std::{fs, io, path::Path, sync::Arc};

use libtest_mimic::{Arguments, Failed, Trial};
use sim::{
    modes::{self, Settings},
    script::{self, Family},
};

/// A script: its name and its text.
type Script = Arc<(String, String)>;

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    let mut scripts = Vec::new();
    find(&root, &root, &mut scripts)?;
    scripts.sort();
    let mut trials = Vec::new();
    let sizes = [&modes::sizes()[..], &[Family::ALL.len()]].concat();
    for (number, row) in modes::pairwise(&sizes).iter().enumerate() {
        let (&turn, row) = row.split_last().expect("a row has the family");
        let settings = Arc::new(modes::settings(row));
        for script in &scripts {
            let turn = Family::ALL[turn];
            let family = if turn.plays(&script.1) { turn } else { Family::V4 };
            let (script, settings) = (Arc::clone(script), Arc::clone(&settings));
            let name = format!("{} in row {number} over {family:?}", script.0);
            trials.push(Trial::test(name, move || play(&script, &settings, family)));
        }
    }
    for context in ["bh", "prequeue_ref", "prequeue_drop", "prequeue_drop_limited"] {
        let scripts = scripts.clone();
        let name = format!("scripts whose process sleeps in a read reach {context}");
        trials.push(Trial::test(name, move || reach(&scripts, context)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn find(root: &Path, directory: &Path, scripts: &mut Vec<Script>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            find(root, &path, scripts)?;
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            let relative = path.strip_prefix(root).expect("found below it").with_extension("");
            scripts.push(Arc::new((relative.display().to_string(), fs::read_to_string(&path)?)));
        }
    }
    Ok(())
}

fn play(script: &(String, String), settings: &Settings, family: Family) -> Result<(), Failed> {
    let (name, text) = script;
    match script::run_over(name, text, settings, family) {
        Ok(_) => Ok(()),
        Err(failure) => Err(Failed::from(format!("{}={settings}\n{failure}", modes::VARIABLE))),
    }
}

/// Checks that the setting has an effect on the scripts: packets are queued for readers in the
/// prequeue contexts.
fn reach(scripts: &[Script], context: &str) -> Result<(), Failed> {
    let settings = Settings(vec![("net.quietline.rx_context".into(), context.into())]);
    let mut batches = 0;
    for script in scripts {
        let played = script::run_in(&script.0, &script.1, &settings);
        let counters = played.map_err(|failure| Failed::from(failure.to_string()))?.counters;
        batches += counters.tcp(tcp::Counter::TcpExtTCPPrequeued);
    }
    // A script may select its own context, so `bh` is not checked for zero here:
    // `contexts/scenarios.rs` does that.
    let enough = context == "bh" || batches >= 10;
    if enough { Ok(()) } else { Err(Failed::from(format!("{batches} batches were read"))) }
}
