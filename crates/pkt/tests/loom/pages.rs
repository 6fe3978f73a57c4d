//! Pages that are carved, shared, retired and lent.

use std::sync::Arc;

use arrayvec::ArrayVec;
use loom::thread;
use pkt::{FreeMode, Packet, Pages, Payload};
use sync::Llist;

use crate::rig::{PAGE_BYTES, assert_complete, crossings, domain, model, pools, read};

#[test]
fn a_full_page_is_retired_after_its_last_reader() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_from(&[1; PAGE_BYTES]).expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        pool.free(packet);
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            assert_eq!(read(&clone), 1);
            there.pass();
            drop(clone);
            there.pass();
        });
        crossing.pass();
        // Retires the page, and opens it again if that freed it.
        let packet = pool.alloc_from(&[2; 200]).expect("memory");
        crossing.pass();
        pool.free(packet);
        other.join().expect("no panic");
        drop(pool);
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
    });
}

/// A slot may be finished with a pool that is not its home; then the cursor is retired by a pool
/// that does not own the page.
#[test]
fn a_page_is_carved_and_retired_by_another_pool() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = (domain.pool(), domain.pool());
        let slot = here.rx_slot(3000).expect("memory");
        let queue = Arc::new(Llist::new());
        let to_here = Arc::<Llist<Packet>>::clone(&queue);
        let other = thread::spawn(move || {
            to_here.push(slot.finish(&mut there, 300));
            // The slot for the rest of the same page.
            let mut slot = there.rx_slot(100).expect("memory");
            slot.io_slices(&mut ArrayVec::<_, 4>::new());
            drop(slot);
        });
        for packet in queue.take_all() {
            assert_eq!(read(&packet), 0);
            here.free(packet);
        }
        for _ in 0..2 {
            let packet = here.alloc_from(&[1; PAGE_BYTES - 512]).expect("memory");
            here.free(packet);
        }
        other.join().expect("no panic");
        drop((queue, here));
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
    });
}

#[test]
fn a_page_is_reused_after_its_last_reader() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_from(&[1; 3000]).expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        let other = thread::spawn(move || {
            assert_eq!(read(&clone), 1);
            drop(clone);
        });
        assert_eq!(read(&packet), 1);
        pool.free(packet);
        // Uses up the page and the other page of the slab, so that the first is needed again.
        for _ in 0..3 {
            let packet = pool.alloc_from(&[2; 3000]).expect("memory");
            pool.free(packet);
        }
        other.join().expect("no panic");
        drop(pool);
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
    });
}

#[test]
fn the_last_slice_of_a_retired_page_frees_it() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_from(&[1; 3000]).expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        // Retires the cursors: only the slices keep the page now.
        drop(pool);
        let other = thread::spawn(move || {
            assert_eq!(read(&clone), 1);
            drop(clone);
        });
        assert_eq!(read(&packet), 1);
        drop(packet);
        other.join().expect("no panic");
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
        let mut pool = domain.pool();
        let packet = pool.alloc_from(&[2; 9000]).expect("memory");
        pool.free(packet);
        assert_eq!(pool.stats().slab_refill, 3, "both pages of the first slab were found again");
    });
}

/// Another core cuts a superframe: the references of its pieces are taken at once, and some stay
/// with the payload that was not cut. Meanwhile the packet that shares the page is freed by the
/// core that carves the page.
#[test]
fn the_pieces_of_a_superframe_release_their_page() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Home);
        let packet = here.alloc_from(&[1; 3000]).expect("memory");
        let mut clone = packet.clone_in(&mut here).expect("memory");
        let other = thread::spawn(move || {
            let mut cutter = clone.cut(&mut there, 0, 1000);
            let (mut first, _) = cutter.next_piece(&mut there).expect("memory");
            let (second, _) = cutter.next_piece(&mut there).expect("memory");
            first.append_frags_of(&mut there, second).expect("it follows in the page");
            drop(clone);
            assert_eq!((read(&first), first.frag_count()), (1, 1));
            drop(first);
            there
        });
        assert_eq!(read(&packet), 1);
        here.free(packet);
        // Uses up the page and the other page of the slab, so that the first is needed again.
        for _ in 0..3 {
            let packet = here.alloc_from(&[2; 3000]).expect("memory");
            here.free(packet);
        }
        let there = other.join().expect("no panic");
        drop((here, there));
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
    });
}

/// Two threads free the packets that hold a lent page while the page's owner waits to write it
/// again.
#[test]
fn lent_pages_return_when_the_last_packet_is_freed() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let mut pages = Pages::new(&mut pool, 8).expect("memory");
        let mut packet = || {
            let mut packet = pool.alloc().expect("memory");
            assert_eq!(pages.range(0..8).append_to(&mut packet, &mut pool), 8);
            packet
        };
        let (first, second) = (packet(), packet());
        let other = thread::spawn(move || {
            assert_eq!(read(&first), 0);
        });
        pages.recall();
        assert_eq!(read(&second), 0);
        drop(second);
        while !pages.is_back() {
            let token = pages.events().prepare();
            if pages.is_back() {
                pages.events().cancel(token);
            } else {
                let _ = pages.events().wait(token, None);
            }
        }
        assert!(pages.collect());
        pages.chunks_mut().expect("no packet holds the page").flatten().for_each(|byte| *byte = 1);
        other.join().expect("no panic");
        drop(pages);
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

/// The owner drops lent pages while a packet still holds one: the page returns to its pool, and the
/// list of returns is freed with it.
#[test]
fn lent_pages_outlive_their_owner() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let pages = Pages::new(&mut pool, 8).expect("memory");
        let mut packet = pool.alloc().expect("memory");
        assert_eq!(pages.range(0..8).append_to(&mut packet, &mut pool), 8);
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            drop(packet);
            there.pass();
        });
        crossing.pass();
        drop(pages);
        crossing.pass();
        other.join().expect("no panic");
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}
