//! The workloads of the demo in one table: names, units, wires and the meaning of the kernel side.

use clap::{ValueEnum, builder::PossibleValue};

/// A workload, run by quietline and by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// One stream over a wire that only carries frames up to 1500 bytes.
    BulkMtu1500,
    /// One stream over a wire that carries superframes.
    BulkSuperframes,
    /// One request in flight.
    RequestResponse1,
    /// A request in flight on each of a hundred connections.
    RequestResponse100,
    /// Connect, transfer one byte each way, close.
    ConnectRate,
    /// One stream over a wire with loss and reordering.
    Lossy,
}

/// Properties of the wire between the two quietline hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WireKind {
    /// MTU 1500, without segmentation or merging.
    Frames,
    /// MTU 1500, with segmentation and merging left to the wire, as between two veth ends.
    Superframes,
    /// Like `Frames`, with loss and reordering.
    Lossy,
}

impl WireKind {
    /// Returns the name of the wire's interfaces.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Superframes => "superframes",
            Self::Lossy => "lossy",
        }
    }
}

/// One row of the table.
#[derive(Debug)]
struct Row {
    workload: Workload,
    name: &'static str,
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    /// Unit behind a number in a narrow column.
    unit_short: &'static str,
    wire: WireKind,
}

const TABLE: [Row; 6] = [
    Row {
        workload: Workload::BulkMtu1500,
        name: "bulk-mtu1500",
        title: "bulk stream, MTU 1500",
        description: "one connection, 128 KiB writes, every segment its own frame of 1500 bytes",
        unit: "Gbit/s",
        unit_short: "Gbit/s",
        wire: WireKind::Frames,
    },
    Row {
        workload: Workload::BulkSuperframes,
        name: "bulk-superframes",
        title: "bulk stream, superframes",
        description: "one connection, 128 KiB writes, MTU 1500 with segmentation left to the wire",
        unit: "Gbit/s",
        unit_short: "Gbit/s",
        wire: WireKind::Superframes,
    },
    Row {
        workload: Workload::RequestResponse1,
        name: "rr-1",
        title: "request/response, 1 connection",
        description: "one byte each way, one request in flight",
        unit: "transactions/s",
        unit_short: "/s",
        wire: WireKind::Superframes,
    },
    Row {
        workload: Workload::RequestResponse100,
        name: "rr-100",
        title: "request/response, 100 connections",
        description: "one byte each way, a request in flight on each of 100 connections",
        unit: "transactions/s",
        unit_short: "/s",
        wire: WireKind::Superframes,
    },
    Row {
        workload: Workload::ConnectRate,
        name: "connect-rate",
        title: "connect, 1 byte, close",
        description: "a new connection for one byte each way, one after the other",
        unit: "connections/s",
        unit_short: "/s",
        wire: WireKind::Superframes,
    },
    Row {
        workload: Workload::Lossy,
        name: "lossy",
        title: "lossy wire, checked content",
        description: "whole transfers over a wire with 1 % loss and 1 % reordering each way, seeded, from the \
                      first byte to the last; content summed at both ends",
        unit: "Mbit/s",
        unit_short: "Mbit/s",
        wire: WireKind::Lossy,
    },
];

impl Workload {
    /// Returns all workloads, in the order of the table.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.workload)
    }

    fn row(self) -> &'static Row {
        // A test checks that the table has the order of the declaration.
        &TABLE[self as usize]
    }

    /// Name on the command line and in JSON.
    pub(super) fn name(self) -> &'static str {
        self.row().name
    }

    /// Name in tables and reports.
    pub(super) fn title(self) -> &'static str {
        self.row().title
    }

    /// One-sentence description.
    pub(super) fn description(self) -> &'static str {
        self.row().description
    }

    /// Unit of the rate. A higher rate is better for every workload.
    pub(super) fn unit(self) -> &'static str {
        self.row().unit
    }

    /// Unit for a narrow column: `/s` of the item that the title names.
    pub(super) fn unit_short(self) -> &'static str {
        self.row().unit_short
    }

    /// Wire between the two quietline hosts.
    pub(super) fn wire(self) -> WireKind {
        self.row().wire
    }

    /// Reason why there is no kernel side, if there is none.
    pub(super) fn without_kernel(self) -> Option<&'static str> {
        (self.wire() == WireKind::Lossy)
            .then_some("not applicable: the kernel's loopback loses nothing and reorders nothing")
    }
}

impl ValueEnum for Workload {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Workload; TABLE.len()] = {
            let mut all = [Workload::Lossy; TABLE.len()];
            let mut index = 0;
            while index < TABLE.len() {
                all[index] = TABLE[index].workload;
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.title()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_order_of_the_workloads() {
        for (index, workload) in Workload::all().enumerate() {
            assert_eq!(workload as usize, index);
            assert_eq!(workload.row().workload, workload);
        }
    }
}
