//! Runs every packet script of `tests/scripts`, each as a test of its own:
//! `tcp/handshake/passive_open`.
//!
//! Not here: the language (`sim::script`), running one script with its trace
//! (`examples/script.rs`).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    let mut scripts = Vec::new();
    find(&root, &mut scripts)?;
    scripts.sort();
    let trials = scripts.into_iter().map(|path| {
        let relative = path.strip_prefix(&root).expect("found below it").with_extension("");
        let name = relative.display().to_string();
        Trial::test(name, move || play(&path))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit()
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

fn play(path: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(path)?;
    if !text.starts_with("// ") {
        return Err(Failed::from(
            "the first line must be a comment with the behavior and its source",
        ));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    sim::script::run(&name, &text).map(|_| ()).map_err(|failure| Failed::from(failure.to_string()))
}
