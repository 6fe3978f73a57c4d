//! Command-line definitions, and the one-line messages that refuse an invalid command line.
//!
//! Single values are parsed into their types here. Checks that need two options together are in
//! `link`.

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint, error::ErrorKind};
use clap_complete::Shell;
use ipnet::IpNet;
use quietline::QdiscConfig;
use quietline_config::dns::parse_server;

use self::values::{number, parse_address, parse_network, parse_seconds};
use crate::{
    demo::{Compare, Workload},
    failure::Failure,
    link::{AddressSpec, LinkSpec, Sysctl},
    output,
};

mod lab;
mod stats;
mod values;

pub(crate) use self::{
    lab::{
        LabArgs, LabCalibrateArgs, LabCommand, LabCompareArgs, LabMergeArgs, LabOutputArgs,
        LabRunArgs, LabTsqArgs,
    },
    stats::Stats,
};

/// A multi-core TCP/IP stack in user space.
///
/// `quietline demo` measures the stack on this machine, without options, root or a network. `serve`
/// and `connect` attach the stack to a network interface: a tap or tun interface that they create,
/// with the Linux kernel on its other end, or an existing interface.
#[derive(Debug, Parser)]
#[command(name = "quietline", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Build the host of serve or connect from a TOML file instead of link options: links,
    /// addresses, routes, settings, name servers.
    ///
    /// docs/host-file.md describes the file. --sysctl, --dns, --no-sandbox and the options of
    /// observation can be combined with it.
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure two in-process hosts connected by a simulated wire against the kernel's loopback.
    ///
    /// Runs every workload on quietline and on the kernel's loopback, interleaved, and prints
    /// medians, spread and ratios. Needs neither root nor a network.
    Demo(DemoArgs),
    /// Run experiments: each switches one mechanism of the stack and says whether that makes a
    /// difference.
    ///
    /// Arms take turns, every comparison has a positive control, and the verdict is "invalid" where
    /// a control fails or other programs used the machine. Needs neither root nor a network.
    Lab(LabArgs),
    /// Serve echo, discard, chargen, HTTP, or echo and discard of UDP over the stack.
    Serve(ServeArgs),
    /// Connect to a TCP or UDP port: copies stdin to the socket and the socket to stdout.
    Connect(ConnectArgs),
    /// List the settings of the stack by tier: value, default, allowed values and description.
    ///
    /// The option --sysctl of serve and connect takes these names. docs/sysctl.md has the same
    /// tables.
    Sysctl(SysctlArgs),
    /// Print the completion script for a shell.
    Completions {
        /// Shell to generate the script for.
        shell: Shell,
    },
    /// Print the man page.
    Man {
        /// Write one page per command into this directory instead of printing one.
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
    /// Duration of the measurement, in seconds.
    #[arg(long, value_name = "S", default_value = "12", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    /// Seed of the lossy wire's random choices and of the transferred content.
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// Set a sysctl of both quietline hosts by its Linux name, such as
    /// net.quietline.rx_context=prequeue_ref (repeatable). `quietline sysctl` lists the names;
    /// net.quietline.dev.default.NAME is a setting of the wire's devices.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) sysctl: Vec<Sysctl>,
    /// Compare values of one sysctl instead of quietline and the kernel: net.core.busy_read=0,50.
    ///
    /// Runs with the values take turns forwards and backwards (A B B A), each with new hosts. The
    /// ratio of each value to the first one is printed with its 95 % interval and a verdict, which
    /// is "invalid" while other programs use the machine.
    #[arg(long, value_name = "NAME=A,B[,...]", conflicts_with_all = ["pcap", "stats"])]
    pub(crate) compare: Option<Compare>,
    /// Write a self-contained HTML page with plots.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,
    /// Capture and statistics options.
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

/// Options of `quietline serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Service to run.
    #[arg(value_enum)]
    pub(crate) service: Service,
    /// Port to listen on [default: the service's well-known port].
    #[arg(long, value_name = "PORT", value_parser = number::<u16>(1..=65_535))]
    pub(crate) port: Option<u16>,
    /// Directory that the http service serves.
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
    /// Largest file that an http client may store, in bytes.
    #[arg(long, value_name = "BYTES", default_value = "1073741824", value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) upload_max: u64,
    /// Send the chargen pattern without a copy, from one packet buffer for each connection.
    #[arg(long)]
    pub(crate) zerocopy: bool,
    /// Connections served at the same time; further connections wait in the accept queue.
    #[arg(long, value_name = "N", default_value = "4096", value_parser = number::<u32>(1..=1_000_000))]
    pub(crate) max_connections: u32,
    /// Connections served at the same time for one peer address; further ones are closed [default:
    /// no limit].
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=1_000_000))]
    pub(crate) max_per_peer: Option<u32>,
    /// Print a line on stderr for every connection that opens or ends.
    ///
    /// Without this option only refused and failed connections are logged, at most 10 in 5 seconds.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Link and stack options.
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// Capture and statistics options.
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

/// Options of `quietline connect`.
#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// IP address to connect to, or a host name, alone or with the port: HOST:PORT.
    ///
    /// A name is looked up over the stack if a name server is known, by --dns, --config or DHCP;
    /// otherwise the system's resolver looks it up before the link is opened.
    #[arg(value_name = "HOST[:PORT]", value_hint = ValueHint::Hostname)]
    pub(crate) host: String,
    /// Port to connect to.
    #[arg(value_name = "PORT", value_parser = number::<u16>(1..=65_535))]
    pub(crate) port: Option<u16>,
    /// Exchange UDP datagrams instead of a TCP stream.
    ///
    /// Each read of stdin, such as a line of a terminal, becomes one datagram of at most 1,232
    /// bytes. After the end of stdin, the command ends when no datagram has arrived for a second.
    #[arg(long)]
    pub(crate) udp: bool,
    /// Link and stack options.
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// Capture and statistics options. Statistics go to stderr, because stdout carries the stream.
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

/// Options of `quietline sysctl`.
#[derive(Debug, Args)]
pub(crate) struct SysctlArgs {
    /// List only the setting with this name or, if there is none, the settings whose names contain
    /// this text. NAME=VALUE checks a value and lists the setting with it [default: all settings].
    #[arg(value_name = "NAME[=VALUE]")]
    pub(crate) names: Vec<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Services of `quietline serve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Send received bytes back (RFC 862).
    Echo,
    /// Receive and discard (RFC 863).
    Discard,
    /// Send printable characters until the peer closes the connection (RFC 864).
    Chargen,
    /// Serve the files of a directory over HTTP/1.1. A connection that is waiting for a request
    /// holds no thread.
    Http,
    /// Send received UDP datagrams back (RFC 862).
    UdpEcho,
    /// Receive UDP datagrams and discard them (RFC 863).
    UdpDiscard,
}

/// Link and stack options of `serve` and `connect`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Link options")]
pub(crate) struct LinkArgs {
    /// Network interface of the stack. tap:NAME and tun:NAME are created for the run;
    /// af_packet:IF[,OPTION...] and af_xdp:IF[,OPTION...] use an existing interface; kernel uses
    /// the kernel's sockets instead of the stack.
    ///
    /// Options of af_packet: rx=v2|v3|calls, tx=ring|calls, fanout=hash|cpu, qdisc=through|bypass,
    /// mac=ADDRESS, rx-ring=MEGABYTES, tx-ring=FRAMES, and with rx=v3 retire-ms=N. The defaults are
    /// rx=v2 and tx=calls. With rx=calls, rx-ring sets the size of the socket's receive buffer;
    /// with tx=calls, tx-ring limits the frames in flight.
    ///
    /// Options of af_xdp: mode=auto|generic|native|zerocopy, first-queue=N, ring=DESCRIPTORS,
    /// mac=ADDRESS, busy-poll=USECS, busy-poll-budget=N, trust-checksums. trust-checksums accepts
    /// the TCP checksums of received frames unverified. A veth whose peer leaves checksums partial
    /// needs it, unless `ethtool -K PEER tx off` is run on that peer; with mode=generic only the
    /// ethtool command helps, because superframes would arrive otherwise. af_xdp uses all queues of
    /// the interface unless --queues says otherwise.
    #[arg(long, value_name = "KIND:NAME")]
    pub(crate) link: Option<LinkSpec>,
    /// Address of the stack and its prefix length, such as 10.7.0.2/24, or dhcp.
    ///
    /// With dhcp the stack gets its address, routes, MTU and name servers from a DHCPv4 server on
    /// the link, and returns the address at the end.
    #[arg(long, value_name = "A/N|dhcp")]
    pub(crate) address: Option<AddressSpec>,
    /// Address of the kernel on its end of the link, such as 10.7.0.1/24.
    #[arg(long, value_name = "B/N", value_parser = parse_network)]
    pub(crate) peer: Option<IpNet>,
    /// Address of the default gateway.
    #[arg(long, value_name = "G", value_parser = parse_address)]
    pub(crate) gateway: Option<IpAddr>,
    /// Name server, as an IP address or ADDRESS:PORT (repeatable): the stack looks up host names
    /// there [default: those of --config or DHCP].
    #[arg(long, value_name = "SERVER", value_parser = parse_server)]
    pub(crate) dns: Vec<SocketAddr>,
    /// Number of cores of the stack [default: 1].
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=64))]
    pub(crate) cores: Option<u16>,
    /// Number of queues of the link, distributed over the cores [default: one for each core].
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=256))]
    pub(crate) queues: Option<u16>,
    /// MTU of the link, in bytes; TCP needs at least 88 [default: 1500, or the MTU of the existing
    /// interface].
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>(88..=65_535))]
    pub(crate) mtu: Option<u32>,
    /// Disable checksum and segmentation offload on the link.
    #[arg(long)]
    pub(crate) no_vnet_hdr: bool,
    /// Queueing discipline of the link in the syntax of tc: pfifo_fast, fq, fq_codel, noqueue or
    /// tbf with their parameters, such as 'tbf rate 100mbit burst 10kb latency 50ms'.
    #[arg(long, value_name = "QDISC")]
    pub(crate) qdisc: Option<QdiscConfig>,
    /// Set a sysctl of the stack by its Linux name, such as net.ipv4.tcp_timestamps=0, or a sysctl
    /// of one device, such as net.quietline.dev.ql0.rps_cpus=3 (repeatable). `quietline sysctl`
    /// lists the names.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) sysctl: Vec<Sysctl>,
    /// Keep all privileges after the link is open, for debugging.
    ///
    /// Without this option the command then drops all capabilities, cannot gain others
    /// (no_new_privs), cannot open files outside --dir (Landlock), and may only use the system
    /// calls that a running stack needs (seccomp). Calls such as execve terminate the command with
    /// SIGSYS, other calls fail with EPERM. The permissions of --dir must allow reading its files
    /// and, with --upload, writing its directories: root no longer bypasses permissions. --link
    /// kernel has no sandbox.
    #[arg(long)]
    pub(crate) no_sandbox: bool,
    /// Value of the option --config, which stands before or behind the command.
    #[arg(skip)]
    pub(crate) config: Option<PathBuf>,
}

/// Capture and statistics options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Observation")]
pub(crate) struct ObserveArgs {
    /// Capture every frame into a pcapng file that only its owner may read.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) pcap: Option<PathBuf>,
    /// Print the stack's counters at the end: by their Linux names and without zeros, as nstat
    /// does; then softnet_stat; then the transmit queues as tc -s qdisc does.
    ///
    /// --stats=all includes counters that are zero. --stats=SECONDS (serve, connect) also prints
    /// the counters every SECONDS while the command runs; all,SECONDS does both. Counters start at
    /// zero when the command starts. SIGUSR1 prints them at any time, with or without this option.
    #[arg(
        long,
        value_name = "all|SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub(crate) stats: Option<Stats>,
    /// Print JSON objects instead of text: one at the end, with every counter, and one for each
    /// earlier report.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Cli {
    /// Parses the process's arguments. `None`: help or version was printed, and the process can
    /// exit.
    pub(crate) fn from_command_line() -> Result<Option<Self>, Failure> {
        Self::from_arguments(std::env::args_os())
    }

    fn from_arguments(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Option<Self>, Failure> {
        match Self::try_parse_from(arguments) {
            Ok(cli) => cli.complete().map(Some),
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

impl Cli {
    /// Passes `--config` to the command, and refuses it where it has no use.
    fn complete(mut self) -> Result<Self, Failure> {
        let config = self.config.take();
        match &mut self.command {
            Command::Serve(ServeArgs { link, .. }) | Command::Connect(ConnectArgs { link, .. }) => {
                if link.link.is_none() && config.is_none() {
                    let reason =
                        "a link is missing: expected '--link KIND:NAME' or '--config FILE'";
                    return Err(Failure::Usage(reason.to_owned()));
                }
                link.config = config;
            }
            _ if config.is_some() => {
                let reason = "--config has a use only with the commands serve and connect";
                return Err(Failure::Usage(reason.to_owned()));
            }
            _ => {}
        }
        Ok(self)
    }
}

impl ServeArgs {
    /// The port to listen on.
    pub(crate) fn port(&self) -> u16 {
        self.port.unwrap_or_else(|| self.service.port())
    }
}

impl Service {
    /// The port that the IANA registry assigns to the service.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Echo | Self::UdpEcho => 7,
            Self::Discard | Self::UdpDiscard => 9,
            Self::Chargen => 19,
            Self::Http => 80,
        }
    }

    /// The service's name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Discard => "discard",
            Self::Chargen => "chargen",
            Self::Http => "http",
            Self::UdpEcho => "udp-echo",
            Self::UdpDiscard => "udp-discard",
        }
    }
}

/// Reduces clap's report to one line: the error and the suggestions. The usage text is left out,
/// because `--help` prints it.
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
