//! IPv4 header options (RFC 791 §3.1): checked, never obeyed.
//!
//! Called by `header::ip::parse` when the header is longer than 20 bytes. Linux: net/ipv4/ip_options.c.
//!
//! A packet with a source route is refused, as with Linux's default `accept_source_route=0` (RFC 7126 §4.3); other
//! options are tolerated when they are well formed and have no effect: this host forwards nothing, so it records no
//! route and stamps no time.
//!
//! Not here: options on packets we send. There are none.

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const CIPSO: u8 = 134;
const STRICT_SOURCE_ROUTE: u8 = 137;
const ROUTER_ALERT: u8 = 148;

/// Bytes of the fixed header, in front of the options: pointers in ICMP errors count from the header's start.
const FIXED_HEADER: u8 = 20;

/// Options that may appear once only.
#[derive(Default)]
struct Seen {
    record_route: bool,
    timestamp: bool,
    cipso: bool,
}

/// Walks the options, which are the header bytes after the first 20 (40 at most).
///
/// # Errors
/// The offset in the header of the byte at fault, as the pointer of an ICMP parameter problem wants it.
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

/// One option of at least two bytes. The error is the offset in `option` of the byte at fault.
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

/// The third byte of an option that collects data is a pointer, from 1, to its next free slot; a pointer past the end
/// says that the option is full. `header` bytes come before the slots of `slot` bytes each.
fn check_slots(option: &[u8], header: usize, slot: usize) -> Result<(), usize> {
    if option.len() < header {
        return Err(1);
    }
    let next = usize::from(option[2]);
    let full = next > option.len();
    // RFC 791: the smallest legal value points behind the option's own header.
    if next <= header || (!full && next - 1 + slot > option.len()) { Err(2) } else { Ok(()) }
}

/// RFC 791 §3.1, Internet Timestamp: four bytes of header; the low bits of the fourth say what a slot holds.
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
    // The count of hosts that found no room must not wrap.
    let full = usize::from(option[2]) > option.len();
    if full && overflow == 15 { Err(3) } else { Ok(()) }
}

/// Options are 40 bytes at most, so the pointer fits.
fn pointer(offset: usize) -> u8 {
    FIXED_HEADER.saturating_add(u8::try_from(offset).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn padding_ends_the_walk() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[NO_OPERATION, NO_OPERATION, NO_OPERATION, END]), Ok(()));
        assert_eq!(check(&[END, 131, 3, 4]), Ok(()), "what follows the end is padding");
    }

    #[test]
    fn source_routes_are_refused() {
        assert_eq!(check(&[LOOSE_SOURCE_ROUTE, 7, 4, 10, 0, 0, 1, END]), Err(20));
        assert_eq!(check(&[NO_OPERATION, STRICT_SOURCE_ROUTE, 7, 4, 10, 0, 0, 1]), Err(21));
    }

    #[test]
    fn lengths_stay_inside_the_header() {
        assert_eq!(check(&[RECORD_ROUTE]), Err(21), "no length");
        assert_eq!(check(&[RECORD_ROUTE, 0, 0, 0]), Err(21), "a zero length would loop");
        assert_eq!(check(&[RECORD_ROUTE, 1, 0, 0]), Err(21));
        assert_eq!(check(&[RECORD_ROUTE, 8, 4, 0]), Err(21), "past the end");
        assert_eq!(check(&[0x99, 2, 0x99, 3]), Err(23));
    }

    #[test]
    fn record_route_pointers() {
        assert_eq!(check(&[RECORD_ROUTE, 7, 4, 0, 0, 0, 0, END]), Ok(()));
        assert_eq!(check(&[RECORD_ROUTE, 7, 8, 1, 2, 3, 4, END]), Ok(()), "full");
        assert_eq!(
            check(&[RECORD_ROUTE, 7, 3, 0, 0, 0, 0, END]),
            Err(22),
            "points into its own header"
        );
        assert_eq!(check(&[RECORD_ROUTE, 7, 5, 0, 0, 0, 0, END]), Err(22), "slot cut off");
        assert_eq!(check(&[RECORD_ROUTE, 3, 4, RECORD_ROUTE, 3, 4, 0, 0]), Err(23), "twice");
    }

    #[test]
    fn timestamp_flags_and_overflow() {
        assert_eq!(check(&[TIMESTAMP, 8, 5, 0, 0, 0, 0, 0]), Ok(()));
        assert_eq!(
            check(&[TIMESTAMP, 8, 5, 1, 0, 0, 0, 0]),
            Err(22),
            "address and time need 8 bytes"
        );
        assert_eq!(check(&[TIMESTAMP, 8, 5, 2, 0, 0, 0, 0]), Err(23), "no such flag");
        assert_eq!(check(&[TIMESTAMP, 8, 9, 0x10, 0, 0, 0, 0]), Ok(()), "full");
        assert_eq!(check(&[TIMESTAMP, 8, 9, 0xf0, 0, 0, 0, 0]), Err(23), "overflow would wrap");
        assert_eq!(check(&[TIMESTAMP, 3, 5, 0]), Err(21));
    }

    #[test]
    fn others_are_tolerated() {
        assert_eq!(check(&[ROUTER_ALERT, 4, 0, 0]), Ok(()));
        assert_eq!(check(&[ROUTER_ALERT, 3, 0, 0]), Err(21));
        assert_eq!(check(&[0x9e, 4, 1, 2]), Ok(()), "unknown");
        assert_eq!(check(&[CIPSO, 2, CIPSO, 2]), Err(22));
    }

    proptest! {
        #[test]
        fn any_bytes_end_the_walk(options in proptest::collection::vec(any::<u8>(), 0..=40)) {
            if let Err(pointer) = check(&options) {
                prop_assert!(usize::from(pointer) <= 20 + options.len());
            }
        }
    }
}
