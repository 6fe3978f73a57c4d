//! A stack that gets its IPv6 address and its default route from radvd, and a kernel behind that
//! router as its peer.
//!
//! ```text
//!    far fd99::2 ── fd99::1 lab: router, radvd fd88::1 ── quietline fd88::…, by advertisements
//! ```
//!
//! Not here: routers made of bytes, lifetimes, floods (simulator).

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener as KernelListener};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use netns_tests::{AnyLink, Kind, Namespace, Running};
use quietline::{Route, Stack, TcpStream};

/// Address of the far kernel.
const FAR: &str = "fd99::2";

const PORT: u16 = 5000;

/// Time limit for the first advertisement and for the probe of the address, which takes two seconds
/// at most.
const LIMIT: Duration = Duration::from_secs(10);

/// Time limit of one attempt to connect. With the route, but before the address, the source is
/// link-local, and the router forwards no such packet.
const ATTEMPT: Duration = Duration::from_millis(500);

/// Prefix that radvd announces, without its last 64 bits.
const PREFIX: [u16; 4] = [0xfd88, 0, 0, 0];

/// Makes the far namespace, and lets the lab route.
fn far_namespace(link: &AnyLink) -> Result<Namespace> {
    let far = Namespace::create()?;
    far.shell(
        "for conf in all default; do echo 0 >/proc/sys/net/ipv6/conf/$conf/disable_ipv6; done",
    )?;
    let lab = &link.lab.namespace;
    lab.ip("link add near0 type veth peer name far0")?;
    lab.ip(&format!("link set far0 netns {}", far.name()))?;
    lab.ip("address add fd99::1/64 dev near0 nodad")?;
    lab.ip("link set near0 up")?;
    lab.ip(&format!("address add fd88::1/64 dev {} nodad", link.interface))?;
    far.ip(&format!("address add {FAR}/64 dev far0 nodad"))?;
    far.ip("link set far0 up")?;
    far.ip("route add default via fd99::1")?;
    link.lab.shell("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")?;
    Ok(far)
}

/// Starts radvd on the kernel's end of the link.
fn announce(link: &AnyLink) -> Result<Running> {
    let file = link.lab.file("radvd.conf");
    let interface = link.interface;
    std::fs::write(
        &file,
        format!(
            "interface {interface} {{ AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4;\n\
             prefix fd88::/64 {{ AdvOnLink on; AdvAutonomous on; }}; }};\n"
        ),
    )?;
    let mut command = link.lab.namespace.command("radvd");
    command.args(["-n", "-m", "stderr", "-C"]).arg(&file).arg("-p").arg(link.lab.file("radvd.pid"));
    Running::start(&mut command)
}

/// Connects as soon as the stack has a route.
fn connect(stack: &Stack, radvd: &Running) -> Result<TcpStream> {
    let deadline = Instant::now() + LIMIT;
    let to = SocketAddr::new(FAR.parse()?, PORT);
    loop {
        match TcpStream::connect_timeout(stack, to, ATTEMPT) {
            Ok(stream) if is_announced(stream.local_addr()?.ip()) => return Ok(stream),
            // The route can be there before the address.
            Ok(_) | Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            Ok(stream) => bail!("the source is {}", stream.local_addr()?),
            Err(error) => bail!("{error}; radvd: {}", radvd.stderr_so_far()),
        }
    }
}

fn is_announced(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(ip) if ip.segments()[..4] == PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_follows_its_router() -> Result<()> {
        let test = "a_stack_follows_its_router";
        // AF_XDP gets multicasts of the link without joining their groups at the kernel.
        let programs = ["radvd", "ping"];
        let Some(link) = AnyLink::open(test, &programs, Kind::AfXdp)? else { return Ok(()) };
        let far = far_namespace(&link)?;
        let server = far.enter(|| Ok(KernelListener::bind((Ipv6Addr::UNSPECIFIED, PORT))?))?;
        let radvd = announce(&link)?;
        // No address: the stack has a link-local one until the router answers.
        let stack = link.build(|builder| Ok(builder.sysctl("net.ipv6.conf.all.accept_ra", "1")))?;
        // Connections that had another source end at once, and the server reads nothing from them.
        let echo = thread::spawn(move || -> Result<SocketAddr> {
            loop {
                let (mut stream, peer) = server.accept()?;
                stream.set_read_timeout(Some(LIMIT))?;
                let mut word = [0; 5];
                if stream.read_exact(&mut word).is_ok() {
                    stream.write_all(&word)?;
                    return Ok(peer);
                }
            }
        });
        let mut stream = connect(&stack, &radvd)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"hello")?;
        let mut word = [0; 5];
        stream.read_exact(&mut word)?;
        let peer = echo.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ensure!(peer == stream.local_addr()?, "the far kernel sees {peer}");
        // The other direction, to an address that only the router's announcements can have made.
        let printed = far.tool("ping", &format!("-6 -n -q -c 3 -i 0.01 -W 2 {}", peer.ip()))?;
        ensure!(printed.contains("3 received"), "{printed}");
        let routes = stack.routes();
        let is_default = |route: &&Route| route.prefix.prefix_len() == 0;
        ensure!(routes.iter().filter(is_default).count() == 1, "{routes:?}");
        drop(stream);
        stack.shutdown();
        Ok(())
    }
}
