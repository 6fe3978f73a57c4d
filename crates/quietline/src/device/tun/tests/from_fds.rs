//! Devices of open descriptors.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::super::{TunFdConfig, open_queues};
use super::*;
use crate::device::SetupError;
use crate::device::namespace::run;
use crate::{Stack, TcpListener as OurListener};

/// Returns descriptors as another program would pass them: attached, blocking, and with no other
/// option set.
fn opened(config: &TunConfig) -> Vec<OwnedFd> {
    let (_, queues, _) = open_queues(config).expect("queues");
    let queues = queues.into_vec();
    for fd in &queues {
        let flags = fcntl_getfl(fd).expect("flags");
        fcntl_setfl(fd, flags - OFlags::NONBLOCK).expect("flags");
    }
    run("ip address add 10.77.0.1/24 dev ql0");
    run("ip link set ql0 up mtu 1400");
    queues
}

/// Checks that a stack on the descriptors serves a connection of the kernel, and returns the
/// device.
fn serves(kind: TunKind, fds: Vec<OwnedFd>, config: &TunFdConfig) -> Arc<Tun> {
    let tun = Tun::from_fds(kind, fds, config).expect("a device");
    let stack = Stack::builder().device(Arc::clone(&tun)).cores(tun.caps.queues);
    let stack = stack.address("10.77.0.2/24".parse().expect("an address")).build().expect("valid");
    let listener = OurListener::bind(&stack, "10.77.0.2:7").expect("free");
    let mut client = std::net::TcpStream::connect("10.77.0.2:7").expect("a connection");
    let (mut served, _) = listener.accept().expect("a connection");
    client.write_all(&[7; 100_000]).expect("open");
    let mut got = vec![0; 100_000];
    served.read_exact(&mut got).expect("open");
    served.write_all(&got).expect("open");
    client.read_exact(&mut got).expect("open");
    assert!(got.iter().all(|byte| *byte == 7));
    tun
}

#[test]
fn a_stack_runs_on_descriptors_of_either_kind_and_form() {
    for kind in [TunKind::Tap, TunKind::Tun] {
        for vnet_hdr in [true, false] {
            in_namespace("fds", move || {
                let config = TunConfig { kind, vnet_hdr, ..TunConfig::tap("ql0") };
                let tun = serves(kind, opened(&config), &TunFdConfig::default());
                let caps = &tun.caps;
                assert_eq!((tun.name(), caps.mtu, caps.tso4), ("ql0", 1400, vnet_hdr));
                assert!(tun.host_link().is_none());
            });
        }
    }
}

#[test]
fn several_descriptors_are_several_queues() {
    in_namespace("fds", || {
        let config = TunConfig { queues: 2, ..TunConfig::tap("ql0") };
        let mac = [2, 0, 0, 0, 0, 9];
        let given = TunFdConfig { mtu: Some(1300), mac: Some(mac) };
        let tun = serves(TunKind::Tap, opened(&config), &given);
        assert_eq!((tun.caps.queues, tun.caps.mtu), (2, 1300));
        assert_eq!(tun.caps.link, LinkType::Ethernet { mac: MacAddr(mac) });
    });
}

fn refusal(kind: TunKind, fds: Vec<OwnedFd>, config: &TunFdConfig) -> SetupError {
    let error = Tun::from_fds(kind, fds, config).expect_err("refused");
    assert!(!error.to_string().contains('\n'), "{error}");
    error
}

#[test]
fn an_error_names_the_unusable_descriptor() {
    in_namespace("fds", || {
        let asked = TunFdConfig::default();
        let refused = |kind, fds| refusal(kind, fds, &asked).to_string();
        assert!(refused(TunKind::Tun, Vec::new()).contains("1 to 256"));
        let file = File::open("/dev/null").expect("a file").into();
        let text = refused(TunKind::Tun, vec![file]);
        assert!(text.contains("not opened from /dev/net/tun"), "{text}");
        let unattached = ioctl::open().expect("the driver");
        let text = refused(TunKind::Tun, vec![unattached]);
        assert!(text.contains("no interface is attached"), "{text}");
        let text = refused(TunKind::Tun, opened(&TunConfig::tap("ql0")));
        assert!(text.contains("\"ql0\", a tap") && text.contains("IFF_TUN"), "{text}");
        let (_, one, _) = open_queues(&TunConfig::tap("ql1")).expect("queues");
        let (_, other, _) = open_queues(&TunConfig::tap("ql2")).expect("queues");
        let mixed: Vec<_> = one.into_vec().into_iter().chain(other).collect();
        let text = refused(TunKind::Tap, mixed);
        assert!(text.contains("one interface"), "{text}");
        let (_, one, _) = open_queues(&TunConfig::tap("ql3")).expect("queues");
        let twice = vec![one[0].try_clone().expect("a copy"), one[0].try_clone().expect("a copy")];
        let text = refused(TunKind::Tap, twice);
        assert!(text.contains("IFF_MULTI_QUEUE"), "{text}");
        run("ip link del ql3");
        let text = refused(TunKind::Tap, one.into_vec());
        assert!(text.contains("deleted"), "{text}");
    });
}

#[test]
fn a_missing_mtu_is_an_error_and_a_wrong_one_is_refused() {
    in_namespace("fds", || {
        let fds = || open_queues(&TunConfig::tun("ql%d")).expect("queues").1.into_vec();
        let small = TunFdConfig { mtu: Some(67), ..TunFdConfig::default() };
        assert!(refusal(TunKind::Tun, fds(), &small).to_string().contains("mtu \"67\""));
        let elsewhere = fds();
        // SAFETY: only the network namespace of this thread changes; no descriptor table is
        // unshared.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
            .expect("a namespace");
        let text = refusal(TunKind::Tun, elsewhere, &TunFdConfig::default()).to_string();
        assert!(text.contains("TunFdConfig::mtu"), "{text}");
    });
}

#[test]
fn no_privilege_is_needed() {
    in_namespace("fds", || {
        let fds = opened(&TunConfig::tun("ql0"));
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("becoming nobody");
        serves(TunKind::Tun, fds, &TunFdConfig::default());
    });
}
