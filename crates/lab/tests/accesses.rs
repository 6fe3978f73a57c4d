//! trial
use quietline_lab::coherence::{subject::{Subject, SUBJECTS}, trace::{Image, Marks, Trace}};
use std::{io::BufReader, process::{Command, Stdio}};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name] = &arguments[..] && flag == "--subject" {
        Subject::find(name).unwrap().run(12, &Marks).unwrap();
        return;
    }
    let me = std::env::current_exe().unwrap();
    for subject in SUBJECTS {
        if !arguments.is_empty() && !arguments.iter().any(|a| a == subject.name) { continue; }
        let begin = std::time::Instant::now();
        let mut child = Command::new("valgrind").args(["--tool=lackey", "--trace-mem=yes"]).arg(&me).args(["--subject", subject.name]).stderr(Stdio::piped()).spawn().unwrap();
        let trace = Trace::read(BufReader::with_capacity(1<<20, child.stderr.take().unwrap()), Image::of(&me).unwrap()).unwrap();
        child.wait().unwrap();
        println!("== {} {:?} rounds {} parts {:?}", subject.name, begin.elapsed(), trace.rounds(), trace.parts.iter().take(6).map(|p| (p.cpu, p.instructions, p.accesses.len())).collect::<Vec<_>>());
        for line in trace.shared() {
            println!("  {:x} {} {:?}", line.number, line.name(), line.uses);
            for pc in line.writers.iter().take(6) { print!(" {:x?}", trace.symbol_address(*pc)); }
            println!();
        }
    }
}
