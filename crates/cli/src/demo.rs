//! `quietline demo`: measures the stack on this machine, next to the kernel's loopback.
//!
//! `run` measures on a separate thread. The main thread waits for its end, for a signal, or for a
//! time limit that detects a hang. Then `table`, `json` and `report` show the same results.

mod compare;
mod content;
mod environment;
mod json;
mod meter;
mod pair;
mod plot;
mod report;
mod run;
mod slice;
mod table;
mod workload;

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use quietline::device::CaptureConfig;

pub(crate) use self::{compare::Compare, workload::Workload};
use self::{
    environment::Environment,
    run::{DemoResult, Outcome, Plan},
    table::Characters,
};
use crate::{
    args::DemoArgs,
    failure::Failure,
    link::Recording,
    output,
    page_file::PageFile,
    settings,
    signal::{Signals, Wake},
};

/// Time limit beyond the requested duration: the longest time until a slice detects a stall, with a
/// margin.
const OVERTIME_MAX: Duration = Duration::from_secs(30);

/// Captured bytes of each packet: every header, but not the gigabytes that the bulk streams carry.
const SNAPLEN: u32 = 256;

/// Runs the command.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    if args.observe.stats.is_some_and(|stats| stats.every.is_some()) {
        let reason = "expected all: a demo prints its counters at the end";
        return Err(Failure::Usage(format!("invalid value for '--stats': {reason}")));
    }
    for setting in &args.sysctl {
        settings::check_value("--sysctl", &setting.name, &setting.value)?;
    }
    if let Some(compare) = &args.compare {
        return compare::run(args, compare);
    }
    let page = args.report.as_deref().map(PageFile::open).transpose()?;
    let capture = CaptureConfig { snaplen: SNAPLEN, ..CaptureConfig::default() };
    let recording = args.observe.pcap.as_deref().map(|path| Recording::start(path, &capture));
    let recording = recording.transpose()?.map(Arc::new);
    let result = supervise(Plan::new(args), recording.clone())?;
    let environment = Environment::read();
    // The results are printed even if a file fails. The failure becomes the command's result at the
    // end.
    let written: Result<(), Failure> =
        page.map_or(Ok(()), |file| Ok(file.write(&report::page(&result, &environment)?)?));
    let captured = recording.map_or(Ok(()), |recording| recording.finish());
    let printed = print(args, &result, &environment);
    if let (Some(path), Ok(()), false) = (&args.report, &written, args.observe.json) {
        output::remark(&format!("report: {}", path.display()));
    }
    let measured = verdict(&result);
    written.and(captured).and(measured).and(printed)
}

/// Prints the results and, if requested, the counters.
fn print(args: &DemoArgs, result: &DemoResult, environment: &Environment) -> Result<(), Failure> {
    if args.observe.json {
        let stats = args.observe.stats.is_some();
        return output::print_json(&json::object(result, environment, stats));
    }
    let characters = if output::is_plain() { Characters::Ascii } else { Characters::Unicode };
    let mut text = table::text(result, environment, characters);
    if let Some(stats) = args.observe.stats {
        text.push_str(&table::counters(result, stats.all));
    }
    output::print(&text)
}

/// Measures on another thread, and waits for it up to a time limit.
fn supervise(plan: Plan, recording: Option<Arc<Recording>>) -> Result<DemoResult, Failure> {
    let signals = Signals::install().context("cannot install signal handlers")?;
    let waker = signals.waker()?;
    let limit = Duration::from_secs_f64(plan.seconds) + OVERTIME_MAX;
    let progress = Arc::new(run::Progress::new(&plan));
    let result = Arc::new(Mutex::new(None));
    {
        let (progress, result) = (Arc::clone(&progress), Arc::clone(&result));
        // The thread is not joined after a signal or a hang: the process exits, and the thread has
        // nothing to clean up.
        thread::Builder::new().name("demo".to_owned()).spawn(move || {
            let measured = run::measure(&plan, recording.as_deref(), &progress);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(measured);
            waker.wake();
        })?;
    }
    let end = Instant::now() + limit;
    let wake = loop {
        // SIGUSR1 is ignored: a demo has nothing to report before its end.
        match signals.wait(Some(end.saturating_duration_since(Instant::now())))? {
            Wake::Report => {}
            wake => break wake,
        }
    };
    progress.finish();
    match wake {
        Wake::Signal(number) => Err(Failure::Signal(number)),
        Wake::TimedOut | Wake::Report => Err(anyhow!("{} hangs", progress.current()).into()),
        Wake::Woken => {
            let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(result.unwrap_or_else(|| Err(anyhow!("the demo ended without a result")))?)
        }
    }
}

/// Fails if a workload failed or was not measured, or if checked content differs.
fn verdict(result: &DemoResult) -> Result<(), Failure> {
    for outcome in &result.outcomes {
        if let Some(error) = &outcome.error {
            return Err(anyhow!("{} failed: {error}", outcome.workload.name()).into());
        }
        if outcome.content.as_ref().is_some_and(|content| !content.ok()) {
            return Err(anyhow!(
                "{}: the received content differs from the sent content",
                outcome.workload.name()
            )
            .into());
        }
        if Outcome::is_empty(outcome) {
            return Err(anyhow!("{} was not measured", outcome.workload.name()).into());
        }
    }
    Ok(())
}
