//! Packets that have served, between two hosts with an application's context and a polling one each.

#[cfg(test)]
mod rig;

#[cfg(test)]
mod accounts;
#[cfg(test)]
mod caches;
#[cfg(test)]
mod differential;
#[cfg(test)]
mod requests;
