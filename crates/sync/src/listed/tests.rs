//! Each object has one hook; a listed object is seen once and kept alive.

use super::*;
use crate::llist::Llist;

#[cfg(not(loom))]
#[test]
fn there_is_one_hook_at_a_time() {
    let object = Listed::new(7);
    let list = Llist::new();
    for _ in 0..3 {
        let hook = Listed::hook(&object).expect("the hook is free");
        assert!(Listed::hook(&object).is_none());
        assert!(list.push(hook), "the list was empty");
        assert!(Listed::hook(&object).is_none(), "the hook is in the list");
        let taken: Vec<i32> = list.take_all().map(|hook| *hook).collect();
        assert_eq!(taken, [7]);
    }
    assert_eq!(Arc::strong_count(&object), 1);
}

#[cfg(not(loom))]
#[test]
fn a_list_keeps_its_objects_alive_until_it_is_dropped() {
    let value = Arc::new(());
    let list = Llist::new();
    for _ in 0..3 {
        let object = Listed::new(Arc::clone(&value));
        list.push(Listed::hook(&object).expect("a new object"));
    }
    assert_eq!(Arc::strong_count(&value), 4);
    drop(list);
    assert_eq!(Arc::strong_count(&value), 1);
}

/// One thread lists the object, and takes and lists it again while another thread lists it. Every
/// call that got the hook is seen once, and the link passes without a race from the thread that
/// took it out to the thread that lists it next.
#[cfg(loom)]
#[test]
fn loom_a_hook_passes_from_thread_to_thread() {
    use crate::shim::AtomicU32;

    crate::shim::model(|| {
        let object = Listed::new(AtomicU32::new(0));
        let list = Arc::new(Llist::new());
        let list_it = |object: &Arc<Listed<AtomicU32>>, list: &Llist<Hook<AtomicU32>>| {
            let hook = Listed::hook(object);
            let got = hook.is_some();
            if let Some(hook) = hook {
                list.push(hook);
            }
            u32::from(got)
        };
        let mut listed = list_it(&object, &list);
        assert_eq!(listed, 1);
        let other = {
            let (object, list) = (object.clone(), list.clone());
            loom::thread::spawn(move || list_it(&object, &list))
        };
        let taken: u32 = list.take_all().map(|_| 1).sum();
        assert!(taken >= 1);
        listed += list_it(&object, &list);
        listed += other.join().unwrap();
        let rest: u32 = list.take_all().map(|_| 1).sum();
        // The model does not check that the hook is free again: loom does not order a store and a
        // concurrent swap, even if the swap has read the value before the store.
        assert_eq!(taken + rest, listed);
    });
}
