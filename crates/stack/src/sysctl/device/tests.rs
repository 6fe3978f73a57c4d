//! Tests of device settings: names, scope of a value, and rejected values.

use super::*;
use crate::{
    base::limits::{BIG_TCP_BYTES_MAX, GRO_BYTES_MAX},
    sysctl::Sysctls,
};

/// Default bound of IPv4 superframes on the loopback device of these tests, which accepts larger
/// ones.
const BEST: u32 = 196_608;

fn present(devices: &'static [(&str, u16)]) -> impl Iterator<Item = Present<'static>> {
    let end = |name| if name == "lo" { BIG_TCP_BYTES_MAX + 1 } else { GRO_BYTES_MAX };
    devices.iter().map(move |&(name, queues)| {
        let superframe_end = end(name);
        Present { name, queues, superframe_end, superframe_ipv4: superframe_end.min(BEST) }
    })
}

fn bound() -> Sysctls {
    let mut sysctls = Sysctls::default();
    sysctls.devices.bind(present(&[("lo", 1), ("tap0", 2), ("eth0.100", 2)])).unwrap();
    sysctls
}

#[test]
fn a_setting_applies_to_a_queue_a_device_or_all_devices() {
    let mut sysctls = bound();
    sysctls.set("net.quietline.dev.default.rps_cpus", "1").unwrap();
    sysctls.set("net.quietline.dev.tap0.rps_cpus", "00000000,00000003").unwrap();
    sysctls.set("net.quietline.dev.tap0.rx-1.rps_cpus", "ff").unwrap();
    sysctls.set("net/quietline/dev/eth0.100/rx-0/rps_flow_cnt", "1000").unwrap();
    let cpus = |device, queue| sysctls.devices.of(DeviceIndex(device)).rx(queue).rps_cpus;
    assert_eq!([cpus(0, 0), cpus(1, 0), cpus(1, 1), cpus(2, 0), cpus(2, 1)], [1, 3, 0xff, 1, 1]);
    assert_eq!(
        sysctls.devices.of(DeviceIndex(2)).rx(0).rps_flow_cnt,
        1024,
        "the size was not rounded up"
    );
    assert_eq!(sysctls.devices.of(DeviceIndex(2)).rx(1).rps_flow_cnt, 0);
    assert_eq!(sysctls.get("net.quietline.dev.tap0.rx-1.rps_cpus").unwrap(), "ff");
    assert_eq!(sysctls.get("net.quietline.dev.tap0.rx-0.rps_cpus").unwrap(), "3");
    assert!(!sysctls.devices.of(DeviceIndex(1)).maps_tx());
    sysctls.set("net.quietline.dev.tap0.tx-1.xps_cpus", "6").unwrap();
    assert_eq!([0, 1].map(|queue| sysctls.devices.of(DeviceIndex(1)).tx(queue).xps_cpus), [0, 6]);
    assert!(
        sysctls.devices.of(DeviceIndex(1)).maps_tx()
            && !sysctls.devices.of(DeviceIndex(0)).maps_tx()
    );
    assert_eq!(sysctls.get("net.quietline.dev.tap0.tx-1.xps_cpus").unwrap(), "6");
    let all: Vec<_> = sysctls.iter().map(|(name, _)| name.into_owned()).collect();
    assert!(all.contains(&"net.quietline.dev.tap0.tx-1.xps_cpus".to_owned()));
    assert!(all.contains(&"net.quietline.dev.tap0.rx-1.rps_cpus".to_owned()));
    assert!(all.contains(&"net.quietline.dev.default.rps_flow_cnt".to_owned()));
}

#[test]
fn the_last_written_value_applies() {
    let mut sysctls = bound();
    sysctls.set("net.quietline.dev.tap0.rx-1.rps_cpus", "2").unwrap();
    sysctls.set("net.quietline.dev.tap0.rps_cpus", "1").unwrap();
    assert_eq!(sysctls.devices.of(DeviceIndex(1)).rx(1).rps_cpus, 1);
    sysctls.set("net.quietline.dev.default.rps_cpus", "0").unwrap();
    assert_eq!(sysctls.devices.of(DeviceIndex(1)).rx(0).rps_cpus, 0);
}

#[test]
fn packets_may_change_their_core_only_with_an_rps_or_rfs_setting() {
    let mut sysctls = bound();
    assert!(!sysctls.devices.steers(true));
    sysctls.set("net.quietline.dev.tap0.rx-1.rps_flow_cnt", "64").unwrap();
    assert_eq!([false, true].map(|by_socket| sysctls.devices.steers(by_socket)), [false, true]);
    sysctls.set("net.quietline.dev.tap0.rx-1.rps_cpus", "2").unwrap();
    assert!(sysctls.devices.steers(false));
    sysctls.set("net.quietline.dev.tap0.rps_cpus", "0").unwrap();
    assert!(!sysctls.devices.steers(false));
}

#[test]
fn unknown_names_and_invalid_values_change_nothing() {
    let mut sysctls = bound();
    let before = sysctls.clone();
    for name in [
        "net.quietline.dev.tap1.rps_cpus",
        "net.quietline.dev.tap0.rx-2.rps_cpus",
        "net.quietline.dev.default.rx-0.rps_cpus",
        "net.quietline.dev.tap0.tx-0.rps_cpus",
        "net.quietline.dev.tap0.rx-0.xps_cpus",
        "net.quietline.dev.tap0.tx-2.xps_cpus",
        "net.quietline.dev.tap0.nonsense",
        "net.quietline.dev.rps_cpus",
        "net.quietline.dev.",
    ] {
        let refused = sysctls.set(name, "1");
        assert!(matches!(refused, Err(SysctlError::Unknown { .. })), "{name}: {refused:?}");
        assert!(sysctls.get(name).is_err(), "{name}");
    }
    for value in ["", "g", "1,1", "123456789", "1,00000000,00000000", "-1", "0x1"] {
        let refused = sysctls.set("net.quietline.dev.tap0.rps_cpus", value);
        assert!(matches!(refused, Err(SysctlError::Invalid { .. })), "{value}: {refused:?}");
    }
    assert_eq!(sysctls, before);
}

#[test]
fn building_a_host_rejects_settings_of_absent_devices_and_queues() {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.quietline.dev.tap0.rx-1.rps_cpus", "2").unwrap();
    let mut good = sysctls.clone();
    good.devices.bind(present(&[("lo", 1), ("tap0", 2)])).unwrap();
    assert_eq!(good.devices.of(DeviceIndex(1)).rx(1).rps_cpus, 2);
    let few_queues = sysctls.clone().devices.bind(present(&[("tap0", 1)])).unwrap_err();
    assert_eq!(few_queues.to_string(), "sysctl net.quietline.dev.tap0.rx-1: tap0 has 1 queues");
    let absent = sysctls.devices.bind(present(&[("lo", 1), ("wire0", 1)])).unwrap_err();
    assert_eq!(
        absent.to_string(),
        "sysctl net.quietline.dev.tap0: the devices of this host are lo wire0"
    );
}

/// BIG TCP: a size above the limit of a named device is rejected, before and after the host is
/// built. A size for all devices is reduced to the limit of each.
#[test]
fn transmitted_superframes_are_no_larger_than_the_device_accepts() {
    let mut sysctls = bound();
    let sizes = |sysctls: &Sysctls, device, v4| {
        let settings = sysctls.devices.of(DeviceIndex(device));
        (
            settings.gso_bytes_max(v4),
            if v4 { settings.gro_ipv4_bytes() } else { settings.gro_max_size },
        )
    };
    // Without a setting, the bound for IPv4 is the device's best size, and the bound for IPv6 is
    // the common default.
    assert_eq!(
        [0, 1].map(|device| sizes(&sysctls, device, true)),
        [(BEST - 1, BEST), (65_535, 65_536)]
    );
    assert_eq!(sizes(&sysctls, 0, false), (65_535, 65_536));
    assert_eq!(sysctls.get("net.quietline.dev.default.gso_ipv4_max_size").unwrap(), "default");
    assert_eq!(sysctls.get("net.quietline.dev.lo.gso_ipv4_max_size").unwrap(), BEST.to_string());
    for (name, size) in
        [("default", "65536"), ("default", "default"), ("lo", "20000"), ("lo", "default")]
    {
        sysctls.set(&format!("net.quietline.dev.{name}.gso_ipv4_max_size"), size).unwrap();
        sysctls.set(&format!("net.quietline.dev.{name}.gro_ipv4_max_size"), size).unwrap();
        let end = size.parse().unwrap_or(BEST);
        assert_eq!(sizes(&sysctls, 0, true), (end - 1, end), "{name} {size}");
    }
    sysctls.set("net.quietline.dev.lo.gso_ipv4_max_size", "262144").unwrap();
    assert_eq!([true, false].map(|v4| sizes(&sysctls, 0, v4).0), [262_143, 65_535]);
    let refused = sysctls.set("net.quietline.dev.tap0.gso_ipv4_max_size", "65537");
    let Err(SysctlError::Invalid { allowed, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(allowed, "a number from 1500 to 65536 for this device");
    // The size of merged superframes is independent of the device.
    sysctls.set("net.quietline.dev.tap0.gro_ipv4_max_size", "524280").unwrap();
    assert_eq!([true, false].map(|v4| sizes(&sysctls, 1, v4).1), [524_280, 65_536]);

    sysctls.set("net.quietline.dev.default.gso_max_size", "300000").unwrap();
    assert_eq!([0, 1].map(|device| sizes(&sysctls, device, false).0), [299_999, 65_535]);
    assert_eq!(sysctls.get("net.quietline.dev.tap0.gso_max_size").unwrap(), "65536");
    // A size that every device accepts applies to both families.
    sysctls.set("net.quietline.dev.default.gso_max_size", "4000").unwrap();
    sysctls.set("net.quietline.dev.default.gro_max_size", "4000").unwrap();
    for device in [0, 1] {
        assert_eq!([true, false].map(|v4| sizes(&sysctls, device, v4)), [(3999, 4000); 2]);
    }
    sysctls.set("net.quietline.dev.lo.gso", "0").unwrap();
    assert_eq!(sizes(&sysctls, 0, true).0, 0);
    sysctls.set("net.quietline.dev.lo.gso_max_size", "524281").unwrap_err();

    let mut early = Sysctls::default();
    early.set("net.quietline.dev.default.gso_ipv4_max_size", "100000").unwrap();
    early.set("net.quietline.dev.tap0.rps_cpus", "1").unwrap();
    let mut all = early.clone();
    all.devices.bind(present(&[("lo", 1), ("tap0", 2)])).unwrap();
    assert_eq!([0, 1].map(|device| sizes(&all, device, true).0), [99_999, 65_535]);
    early.set("net.quietline.dev.tap0.gso_max_size", "70000").unwrap();
    let refused = early.devices.bind(present(&[("tap0", 2)])).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "sysctl net.quietline.dev.tap0.gso_max_size: tap0 accepts at most 65536"
    );
}

#[test]
fn settings_made_before_the_host_is_built_keep_the_default_size_of_the_device() {
    let mut early = Sysctls::default();
    for (name, value) in
        [("lo.rps_cpus", "1"), ("lo.rps_flow_cnt", "64"), ("default.napi_defer_hard_irqs", "2")]
    {
        early.set(&format!("net.quietline.dev.{name}"), value).unwrap();
        assert_eq!(early.get("net.quietline.dev.lo.gso_ipv4_max_size").unwrap(), "default");
    }
    let size = "net.quietline.dev.lo.gso_ipv4_max_size";
    let bound_size = |mut sysctls: Sysctls| {
        sysctls.devices.bind(present(&[("lo", 1)])).unwrap();
        sysctls.get(size).unwrap()
    };
    assert_eq!(bound_size(early.clone()), BEST.to_string());
    early.set(size, "20000").unwrap();
    assert_eq!(bound_size(early.clone()), "20000");
    early.set(size, "default").unwrap();
    assert_eq!(bound_size(early), BEST.to_string());
}
