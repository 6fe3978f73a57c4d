//! curl of the kernel's side downloads from a stack on the device, whose descriptor is a tap that this test opens itself. It needs
//! root, /dev/net/tun, `ip` and `curl`; without them it says so and passes, with `CI=true` it fails.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::fd::{AsRawFd, OwnedFd},
    process::Command,
    thread,
};

use outside_device::FdDevice;
use quietline::{Stack, TcpListener};

const BYTES: usize = 16 << 20;

/// A tap without virtio header, in the network namespace of the calling thread.
fn open_tap(name: &str) -> OwnedFd {
    let tap = File::options().read(true).write(true).open("/dev/net/tun").expect("the driver");
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    let flags = u16::try_from(libc::IFF_TAP | libc::IFF_NO_PI).expect("two bits");
    request[16..18].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which has 40 bytes.
    let made = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    assert_eq!(made, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    tap.into()
}

fn run(line: &str) -> Vec<u8> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().expect("a program")).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn download() {
    // SAFETY: only the network namespace of this thread changes, and of the processes that it starts.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
    let tap = open_tap("own0");
    run("ip address add 10.79.0.1/24 dev own0");
    run("ip link set own0 up");
    let device = FdDevice::new("own0", 1500, [2, 0, 0, 0, 0, 2], tap).expect("a device");
    let address = "10.79.0.2/24".parse().expect("an address");
    let stack = Stack::builder().device(device.attach()).address(address).build().expect("valid");
    let listener = TcpListener::bind(&stack, "10.79.0.2:80").expect("free");
    let content: Vec<u8> = (0..BYTES).map(|at| (at / 7).to_le_bytes()[0]).collect();
    let served = content.clone();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut lines = BufReader::new(&stream).lines();
        while lines.next().is_some_and(|line| !line.expect("a request").is_empty()) {}
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n").expect("open");
        stream.write_all(&served).expect("open");
    });
    let got = run("curl --silent --show-error --fail --max-time 60 http://10.79.0.2/");
    server.join().expect("the server has sent everything");
    assert!(got == content, "the download differs");
}

fn lack() -> Option<&'static str> {
    let has = |program: &str| Command::new(program).arg("-V").output().is_ok();
    // SAFETY: geteuid has no argument and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("it needs root");
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("/dev/net/tun is missing");
    }
    [("ip", "ip is missing"), ("curl", "curl is missing")]
        .into_iter()
        .find_map(|(program, why)| (!has(program)).then_some(why))
}

#[test]
fn curl_downloads_through_the_device() {
    if let Some(why) = lack() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}, and CI=true");
        println!("skipped: curl_downloads_through_the_device: {why}");
        return;
    }
    thread::spawn(download).join().expect("the download succeeds");
}
