//! Runs every packet script of `tests/scripts` over IPv4, over IPv6, and with IPv6 sockets over
//! IPv4, each as a test of its own: `tcp/handshake/passive_open over V4`. A script that means
//! something else in a family is not run in it ([`Family::plays`]).
//!
//! Not here: the language (`sim::script`), running one script with its trace
//! (`examples/script.rs`).

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use libtest_mimic::{Arguments, Failed, Trial};
use sim::{
    modes,
    script::{self, Family},
};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    let mut scripts = Vec::new();
    find(&root, &mut scripts)?;
    scripts.sort();
    let mut trials = Vec::new();
    for path in scripts {
        let relative = path.strip_prefix(&root).expect("found below it").with_extension("");
        let text: Arc<str> = fs::read_to_string(&path)?.into();
        for family in Family::ALL.into_iter().filter(|family| family.plays(&text)) {
            let name = format!("{} over {family:?}", relative.display());
            let (path, text) = (path.clone(), Arc::clone(&text));
            trials.push(Trial::test(name, move || play(&path, &text, family)));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn find(directory: &Path, scripts: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, scripts)?;
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            scripts.push(path);
        }
    }
    Ok(())
}

fn play(path: &Path, text: &str, family: Family) -> Result<(), Failed> {
    if !text.starts_with("// ") {
        return Err(Failed::from(
            "the first line must be a comment with the behavior and its source",
        ));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let settings = modes::from_environment();
    let played = script::run_over(&name, text, &settings, family);
    played.map(|_| ()).map_err(|failure| Failed::from(failure.to_string()))
}
