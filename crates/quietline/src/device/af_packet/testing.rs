//! Helpers for the tests of both transmit paths.

use pkt::{Domain, DomainConfig, Pool};

use crate::device::interface::Interface;
use crate::device::namespace::{in_namespace, run};

/// Runs a test in its own network namespace, and checks that all packets were returned to the pool.
pub(super) fn with_pool(test: impl FnOnce(&mut Pool) + Send + 'static) {
    in_namespace(|| {
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        test(&mut pool);
        drop(pool);
        assert_eq!(domain.balance(), 0);
    });
}

/// Makes a veth pair and returns its left end; the other end is `right0`.
pub(super) fn left_of_a_pair() -> Interface {
    make_pair();
    Interface::find("left0").expect("left0")
}

/// Makes a veth pair: `left0` and `right0`.
pub(super) fn make_pair() {
    run("ip link add left0 type veth peer name right0");
    run("ip link set left0 up");
    run("ip link set right0 up");
}
