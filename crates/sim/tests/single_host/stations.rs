//! Helpers for the tests of ARP and of neighbors: a third station, and a host whose requests the
//! test answers.

use std::net::Ipv4Addr;

use sim::{
    Rig, RigConfig,
    frame::{self, Seen},
    rig::HOST_MAC,
};
use stack::{header::ethernet::MacAddr, sysctl::Sysctls};

pub(crate) const OTHER_MAC: MacAddr = MacAddr([0x52, 0x51, 0, 0, 0, 9]);
pub(crate) const OTHER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

/// Makes a rig whose peer does not answer ARP; the test does.
pub(crate) fn silent_rig(settings: &[(&str, &str)]) -> Rig {
    silent(settings, RigConfig::default())
}

/// The same with two devices.
pub(crate) fn silent_rig_of_two(settings: &[(&str, &str)]) -> Rig {
    silent(settings, RigConfig { second_link: true, ..RigConfig::default() })
}

fn silent(settings: &[(&str, &str)], config: RigConfig) -> Rig {
    let mut sysctls = Sysctls::default();
    for (name, value) in settings {
        sysctls.set(name, value).expect("a setting");
    }
    let mut rig = Rig::new(RigConfig { sysctls, ..config });
    rig.answers_arp = false;
    rig
}

/// Returns the frames that the host has sent, with their destination MAC addresses.
pub(crate) fn sent(rig: &mut Rig) -> Vec<(MacAddr, Seen)> {
    rig.world.settle();
    let mut sent = Vec::new();
    while let Some(frame) = rig.link.take() {
        let to = MacAddr(*frame.bytes.first_chunk().expect("a header"));
        sent.push((to, frame::judge_ethernet(&frame.bytes, HOST_MAC, 1500).expect("sound")));
    }
    sent
}
