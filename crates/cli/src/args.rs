//! The command line: what it accepts, and how it says no in one line.
//!
//! Values are parsed into their types here; what needs two options together is checked in `link`.

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    path::PathBuf,
};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint, error::ErrorKind};
use clap_complete::Shell;
use ipnet::IpNet;
use quietline::QdiscConfig;

use crate::{
    demo::Workload,
    failure::Failure,
    link::{LinkSpec, Sysctl},
    output,
};

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
    #[arg(long, value_name = "N", default_value_t = 1)]
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
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<NonZeroU16>,
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
    /// Send what chargen sends without a copy: from packet memory, where its pattern lies once for each connection.
    #[arg(long)]
    pub(crate) zerocopy: bool,
    /// Connections served at once; more wait in the accept queue.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,
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
    /// Address to connect to.
    #[arg(value_name = "HOST")]
    pub(crate) host: IpAddr,
    /// Port to connect to.
    #[arg(value_name = "PORT")]
    pub(crate) port: NonZeroU16,
    /// The stack to connect from.
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// What to record and print. The JSON summary goes to stderr, because stdout carries the stream.
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
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
    /// Serve the files of a directory over HTTP/1.1.
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
    /// busy-poll-budget=N, trust-checksums. It takes all queues of the interface unless --queues says otherwise.
    #[arg(long, value_name = "KIND:NAME")]
    pub(crate) link: LinkSpec,
    /// Our address and its prefix length, such as 10.7.0.2/24.
    #[arg(long, value_name = "A/N", value_parser = parse_network)]
    pub(crate) address: Option<IpNet>,
    /// The kernel's address on its end of the link, such as 10.7.0.1/24.
    #[arg(long, value_name = "B/N", value_parser = parse_network)]
    pub(crate) peer: Option<IpNet>,
    /// Default gateway.
    #[arg(long, value_name = "G")]
    pub(crate) gateway: Option<IpAddr>,
    /// Cores of the stack.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) cores: u16,
    /// Queues of the link, spread over the cores [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) queues: Option<u16>,
    /// MTU of the link [default: 1500; of an interface that exists, its own].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(68..=65_535))]
    pub(crate) mtu: Option<u32>,
    /// No checksum or segmentation offload on the link.
    #[arg(long)]
    pub(crate) no_vnet_hdr: bool,
    /// Queueing discipline in front of the link, as tc writes it: pfifo_fast, fq, fq_codel, noqueue or tbf with their parameters,
    /// such as 'tbf rate 100mbit burst 10kb latency 50ms'.
    #[arg(long, value_name = "QDISC")]
    pub(crate) qdisc: Option<QdiscConfig>,
    /// Set a sysctl of the stack by its Linux name, such as net.ipv4.tcp_timestamps=0, or one of a device, such as
    /// net.quietline.dev.ql0.rps_cpus=3 (repeatable).
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) sysctl: Vec<Sysctl>,
}

/// What a run leaves behind besides its work.
#[derive(Debug, Args)]
#[command(next_help_heading = "Observation")]
pub(crate) struct ObserveArgs {
    /// Capture every frame into a pcapng file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) pcap: Option<PathBuf>,
    /// Print the stack's counters at the end, by their Linux names, softnet_stat, and the transmit queues as tc -s qdisc does.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print one JSON object instead of text.
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
                _ => Err(Failure::Usage(first_sentence(&error.render().to_string()))),
            },
        }
    }
}

impl ServeArgs {
    /// The port to listen on.
    pub(crate) fn port(&self) -> u16 {
        self.port.map_or_else(|| self.service.port(), NonZeroU16::get)
    }
}

impl ConnectArgs {
    /// Where to connect.
    pub(crate) fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port.get())
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

/// Reduces clap's report to its first paragraph on one line: the usage that follows is one `--help` away.
fn first_sentence(report: &str) -> String {
    let paragraph = report.split("\n\n").next().unwrap_or(report);
    output::one_line(paragraph.trim_start_matches("error: "))
}

fn parse_network(text: &str) -> Result<IpNet, String> {
    if let Ok(network) = text.parse() {
        return Ok(network);
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err(format!("the prefix length is missing; did you mean {text}/24?"));
    }
    Err("expected an address and a prefix length, such as 10.7.0.2/24".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0.01 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Option<Cli>, Failure> {
        Cli::from_arguments(line.split(' ').map(OsString::from))
    }

    fn refusal(line: &str) -> String {
        match parse(line) {
            Err(Failure::Usage(message)) => message,
            other => panic!("{line}: expected a usage failure, got {other:?}"),
        }
    }

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_full_serve_line_parses() {
        let line = "quietline serve http --dir /srv --link tap:ql0 --address 10.7.0.2/24 --peer \
                    10.7.0.1/24 --gateway 10.7.0.1 --cores 2 --mtu 9000 --no-vnet-hdr --port 8080 --queues 1 \
                    --sysctl net.quietline.dev.ql0.rps_cpus=3 --stats --json";
        let Ok(Some(Cli { command: Command::Serve(args) })) = parse(line) else {
            panic!("refused");
        };
        assert_eq!((args.port(), args.link.cores, args.link.mtu), (8080, 2, Some(9000)));
        assert_eq!(args.link.queues, Some(1));
        assert!(args.link.no_vnet_hdr && args.observe.stats && args.observe.json);
    }

    #[test]
    fn services_have_their_ports() {
        let line = "quietline serve --link kernel chargen";
        let Ok(Some(Cli { command: Command::Serve(args) })) = parse(line) else {
            panic!("refused");
        };
        assert_eq!(args.port(), 19);
    }

    #[test]
    fn refusals_are_one_line() {
        for line in [
            "quietline",
            "quietline frobnicate",
            "quietline demo --seconds 0",
            "quietline demo --workload nothing",
            "quietline serve http --link tap:ql0 --address 10.0.0.2/24",
            "quietline serve echo",
            "quietline serve echo --link tap:ql0 --address 10.0.0.300/24",
            "quietline serve echo --link tap:ql0 --address 10.0.0.2",
            "quietline serve echo --link bridge:x --address 10.0.0.2/24",
            "quietline serve echo --link tap:ql0 --address 10.0.0.2/24 --mtu 40",
            "quietline connect 10.0.0.1 0 --link tap:ql0",
            "quietline connect example 80 --link tap:ql0",
        ] {
            let message = refusal(line);
            assert!(!message.is_empty() && !message.contains('\n'), "{line}: {message}");
        }
    }

    #[test]
    fn a_missing_prefix_length_is_explained() {
        let message = refusal("quietline serve echo --link tap:ql0 --address 10.0.0.2");
        assert!(message.contains("--address") && message.contains("10.0.0.2/24"), "{message}");
    }
}
