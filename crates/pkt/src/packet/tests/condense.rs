//! `Packet::condense`: payloads that are held for long leave the pages they were received into.

use super::*;

/// One small frame of each receive page is held while the other frames of the page are freed.
#[test]
fn a_condensed_packet_releases_its_receive_page() {
    let (domain, mut pool) = pool();
    let mut held = Vec::new();
    for number in 0..100_u8 {
        let mut slot = pool.rx_slot(1500).expect("memory");
        slot.write(&[number; 1000]);
        let mut packet = slot.finish(&mut pool, 1000);
        let charged = packet.truesize();
        assert!(packet.condense(&mut pool));
        assert_eq!((packet.to_vec(), packet.truesize()), (vec![number; 1000], charged));
        held.push(packet);
        // Frames that use up the rest of the page.
        for _ in 0..22 {
            let mut slot = pool.rx_slot(1500).expect("memory");
            slot.write(&[0; 1500]);
            let passing = slot.finish(&mut pool, 1500);
            pool.free(passing);
        }
    }
    let pages = usize::try_from(domain.stats().pages_live).expect("some");
    assert!(pages <= 100 / 32 + 3, "{pages} pages for 100,000 bytes");
    assert_eq!(domain.used_bytes(), 100 * DESCRIPTOR_BYTES + 32 * 1024 * pages);
    held.drain(..).for_each(|packet| pool.free(packet));
    assert_eq!(domain.balance(), 0);
}

#[test]
fn only_small_payloads_in_pages_are_condensed_and_only_with_memory() {
    let (_domain, mut pool) = pool();
    let mut linear = pool.alloc_from(&[1; 100]).expect("memory");
    assert!(!linear.condense(&mut pool));
    let mut large = in_frags(&mut pool, &pattern(DENSE_BYTES_MAX), 1000);
    assert!(!large.condense(&mut pool), "the payload is a large enough part of its pages");
    let mut scattered = in_frags(&mut pool, &pattern(DENSE_BYTES_MAX - 1), 1000);
    scattered.push(4).copy_from_slice(b"head");
    let clone = scattered.clone_in(&mut pool).expect("memory");
    assert!(scattered.condense(&mut pool));
    assert_eq!((scattered.frag_count(), clone.frag_count()), (1, 5));
    assert_eq!(scattered.to_vec(), clone.to_vec());
    // Memory for one slab of descriptors and one of pages.
    let domain = Domain::new(DomainConfig { max_bytes: 512 * 1024 });
    let mut small = domain.pool();
    let mut packet = in_frags(&mut small, &pattern(3000), 3000);
    let mut others = Vec::new();
    while let Some(mut other) = small.alloc() {
        if other.append(&mut small, &[0; 30_000]) == 0 {
            break;
        }
        others.push(other);
    }
    assert!(small.alloc_failed() > 0);
    assert!(!packet.condense(&mut small), "there is no memory");
    assert_eq!(packet.to_vec(), pattern(3000));
}
