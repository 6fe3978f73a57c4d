//! One hook for each object, whoever asks; what is listed is seen once and stays alive.

use super::*;
use crate::llist::Llist;

#[cfg(not(loom))]
#[test]
fn there_is_one_hook_at_a_time() {
    let object = Listed::new(7);
    let list = Llist::new();
    for _ in 0..3 {
        let hook = Listed::hook(&object).expect("it is at home");
        assert!(Listed::hook(&object).is_none());
        assert!(list.push(hook), "the list was empty");
        assert!(Listed::hook(&object).is_none(), "while it is in the list as well");
        let taken: Vec<i32> = list.take_all().map(|hook| *hook).collect();
        assert_eq!(taken, [7]);
    }
    assert_eq!(Arc::strong_count(&object), 1);
}

#[cfg(not(loom))]
#[test]
fn a_list_keeps_what_is_in_it_alive_and_lets_go_of_it_at_its_end() {
    let value = Arc::new(());
    let list = Llist::new();
    for _ in 0..3 {
        let object = Listed::new(Arc::clone(&value));
        list.push(Listed::hook(&object).expect("a new one"));
    }
    assert_eq!(Arc::strong_count(&value), 4);
    drop(list);
    assert_eq!(Arc::strong_count(&value), 1);
}

/// One lists the object, and takes and lists it again while another lists it: every round that got the hook is seen, and the link
/// passes without a race from whoever has taken it out to whoever lists it next.
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
        // That it is at home again is not asked here: to loom a store and a swap that are concurrent have no order, be it that the
        // swap has read what came before the store.
        assert_eq!(taken + rest, listed);
    });
}
