//! IPv4 header options (RFC 791 §3.1). They are checked, but have no effect.
//!
//! `header::ip::parse` calls this module for headers longer than 20 bytes. Linux:
//! net/ipv4/ip_options.c.
//!
//! A packet with a source route is rejected, as with Linux's default `accept_source_route=0`
//! (RFC 7126 §4.3). Other well-formed options are accepted and ignored: this host does not forward,
//! so it records no routes and no timestamps.
//!
//! Not here: the only option that this stack sends, Router Alert (`ip::add_router_alert`).

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const CIPSO: u8 = 134;
const STRICT_SOURCE_ROUTE: u8 = 137;
const ROUTER_ALERT: u8 = 148;

/// Length of the fixed header. Pointers in ICMP errors are offsets from the start of the header.
const FIXED_HEADER: u8 = 20;

/// Options that may appear only once.
#[derive(Default)]
struct Seen {
    record_route: bool,
    timestamp: bool,
    cipso: bool,
}

/// Checks the options: the bytes of the header after the first 20, at most 40 bytes.
///
/// # Errors
/// The offset of the faulty byte in the header, as for the pointer of an ICMP parameter problem.
pub fn check(options: &[u8]) -> Result<(), u8> {
    let mut seen = Seen::default();
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        match kind {
            END => return Ok(()),
            NO_OPERATION => at += 1,
            _ => {
                let fault = |offset: usize| pointer(at + offset);
                let len = options.get(at + 1).map_or(0, |&len| usize::from(len));
                let option =
                    options.get(at..at + len).filter(|_| len >= 2).ok_or_else(|| fault(1))?;
                check_one(option, &mut seen).map_err(fault)?;
                at += len;
            }
        }
    }
    Ok(())
}

/// Checks one option of at least two bytes. The error is the offset of the faulty byte in `option`.
fn check_one(option: &[u8], seen: &mut Seen) -> Result<(), usize> {
    match option[0] {
        LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => Err(0),
        RECORD_ROUTE => {
            once(&mut seen.record_route)?;
            check_slots(option, 3, 4)
        }
        TIMESTAMP => {
            once(&mut seen.timestamp)?;
            check_timestamp(option)
        }
        CIPSO => once(&mut seen.cipso),
        ROUTER_ALERT if option.len() < 4 => Err(1),
        _ => Ok(()),
    }
}

fn once(seen: &mut bool) -> Result<(), usize> {
    if core::mem::replace(seen, true) { Err(0) } else { Ok(()) }
}

/// Checks an option that collects data. Its third byte is a pointer, counted from 1, to the next
/// free slot; a pointer past the end means that the option is full. The slots of `slot` bytes each
/// follow `header` bytes.
fn check_slots(option: &[u8], header: usize, slot: usize) -> Result<(), usize> {
    if option.len() < header {
        return Err(1);
    }
    let next = usize::from(option[2]);
    let full = next > option.len();
    // RFC 791: the smallest legal pointer is the first byte after the option's own header.
    if next <= header || (!full && next - 1 + slot > option.len()) { Err(2) } else { Ok(()) }
}

/// Checks an Internet Timestamp option (RFC 791 §3.1). The header has four bytes; the low bits of
/// the fourth select the contents of a slot.
fn check_timestamp(option: &[u8]) -> Result<(), usize> {
    const HEADER: usize = 4;
    if option.len() < HEADER {
        return Err(1);
    }
    let (overflow, flag) = (option[3] >> 4, option[3] & 0x0f);
    let slot = match flag {
        0 => 4,
        1 | 3 => 8,
        _ => return Err(3),
    };
    check_slots(option, HEADER, slot)?;
    // The overflow count, which counts hosts that found no free slot, must not wrap.
    let full = usize::from(option[2]) > option.len();
    if full && overflow == 15 { Err(3) } else { Ok(()) }
}

/// Returns the offset from the start of the header. The offset fits in a byte, because options have
/// at most 40 bytes.
fn pointer(offset: usize) -> u8 {
    FIXED_HEADER.saturating_add(u8::try_from(offset).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_after_the_end_of_the_list_are_ignored() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[NO_OPERATION, NO_OPERATION, NO_OPERATION, END]), Ok(()));
        assert_eq!(
            check(&[END, 131, 3, 4]),
            Ok(()),
            "bytes after the end of the list were not ignored"
        );
    }

    #[test]
    fn source_routes_are_rejected() {
        assert_eq!(check(&[LOOSE_SOURCE_ROUTE, 7, 4, 10, 0, 0, 1, END]), Err(20));
        assert_eq!(check(&[NO_OPERATION, STRICT_SOURCE_ROUTE, 7, 4, 10, 0, 0, 1]), Err(21));
    }

    #[test]
    fn invalid_option_lengths_are_rejected() {
        assert_eq!(check(&[RECORD_ROUTE]), Err(21), "an option without a length was not refused");
        assert_eq!(
            check(&[RECORD_ROUTE, 0, 0, 0]),
            Err(21),
            "an option of length 0 was not refused"
        );
        assert_eq!(check(&[RECORD_ROUTE, 1, 0, 0]), Err(21));
        assert_eq!(
            check(&[RECORD_ROUTE, 8, 4, 0]),
            Err(21),
            "an option that ends past the header was not refused"
        );
        assert_eq!(check(&[0x99, 2, 0x99, 3]), Err(23));
    }

    #[test]
    fn invalid_pointers_of_a_record_route_option_are_rejected() {
        assert_eq!(check(&[RECORD_ROUTE, 7, 4, 0, 0, 0, 0, END]), Ok(()));
        assert_eq!(check(&[RECORD_ROUTE, 7, 8, 1, 2, 3, 4, END]), Ok(()), "all slots are used");
        assert_eq!(
            check(&[RECORD_ROUTE, 7, 3, 0, 0, 0, 0, END]),
            Err(22),
            "a pointer into the option's own header was not refused"
        );
        assert_eq!(
            check(&[RECORD_ROUTE, 7, 5, 0, 0, 0, 0, END]),
            Err(22),
            "a slot that is cut off was not refused"
        );
        assert_eq!(
            check(&[RECORD_ROUTE, 3, 4, RECORD_ROUTE, 3, 4, 0, 0]),
            Err(23),
            "an option that appears twice was not refused"
        );
    }

    #[test]
    fn timestamp_flags_and_overflow_are_checked() {
        assert_eq!(check(&[TIMESTAMP, 8, 5, 0, 0, 0, 0, 0]), Ok(()));
        assert_eq!(
            check(&[TIMESTAMP, 8, 5, 1, 0, 0, 0, 0]),
            Err(22),
            "a slot of 4 bytes with address and time was not refused"
        );
        assert_eq!(
            check(&[TIMESTAMP, 8, 5, 2, 0, 0, 0, 0]),
            Err(23),
            "an undefined flag was not refused"
        );
        assert_eq!(check(&[TIMESTAMP, 8, 9, 0x10, 0, 0, 0, 0]), Ok(()), "all slots are used");
        assert_eq!(
            check(&[TIMESTAMP, 8, 9, 0xf0, 0, 0, 0, 0]),
            Err(23),
            "an overflow count that would wrap was not refused"
        );
        assert_eq!(check(&[TIMESTAMP, 3, 5, 0]), Err(21));
    }

    #[test]
    fn other_well_formed_options_are_accepted() {
        assert_eq!(check(&[ROUTER_ALERT, 4, 0, 0]), Ok(()));
        assert_eq!(check(&[ROUTER_ALERT, 3, 0, 0]), Err(21));
        assert_eq!(check(&[0x9e, 4, 1, 2]), Ok(()), "an unknown option was refused");
        assert_eq!(check(&[CIPSO, 2, CIPSO, 2]), Err(22));
    }

    proptest! {
        #[test]
        fn the_check_ends_for_any_option_bytes(options in proptest::collection::vec(any::<u8>(), 0..=40)) {
            if let Err(pointer) = check(&options) {
                prop_assert!(usize::from(pointer) <= 20 + options.len());
            }
        }
    }
}
