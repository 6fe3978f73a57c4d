//! `quietline demo`: what the stack does on this machine, next to the kernel's loopback.
//!
//! `run` measures on a thread of its own while the main thread waits for its end, for a signal, or for a time
//! after which something must hang. Then `table`, `json` and `report` show the same results.

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
    fs::File,
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use quietline::device::CaptureConfig;

pub(crate) use self::workload::Workload;
use self::{
    environment::Environment,
    run::{DemoResult, Outcome, Plan},
};
use crate::{
    args::DemoArgs,
    failure::Failure,
    link::Recording,
    output,
    signal::{Signals, Wake},
};

/// Beyond the time asked for: the longest a slice can take to notice that it stalls, and some.
const OVERTIME_MAX: Duration = Duration::from_secs(30);

/// Bytes kept of each captured packet: every header, and not the gigabytes the bulk streams carry.
const SNAPLEN: u32 = 256;

/// Runs the command.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    // Before the work, so that a bad path does not cost the user the time of a run.
    let report =
        args.report.as_deref().map(|path| create(path).map(|file| (path, file))).transpose()?;
    let capture = CaptureConfig { snaplen: SNAPLEN, ..CaptureConfig::default() };
    let recording = args.observe.pcap.as_deref().map(|path| Recording::start(path, &capture));
    let recording = recording.transpose()?.map(Arc::new);
    let result = supervise(Plan::new(args), recording.clone())?;
    if let Some(recording) = recording {
        recording.finish()?;
    }
    let environment = Environment::read();
    if let Some((path, mut file)) = report {
        let page = report::page(&result, &environment)?;
        file.write_all(page.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.observe.json {
        output::print_json(&json::object(&result, &environment, args.observe.stats))?;
    } else {
        output::print(&table::text(&result, &environment))?;
        if args.observe.stats {
            output::print(&table::counters(&result))?;
        }
        if let Some(path) = &args.report {
            output::remark(&format!("report: {}", path.display()));
        }
    }
    verdict(&result)
}

/// Measures on another thread and waits for it, but not for ever.
fn supervise(plan: Plan, recording: Option<Arc<Recording>>) -> Result<DemoResult, Failure> {
    let signals = Signals::install().context("cannot install signal handlers")?;
    let waker = signals.waker()?;
    let limit = Duration::from_secs_f64(plan.seconds) + OVERTIME_MAX;
    let progress = Arc::new(run::Progress::new(&plan));
    let result = Arc::new(Mutex::new(None));
    {
        let (progress, result) = (Arc::clone(&progress), Arc::clone(&result));
        // Not joined after a signal or a hang: the process ends under it, and there is nothing to clean up.
        thread::Builder::new().name("demo".to_owned()).spawn(move || {
            let measured = run::measure(&plan, recording.as_deref(), &progress);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(measured);
            waker.wake();
        })?;
    }
    let wake = signals.wait(Some(limit))?;
    progress.finish();
    match wake {
        Wake::Signal(number) => Err(Failure::Signal(number)),
        Wake::TimedOut => Err(anyhow!("{} hangs", progress.current()).into()),
        Wake::Woken => {
            let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(result.unwrap_or_else(|| Err(anyhow!("the demo ended without a result")))?)
        }
    }
}

fn create(path: &Path) -> Result<File, Failure> {
    Ok(File::create(path).with_context(|| format!("cannot create {}", path.display()))?)
}

/// Success means: every workload ran and every byte arrived as it was sent.
fn verdict(result: &DemoResult) -> Result<(), Failure> {
    for outcome in &result.outcomes {
        if let Some(error) = &outcome.error {
            return Err(anyhow!("{} failed: {error}", outcome.workload.name()).into());
        }
        if outcome.content.as_ref().is_some_and(|content| !content.ok()) {
            return Err(
                anyhow!("{}: the content changed on its way", outcome.workload.name()).into()
            );
        }
        if Outcome::is_empty(outcome) {
            return Err(anyhow!("{} was not measured", outcome.workload.name()).into());
        }
    }
    Ok(())
}
