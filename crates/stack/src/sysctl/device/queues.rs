//! The settings of the queues of one direction: those of all, and those of queues that were set apart.

use super::settings::Setting;
use crate::sysctl::describe;

/// Settings of the queues of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Queues<T> {
    /// Of those that have none of their own.
    all: T,
    /// Of those that were set apart.
    pub(super) apart: Vec<(u16, T)>,
}

impl<T: Clone> Queues<T> {
    #[inline]
    pub(super) fn of(&self, queue: u16) -> &T {
        match self.apart.iter().find(|(apart, _)| *apart == queue) {
            Some((_, settings)) => settings,
            None => &self.all,
        }
    }

    fn of_mut(&mut self, queue: u16) -> &mut T {
        let index = match self.apart.iter().position(|(apart, _)| *apart == queue) {
            Some(index) => index,
            None => {
                self.apart.push((queue, self.all.clone()));
                self.apart.len() - 1
            }
        };
        &mut self.apart[index].1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.apart.iter().map(|(_, settings)| settings).chain([&self.all])
    }

    /// Writes a setting of one queue, or of all.
    pub(super) fn write(
        &mut self,
        line: &Setting<T>,
        queue: Option<u16>,
        value: &str,
    ) -> Result<(), String> {
        let write = |settings| (line.write)(settings, value, &line.allowed);
        let good = match queue {
            Some(queue) => write(self.of_mut(queue)),
            None => {
                write(&mut self.all) && self.apart.iter_mut().all(|(_, settings)| write(settings))
            }
        };
        good.then_some(()).ok_or_else(|| describe(line.form, &line.allowed))
    }

    pub(super) fn read(&self, line: &Setting<T>, queue: Option<u16>) -> String {
        (line.read)(queue.map_or(&self.all, |queue| self.of(queue)))
    }
}
