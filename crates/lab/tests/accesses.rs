//! No two cores write one cache line per packet, except for the lines that docs/model.md names.
//!
//! The test runs itself under valgrind as a traced program
//! ([`subject`](quietline_lab::coherence::subject)) and compares the lines that both CPUs write
//! with the table in the page, in both directions: a line that the table lacks fails, and so does a
//! row whose line is written by one CPU only. A failure names the functions that write the line.
//!
//! With `UPDATE_DOCS=1` it traces every subject and writes `src/coherence/paths.txt`, from which
//! the model makes its programs. The instructions in it are those of the optimized program:
//! `UPDATE_DOCS=1 cargo test --profile ci -p quietline-lab --test accesses`.

use std::{
    collections::BTreeSet,
    error::Error,
    fs,
    io::BufReader,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use quietline_lab::coherence::{
    path,
    subject::{SUBJECTS, Subject},
    trace::{Image, Marks, SharedLine, Trace},
};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Subjects with default settings whose lines are in the table. Over loopback, both threads of a
/// connection run its core in turn, and write the same lines by design.
const DEFAULTS: [&str; 2] = ["cores", "contexts"];
/// Rounds that are traced.
const ROUNDS: u32 = 12;
/// Argument before the name of a subject: this process is the traced program.
const RUN: &str = "--subject";
/// Head of the section of the page with the table.
const SECTION: &str = "## Lines that two CPUs write";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name] = &arguments[..]
        && flag == RUN
    {
        let subject = Subject::find(name).expect("a subject");
        subject.run(ROUNDS, &Marks).expect("a run");
        return ExitCode::SUCCESS;
    }
    let writes = std::env::var_os("UPDATE_DOCS").is_some();
    let names: Vec<_> = SUBJECTS.iter().map(|subject| subject.name).collect();
    let names = if writes { &names[..] } else { &DEFAULTS[..] };
    let words: Vec<_> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let chosen = |name: &&&str| words.is_empty() || words.iter().any(|word| name.contains(*word));
    if arguments.iter().any(|argument| argument == "--list") {
        names.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if let Err(why) = can_trace() {
        let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
        println!("accesses: {} ({why})", if in_ci { "FAILED" } else { "skipped" });
        return if in_ci { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let mut failed = false;
    let mut paths = String::from(PATHS_HEAD);
    for name in names.iter().filter(chosen) {
        let checked = trace(name).and_then(|trace| {
            let shared = trace.shared();
            paths += &format!("\n{}", path::Path::of(name, &trace, &shared).text());
            compare(name, &trace, &shared)
        });
        match checked {
            Ok(()) => println!("test {name} ... ok"),
            Err(why) => {
                println!("test {name} ... FAILED\n{why}");
                failed = true;
            }
        }
    }
    if writes && words.is_empty() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/coherence/paths.txt");
        fs::write(file, paths).expect("the paths are writable");
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

const PATHS_HEAD: &str = "# The accesses of each subject to lines that two CPUs use, in the round of \
the median length.
# A number: instructions that use no such line. A letter and the number of a line: r a read, w a write,
# a an atomic operation, c a conditional increment; f an atomic operation on another line, which waits
# for writes. stores: stores to other lines.
# Written by `UPDATE_DOCS=1 cargo test --profile ci -p quietline-lab --test accesses`.
";

/// Whether valgrind can trace a program here.
fn can_trace() -> Result<(), &'static str> {
    if !cfg!(target_arch = "x86_64") {
        return Err("atomic instructions are recognized on x86-64 only");
    }
    let version = Command::new("valgrind").arg("--version").output();
    if version.is_ok_and(|output| output.status.success()) {
        Ok(())
    } else {
        Err("valgrind does not run here")
    }
}

/// Compares the lines of a subject with default settings with the table.
fn compare(name: &str, trace: &Trace, shared: &[SharedLine]) -> Result<()> {
    let enough = trace.rounds().div_ceil(4).max(1);
    if std::env::var_os("VERBOSE").is_some() {
        shared.iter().for_each(|line| println!("{}", described(trace, line, enough)));
    }
    if !DEFAULTS.contains(&name) {
        return Ok(());
    }
    let written: Vec<_> = shared.iter().filter(|line| line.is_written_by_both(enough)).collect();
    let found: BTreeSet<_> = written.iter().map(|line| line.written_name()).collect();
    let listed = listed(name)?;
    let mut why = String::new();
    for line in written.iter().filter(|line| !listed.contains(&line.written_name())) {
        why += &format!("not in the table:\n{}\n", described(trace, line, enough));
    }
    for row in listed.difference(&found) {
        why += &format!("in the table, but no line that both CPUs write: {row}\n");
    }
    if why.is_empty() {
        return Ok(());
    }
    Err(format!("{why}the table is \"{SECTION}\" of docs/model.md").into())
}

/// Runs this program under valgrind.
fn trace(name: &str) -> Result<Trace> {
    let program = std::env::current_exe()?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]);
    let mut child = command.arg(&program).args([RUN, name]).stderr(Stdio::piped()).spawn()?;
    let output = child.stderr.take().ok_or("no standard error")?;
    let trace = Trace::read(BufReader::with_capacity(1 << 20, output), Image::of(&program)?);
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("valgrind: {status}").into());
    }
    let trace = trace?;
    if trace.rounds() != ROUNDS as usize || trace.regions.is_empty() {
        return Err(format!("{} rounds, {} structures", trace.rounds(), trace.regions.len()).into());
    }
    Ok(trace)
}

/// The lines in the table of the page for a subject.
fn listed(name: &str) -> Result<BTreeSet<String>> {
    let page: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/model.md");
    let page = fs::read_to_string(page)?;
    let section = page.split_once(SECTION).ok_or_else(|| format!("no section {SECTION:?}"))?.1;
    let rows = section.lines().take_while(|line| !line.starts_with("## "));
    let cells = rows.filter_map(|row| {
        let mut cells = row.strip_prefix('|')?.split('|').map(|cell| cell.trim().trim_matches('`'));
        (cells.next()? == name).then(|| cells.next().map(str::to_owned))?
    });
    Ok(cells.collect())
}

/// A line with the uses of both CPUs and the functions that write it.
fn described(trace: &Trace, line: &SharedLine, enough: usize) -> String {
    let [first, second] = line.uses.map(|uses| uses.word(enough));
    let mut text =
        format!("| {} | {first} | {second} | bytes of {}", line.written_name(), line.name());
    let mut command = Command::new("addr2line");
    command.args(["-Cfse"]).arg(std::env::current_exe().unwrap_or_default());
    let known = line.writers.iter().filter_map(|pc| trace.symbol_address(*pc));
    command.args(known.map(|address| format!("{address:x}")));
    if let Ok(output) = command.output() {
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        let pairs: Vec<_> = names.lines().collect();
        let functions: BTreeSet<_> = pairs.chunks(2).map(|pair| pair.join(" at ")).collect();
        functions.iter().take(8).for_each(|function| text += &format!("\n    {function}"));
    }
    text
}
