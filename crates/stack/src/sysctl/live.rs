//! Settings of a running host, which can change while other threads read them.
//!
//! Above: `Host::set_sysctl`. Every [`Cx`](crate::cx::Cx) keeps a reference to the set of settings
//! with which it entered the host. When it enters again, it compares the generation and takes the
//! current set if the generation has changed. Linux: `proc_dointvec_minmax` on a field that readers
//! load with `READ_ONCE`.
//!
//! Invariant: a published set never changes, so that a call sees one set from beginning to end. A
//! change creates a new set with the next generation.
//!
//! Not here: names, bounds and texts (`sysctl`).

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use super::{SysctlError, Sysctls};

/// Current settings of a host.
#[derive(Debug)]
pub(crate) struct LiveSysctls {
    /// Generation of the current set, from 1. Written with Release under the lock `present`, after
    /// the set is in place; read with Acquire by every context that enters the host. A context that
    /// reads a generation then finds the set of this or of a later generation.
    generation: AtomicU64,
    /// Current set. Locked to take a reference or to replace the set; a context that has the
    /// current generation does not lock it.
    present: Mutex<Arc<Sysctls>>,
}

impl LiveSysctls {
    pub(crate) fn new(sysctls: Sysctls) -> Self {
        Self { generation: AtomicU64::new(1), present: Mutex::new(Arc::new(sysctls)) }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Sysctls>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the generation of the current set.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the current set and its generation.
    pub(crate) fn present(&self) -> (u64, Arc<Sysctls>) {
        let present = self.lock();
        (self.generation.load(Ordering::Relaxed), Arc::clone(&present))
    }

    /// Sets one value. Calls `publish` with the current and the next set, before other threads can
    /// see the next set and before any later change. Makes the next set visible and returns the
    /// result of `publish`.
    pub(crate) fn set<R>(
        &self,
        name: &str,
        value: &str,
        publish: impl FnOnce(&Sysctls, &Sysctls) -> R,
    ) -> Result<R, SysctlError> {
        let mut present = self.lock();
        let mut next = Sysctls::clone(&present);
        next.set_live(name, value)?;
        let answer = publish(&present, &next);
        *present = Arc::new(next);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_does_not_affect_a_set_in_use() {
        let live = LiveSysctls::new(Sysctls::default());
        let (before, old) = live.present();
        live.set("net.ipv4.ip_default_ttl", "9", |present, next| {
            assert_eq!((present.ip_default_ttl, next.ip_default_ttl), (64, 9));
        })
        .unwrap();
        let (after, new) = live.present();
        assert_eq!((old.ip_default_ttl, new.ip_default_ttl), (64, 9));
        assert_eq!((after, live.generation()), (before + 1, before + 1));
    }

    #[test]
    fn a_rejected_value_creates_no_new_set() {
        let live = LiveSysctls::new(Sysctls::default());
        let refused = live
            .set("net.ipv4.ip_default_ttl", "999", |_, _| panic!("a rejected value was published"));
        assert!(refused.is_err());
        assert_eq!(live.generation(), 1);
        assert_eq!(*live.present().1, Sysctls::default());
    }
}
