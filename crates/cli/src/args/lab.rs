//! Options of `quietline lab`.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, Subcommand, ValueHint};
use ipnet::IpNet;

use super::values::{number, parse_address, parse_network, parse_runs};

/// Options of `quietline lab`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LabArgs {
    /// Experiment to run, or what to do with results.
    #[command(subcommand)]
    pub(crate) command: Option<LabCommand>,
    /// Options without an experiment: the jobs of all of them.
    #[command(flatten)]
    pub(crate) all: LabRunArgs,
}

/// The experiments, and what is done with their results.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// The prequeue with and without route references (Linux 3.18), and without a prequeue.
    Prequeue(LabRunArgs),
    /// Lists of packets in the receive path (Linux 5.4).
    GroBatch(LabRunArgs),
    /// The place of a route entry's reference count, and the way to count (Linux 6.4).
    DstLayout(LabRunArgs),
    /// TCP Small Queues (Linux 3.6), in virtual time or over a queue of the kernel.
    Tsq(LabTsqArgs),
    /// Recycled packets: one-packet caches of a socket (Linux 5.2) and later ways.
    SkbCache(LabRunArgs),
    /// All experiments, one after the other.
    All(LabRunArgs),
    /// Test the lab on this machine: equal work under two names, and work that takes 3 % longer.
    ///
    /// Fails unless the equal arms show no difference and the planted slowdown is found. A failure
    /// is a reason to believe no other experiment on this machine.
    Selftest(LabRunArgs),
    /// Compare the results of two runs, which --report or --json has stored.
    ///
    /// Compares every metric of every arm that both results have, by Welch's test after Holm's
    /// correction. The runs of two results are not interleaved, so that a difference may be one of
    /// the machines.
    Compare(LabCompareArgs),
    /// Merge the results of the jobs of a sweep into one result, and judge it as a whole.
    ///
    /// Takes the JSON files of all jobs of one plan. They must be of one version of quietline and
    /// of one command, and each job must occur once.
    Merge(LabMergeArgs),
    /// Measure what a cache line costs between two CPUs, and compare the coherence model with it.
    ///
    /// Measures reads and atomic additions on lines that the other CPU has read or modified, then
    /// runs programs on two CPUs and in the model. Each prediction should be within 15 % of the
    /// measurement on a quiet machine. docs/model.md describes the model.
    Calibrate(LabCalibrateArgs),
}

/// Options of `quietline lab tsq`.
#[derive(Debug, Args)]
pub(crate) struct LabTsqArgs {
    /// Options of every experiment.
    #[command(flatten)]
    pub(crate) run: LabRunArgs,
    /// Measure over a queue of the kernel instead of in virtual time: on this existing interface,
    /// through a packet socket. Needs root, or CAP_NET_RAW.
    #[arg(
        long,
        value_name = "IF",
        requires_all = ["address", "peer"],
        conflicts_with_all = ["plan", "job"]
    )]
    pub(crate) real: Option<String>,
    /// Address of the stack on that interface and its prefix length. No other host may have it.
    #[arg(long, value_name = "A/N", requires = "real", value_parser = parse_network)]
    pub(crate) address: Option<IpNet>,
    /// Address of the peer, a neighbor on the link that runs 'quietline serve discard' and
    /// 'quietline serve echo', or other services of these names.
    #[arg(long, value_name = "B", requires = "real", value_parser = parse_address)]
    pub(crate) peer: Option<IpAddr>,
    /// Port of the peer's discard service.
    #[arg(
        long,
        value_name = "PORT",
        default_value = "9",
        requires = "real",
        value_parser = number::<u16>(1..=65_535)
    )]
    pub(crate) discard_port: u16,
    /// Port of the peer's echo service.
    #[arg(
        long,
        value_name = "PORT",
        default_value = "7",
        requires = "real",
        value_parser = number::<u16>(1..=65_535)
    )]
    pub(crate) echo_port: u16,
}

/// Options of a run.
#[derive(Debug, Args)]
pub(crate) struct LabRunArgs {
    /// Leave conditions and arms out, and measure for a shorter time.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Runs of each arm in each condition, an even number; 20 or more for results that others are
    /// to believe [default: 20, with --quick 10].
    #[arg(long, value_name = "N", value_parser = parse_runs)]
    pub(crate) runs: Option<u32>,
    /// Seed of everything random.
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// List the jobs of the run instead of running them, one JSON object per line.
    ///
    /// A job is one condition of one experiment: its arms must take turns in one process, and
    /// conditions need not. Each line has the job's number, its experiment and condition, an
    /// estimate of its time, and the command that runs it. deploy/ has scripts for Slurm, GNU
    /// parallel and Kubernetes.
    #[arg(long, conflicts_with_all = ["job", "json", "report"])]
    pub(crate) plan: bool,
    /// Run only this job of the plan, numbered from 0. 'lab merge' takes the results of all jobs.
    #[arg(long, value_name = "K", value_parser = number::<usize>(0..=1_000_000))]
    pub(crate) job: Option<usize>,
    /// Output options.
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

/// Output options of a run and of a merge.
#[derive(Debug, Args)]
pub(crate) struct LabOutputArgs {
    /// Print one JSON object with every run instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a self-contained HTML page, the JSON object and a CSV file of every run into this
    /// directory: lab.html, lab.json and lab.csv.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) report: Option<PathBuf>,
}

/// Options of `quietline lab compare`.
#[derive(Debug, Args)]
pub(crate) struct LabCompareArgs {
    /// JSON file of the first run, the divisor of the ratios.
    #[arg(value_name = "A.json", value_hint = ValueHint::FilePath)]
    pub(crate) first: PathBuf,
    /// JSON file of the second run.
    #[arg(value_name = "B.json", value_hint = ValueHint::FilePath)]
    pub(crate) second: PathBuf,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `quietline lab merge`.
#[derive(Debug, Args)]
pub(crate) struct LabMergeArgs {
    /// JSON files of the jobs, in any order.
    #[arg(value_name = "JOB.json", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// Merge although jobs of the plan are missing.
    #[arg(long)]
    pub(crate) partial: bool,
    /// Output options.
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

/// Options of `quietline lab calibrate`.
#[derive(Debug, Args)]
pub(crate) struct LabCalibrateArgs {
    /// Repetitions of each cost, whose median counts.
    #[arg(long, value_name = "N", default_value = "400", value_parser = number::<u32>(4..=1_000_000))]
    pub(crate) repetitions: u32,
    /// Print one JSON object, which also has the scaling curves of the model.
    #[arg(long)]
    pub(crate) json: bool,
}
