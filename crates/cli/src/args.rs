//! The command line: what it accepts, and how it says no in one line.
//!
//! Values are parsed into their types here; what needs two options together is checked in `link`.

use std::{ffi::OsString, net::IpAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint, error::ErrorKind};
use clap_complete::Shell;
use ipnet::IpNet;
use quietline::QdiscConfig;

use self::values::{number, parse_address, parse_network, parse_seconds};
use crate::{
    demo::Workload,
    failure::Failure,
    link::{LinkSpec, Sysctl},
    output,
};

mod stats;
mod values;

pub(crate) use self::stats::Stats;

/// A multi-core TCP/IP stack in user space.
///
/// Without arguments to tune, `quietline demo` shows what the stack does on this machine, without root and
/// without a network. `serve` and `connect` put it on a tap or tun link, with the Linux kernel on the other
/// end.
#[derive(Debug, Parser)]
#[command(name = "quietline", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure two in-process hosts joined by a wire against the kernel's loopback.
    ///
    /// Runs every workload on quietline and on the kernel's loopback, interleaved, and prints medians,
    /// spread and ratios. Needs neither root nor a network.
    Demo(DemoArgs),
    /// Serve echo, discard, chargen or HTTP over the stack.
    Serve(ServeArgs),
    /// Connect to a TCP port: stdin goes to the socket, the socket to stdout.
    Connect(ConnectArgs),
    /// List the settings of the stack by tier: value, default, allowed values and description.
    ///
    /// These are the names that --sysctl of serve and connect takes. docs/sysctl.md has the same tables.
    Sysctl(SysctlArgs),
    /// Print the completion script of a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the man page.
    Man {
        /// Write one page per command into this directory instead.
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

/// Options of `quietline demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Run only this workload (repeatable).
    #[arg(long = "workload", value_name = "NAME", value_enum)]
    pub(crate) workloads: Vec<Workload>,
    /// Time to spend measuring, in seconds.
    #[arg(long, value_name = "S", default_value = "12", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    /// Seed of the lossy wire and of the transferred content.
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// Write a self-contained HTML page with plots.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,
    /// What to record and print.
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

/// Options of `quietline serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The service.
    #[arg(value_enum)]
    pub(crate) service: Service,
    /// Port to listen on [default: the service's well-known port].
    #[arg(long, value_name = "PORT", value_parser = number::<u16>(1..=65_535))]
    pub(crate) port: Option<u16>,
    /// Directory that http serves.
    #[arg(
        long,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        required_if_eq("service", "http")
    )]
    pub(crate) dir: Option<PathBuf>,
    /// Let http clients store files in the directory with PUT.
    #[arg(long)]
    pub(crate) upload: bool,
    /// Most bytes of one file that an http client stores.
    #[arg(long, value_name = "BYTES", default_value = "1073741824", value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) upload_max: u64,
    /// Send what chargen sends without a copy: from packet memory, where its pattern lies once for each connection.
    #[arg(long)]
    pub(crate) zerocopy: bool,
    /// Connections served at once; more wait in the accept queue.
    #[arg(long, value_name = "N", default_value = "4096", value_parser = number::<u32>(1..=1_000_000))]
    pub(crate) max_connections: u32,
    /// Connections of one address served at once; more are closed [default: no limit].
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=1_000_000))]
    pub(crate) max_per_peer: Option<u32>,
    /// Print a line on stderr for every connection that opens or ends.
    ///
    /// Without it only connections that are refused or fail have a line, at most 10 in 5 seconds.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// The stack to serve on.
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// What to record and print.
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

/// Options of `quietline connect`.
#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// Address to connect to, or a name, which the system's resolver looks up.
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname)]
    pub(crate) host: String,
    /// Port to connect to.
    #[arg(value_name = "PORT", value_parser = number::<u16>(1..=65_535))]
    pub(crate) port: u16,
    /// The stack to connect from.
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// What to record and print. The JSON summary goes to stderr, because stdout carries the stream.
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

/// Options of `quietline sysctl`.
#[derive(Debug, Args)]
pub(crate) struct SysctlArgs {
    /// List only settings of this name, or with this text in their names; NAME=VALUE checks a value and lists the setting with
    /// it [default: all settings].
    #[arg(value_name = "NAME[=VALUE]")]
    pub(crate) names: Vec<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `quietline serve` can serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Send everything back (RFC 862).
    Echo,
    /// Read and forget (RFC 863).
    Discard,
    /// Send printable characters for ever (RFC 864).
    Chargen,
    /// Serve the files of a directory over HTTP/1.1. A connection that waits for a request has no thread.
    Http,
}

/// How a stack is put on a link.
#[derive(Debug, Args)]
#[command(next_help_heading = "Link options")]
pub(crate) struct LinkArgs {
    /// tap:NAME or tun:NAME, created for the run; af_packet:IF[,OPTION...] or af_xdp:IF[,OPTION...], an interface that exists;
    /// kernel uses the machine's own sockets instead.
    ///
    /// Options of af_packet: rx=v2|v3|calls, tx=ring|calls, fanout=hash|cpu, qdisc=through|bypass, mac=ADDRESS,
    /// rx-ring=MEGABYTES, tx-ring=FRAMES, and with rx=v3 retire-ms=N. Unless told otherwise rx=v2 and tx=calls; with calls, rx-ring
    /// is the socket's receive buffer and tx-ring how many frames may be under way.
    ///
    /// Options of af_xdp: mode=auto|generic|native|zerocopy, first-queue=N, ring=DESCRIPTORS, mac=ADDRESS, busy-poll=USECS,
    /// busy-poll-budget=N, trust-checksums: take TCP checksums of what arrives for good, unseen. Needed on a veth whose other
    /// end leaves them unfinished, unless `ethtool -K PEER tx off` is run there; with mode=generic only the latter works, as
    /// superframes would arrive. It takes all queues of the interface unless --queues says otherwise.
    #[arg(long, value_name = "KIND:NAME")]
    pub(crate) link: LinkSpec,
    /// Our address and its prefix length, such as 10.7.0.2/24.
    #[arg(long, value_name = "A/N", value_parser = parse_network)]
    pub(crate) address: Option<IpNet>,
    /// The kernel's address on its end of the link, such as 10.7.0.1/24.
    #[arg(long, value_name = "B/N", value_parser = parse_network)]
    pub(crate) peer: Option<IpNet>,
    /// Default gateway.
    #[arg(long, value_name = "G", value_parser = parse_address)]
    pub(crate) gateway: Option<IpAddr>,
    /// Cores of the stack [default: 1].
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=64))]
    pub(crate) cores: Option<u16>,
    /// Queues of the link, spread over the cores [default: one for each core].
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=256))]
    pub(crate) queues: Option<u16>,
    /// MTU of the link [default: 1500; of an interface that exists, its own]. TCP needs 88 bytes.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>(88..=65_535))]
    pub(crate) mtu: Option<u32>,
    /// No checksum or segmentation offload on the link.
    #[arg(long)]
    pub(crate) no_vnet_hdr: bool,
    /// Queueing discipline in front of the link, as tc writes it: pfifo_fast, fq, fq_codel, noqueue or tbf with their parameters,
    /// such as 'tbf rate 100mbit burst 10kb latency 50ms'.
    #[arg(long, value_name = "QDISC")]
    pub(crate) qdisc: Option<QdiscConfig>,
    /// Set a sysctl of the stack by its Linux name, such as net.ipv4.tcp_timestamps=0, or one of a device, such as
    /// net.quietline.dev.ql0.rps_cpus=3 (repeatable). `quietline sysctl` lists them.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) sysctl: Vec<Sysctl>,
    /// Keep all privileges after the link is open, for debugging.
    ///
    /// Without it the command then drops all capabilities, cannot gain others (no_new_privs), opens no file outside --dir
    /// (Landlock) and has only the system calls that a running stack needs (seccomp): calls such as execve end it by SIGSYS,
    /// others fail with EPERM. Files of --dir must be readable, and with --upload its directories writable, by their permissions:
    /// root has no way around these any more. --link kernel has no sandbox.
    #[arg(long)]
    pub(crate) no_sandbox: bool,
}

/// What a run leaves behind besides its work.
#[derive(Debug, Args)]
#[command(next_help_heading = "Observation")]
pub(crate) struct ObserveArgs {
    /// Capture every frame into a pcapng file, which only its owner may read.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) pcap: Option<PathBuf>,
    /// Print the stack's counters at the end: by their Linux names and without zeros, as nstat does, then softnet_stat, then the
    /// transmit queues as tc -s qdisc does.
    ///
    /// --stats=all prints zeros, too. --stats=SECONDS (serve, connect) also prints them every SECONDS while the command runs;
    /// all,SECONDS does both. Counters run from the start of the command. SIGUSR1 prints them at any time, with or without
    /// this option.
    #[arg(
        long,
        value_name = "all|SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub(crate) stats: Option<Stats>,
    /// Print JSON objects instead of text: one at the end, which has every counter, and one each time that statistics are
    /// printed before.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Cli {
    /// Parses the process's arguments. `None`: help or version was printed and all is done.
    pub(crate) fn from_command_line() -> Result<Option<Self>, Failure> {
        Self::from_arguments(std::env::args_os())
    }

    fn from_arguments(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Option<Self>, Failure> {
        match Self::try_parse_from(arguments) {
            Ok(cli) => Ok(Some(cli)),
            Err(error) => match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                    output::print(&error.render().to_string()).map(|()| None)
                }
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                    Err(Failure::Usage("a command is missing; try 'quietline --help'".to_owned()))
                }
                _ => Err(Failure::Usage(complaint(&error.render().to_string()))),
            },
        }
    }
}

impl ServeArgs {
    /// The port to listen on.
    pub(crate) fn port(&self) -> u16 {
        self.port.unwrap_or_else(|| self.service.port())
    }
}

impl Service {
    /// The port the assigned-numbers registry gives the service.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Echo => 7,
            Self::Discard => 9,
            Self::Chargen => 19,
            Self::Http => 80,
        }
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Discard => "discard",
            Self::Chargen => "chargen",
            Self::Http => "http",
        }
    }
}

/// Reduces clap's report to one line: the complaint and the suggestions. The usage that follows is one `--help` away.
fn complaint(report: &str) -> String {
    let is_reason = |text: &&str| {
        let text = text.trim_start();
        !text.is_empty() && !text.starts_with("Usage:") && !text.starts_with("For more information")
    };
    let paragraphs: Vec<_> = report.split("\n\n").filter(is_reason).map(output::one_line).collect();
    let line = paragraphs.join("; ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests;
