//! The names, taken apart.

use super::PREFIX;

/// A name taken apart: `DEVICE[.rx-N].SETTING`, or with `tx-N`. A device's name may have dots.
pub(super) struct Name<'a> {
    pub(super) device: &'a str,
    pub(super) queue: Option<(Direction, u16)>,
    pub(super) setting: &'a str,
}

impl<'a> Name<'a> {
    pub(super) fn parse(full: &'a str) -> Option<Self> {
        let (head, setting) = full.strip_prefix(PREFIX)?.rsplit_once('.')?;
        let queue = head.rsplit_once('.').and_then(|(device, queue)| {
            let (word, number) = queue.split_once('-')?;
            let direction =
                [Direction::Rx, Direction::Tx].into_iter().find(|it| it.word() == word)?;
            Some((device, (direction, number.parse().ok()?)))
        });
        Some(match queue {
            Some((device, queue)) => Self { device, queue: Some(queue), setting },
            None => Self { device: head, queue: None, setting },
        })
    }

    /// The number of its queue, or all of them; `None` when that is one of the other direction.
    pub(super) fn queue_of(&self, direction: Direction) -> Option<Option<u16>> {
        match self.queue {
            Some((other, _)) if other != direction => None,
            queue => Some(queue.map(|(_, number)| number)),
        }
    }
}

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Rx,
    Tx,
}

impl Direction {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }
}
