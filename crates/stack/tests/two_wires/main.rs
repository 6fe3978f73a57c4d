//! Changes under live connections: routes and devices.

#[cfg(test)]
mod devices;
#[cfg(test)]
mod net;
#[cfg(test)]
mod routes;
