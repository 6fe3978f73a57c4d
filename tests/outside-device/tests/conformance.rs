//! The device passes the suite of `quietline`, over a socket pair. No root.

use std::os::fd::{FromRawFd, OwnedFd};

use outside_device::FdDevice;
use quietline::device::conformance::{self, Pair};

/// A socket pair of packets: they keep their boundaries, and the end of one side is an end of file for the other.
fn socket_pair() -> [OwnedFd; 2] {
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for the two descriptors that socketpair writes; nothing else owns them.
    unsafe {
        let made = libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
            fds.as_mut_ptr(),
        );
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        fds.map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

#[test]
fn the_device_passes() {
    let report = conformance::run(|| {
        let [left, right] = socket_pair();
        let unplug = right.try_clone().expect("a copy");
        let left = FdDevice::new("left0", 1500, [2, 0, 0, 0, 0, 1], left).expect("a device");
        let right = FdDevice::new("right0", 1500, [2, 0, 0, 0, 0, 2], right).expect("a device");
        let pair = Pair::new(left.attach(), right.attach());
        pair.unplug(move || {
            // SAFETY: shutdown takes its arguments by value.
            let done = unsafe {
                libc::shutdown(std::os::fd::AsRawFd::as_raw_fd(&unplug), libc::SHUT_RDWR)
            };
            assert_eq!(done, 0);
        })
    });
    println!("{report}");
    report.assert_passed();
    let not_applicable = ["partial_checksums_are_completed", "superframes_arrive_whole"];
    let passed: Vec<_> = report.passed().collect();
    assert_eq!(passed.len() + not_applicable.len(), 17, "{report}");
    assert!(not_applicable.iter().all(|name| !passed.contains(name)), "{report}");
}
