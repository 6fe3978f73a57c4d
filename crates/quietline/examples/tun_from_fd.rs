//! A stack on a tun descriptor that other code has opened: a VPN service of Android, a privileged parent, a container runtime.
//!
//! The program that opened the descriptor has also made the interface, its address and its state. [`Tun::from_fds`] asks the
//! driver what the descriptor is; it needs no privilege. Here the program opens the descriptor itself, which needs root.
//!
//! Run it with `sudo -E cargo run -p quietline --example tun_from_fd`. It prints:
//!
//! ```text
//! a tun of 1400 bytes
//! the kernel says "hello"
//! ```

use std::{error::Error, fs::File, io::Read, io::Write, os::fd::OwnedFd, process::Command};

use quietline::{
    Stack, TcpListener,
    device::{Device, Tun, TunFdConfig, TunKind},
};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fd = opened_elsewhere()?;
    let tun = Tun::from_fds(TunKind::Tun, vec![fd], &TunFdConfig::default())?;
    println!("a {} of {} bytes", tun.kind().name(), tun.caps().mtu);

    let stack = Stack::builder().device(tun).address("10.78.0.2/24".parse()?).build()?;
    let listener = TcpListener::bind(&stack, "10.78.0.2:7")?;
    std::net::TcpStream::connect("10.78.0.2:7")?.write_all(b"hello")?;
    let mut text = String::new();
    listener.accept()?.0.read_to_string(&mut text)?;
    println!("the kernel says {text:?}");
    Ok(())
}

/// The part of the other program: a descriptor that is attached to an interface with an address.
fn opened_elsewhere() -> Result<OwnedFd, Box<dyn Error>> {
    let fd = File::options().read(true).write(true).open("/dev/net/tun")?;
    let mut request = [0_u8; 40];
    request[..6].copy_from_slice(b"qlfd%d");
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request[16..18].copy_from_slice(&i16::try_from(flags)?.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which has 40 bytes.
    let result = unsafe {
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&fd), libc::TUNSETIFF, request.as_mut_ptr())
    };
    if result < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let name = String::from_utf8_lossy(&request[..16]).trim_end_matches('\0').to_owned();
    for line in ["address add 10.78.0.1/24 dev", "link set mtu 1400 up dev"] {
        Command::new("ip").args(line.split(' ')).arg(&name).status()?;
    }
    Ok(fd.into())
}
