//! Routes as `ip route` shows them: taken by [`Stack::add_route`](crate::Stack::add_route) and
//! listed by [`Stack::routes`](crate::Stack::routes).

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use stack::{
    base::{config_error::ConfigError, ids::DeviceIndex},
    route::fib::{NO_DEVICE, RouteEntry, RouteSpec},
};

pub use stack::transmit::dst::RouteKind;

/// A route. Its text is the syntax of `ip route`:
///
/// ```
/// use quietline::Route;
///
/// let route: Route = "10.9.0.0/16 via 10.0.0.254 dev tap0 metric 20 mtu 1400".parse().unwrap();
/// assert_eq!(route.dev.as_deref(), Some("tap0"));
/// assert_eq!(route, Route::to("10.9.0.0/16".parse().unwrap())
///     .via("10.0.0.254".parse().unwrap()).dev("tap0").metric(20).mtu(1400));
/// assert_eq!(route.to_string(), "10.9.0.0/16 via 10.0.0.254 dev tap0 metric 20 mtu 1400");
/// assert!("default blackhole".parse::<Route>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination addresses.
    pub prefix: IpNet,
    /// Treatment of packets to these destinations. `Unicast`, `Blackhole` and `Unreachable` can be
    /// added; the other kinds follow from addresses and are only listed.
    pub kind: RouteKind,
    /// Next hop: a neighbor. `None` if the destinations are directly on the link.
    pub via: Option<IpAddr>,
    /// Name of the device. May be omitted if `via` determines it.
    pub dev: Option<String>,
    /// Source address of packets that have none yet: an address of the stack. If omitted, the
    /// stack's address in the network of the next hop.
    pub src: Option<IpAddr>,
    /// Maximum packet size in bytes, if it is smaller than the device's.
    pub mtu: Option<u32>,
    /// Priority among routes to the same prefix: the smallest metric wins.
    pub metric: u32,
}

impl Route {
    /// Returns a route to `prefix`, to be completed by [`via`](Self::via), [`dev`](Self::dev) or
    /// both.
    #[must_use]
    pub const fn to(prefix: IpNet) -> Self {
        Self {
            prefix,
            kind: RouteKind::Unicast,
            via: None,
            dev: None,
            src: None,
            mtu: None,
            metric: 0,
        }
    }

    /// Returns a route that drops packets to `prefix`: silently (`Blackhole`), or with an error for
    /// the sender (`Unreachable`).
    #[must_use]
    pub fn dropping(prefix: IpNet, kind: RouteKind) -> Self {
        Self { kind, ..Self::to(prefix) }
    }

    /// Sets the next hop.
    #[must_use]
    pub const fn via(mut self, next_hop: IpAddr) -> Self {
        self.via = Some(next_hop);
        self
    }

    /// Sets the device.
    #[must_use]
    pub fn dev(mut self, name: impl Into<String>) -> Self {
        self.dev = Some(name.into());
        self
    }

    /// Sets the source address.
    #[must_use]
    pub const fn src(mut self, source: IpAddr) -> Self {
        self.src = Some(source);
        self
    }

    /// Sets the maximum packet size, in bytes.
    #[must_use]
    pub const fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Sets the metric.
    #[must_use]
    pub const fn metric(mut self, metric: u32) -> Self {
        self.metric = metric;
        self
    }

    /// Converts the route to the stack's form; `index` returns the index of a device by name.
    pub(crate) fn spec(
        &self,
        index: impl Fn(&str) -> Option<DeviceIndex>,
    ) -> Result<RouteSpec, ConfigError> {
        let device = match &self.dev {
            Some(name) => Some(
                index(name)
                    .ok_or_else(|| ConfigError::missing("route dev", name, "no such device"))?,
            ),
            None => None,
        };
        let Self { prefix, kind, via, src: prefsrc, mtu, metric, .. } = *self;
        Ok(RouteSpec { prefix, kind, via, device, prefsrc, mtu, metric })
    }

    /// Builds a listed route; `name` returns the name of a device by index.
    pub(crate) fn listed(entry: RouteEntry, name: impl Fn(DeviceIndex) -> String) -> Self {
        let RouteEntry { prefix, kind, via, device, prefsrc: src, mtu, metric } = entry;
        let dev = (device != NO_DEVICE).then(|| name(device));
        Self { prefix, kind, via, dev, src, mtu, metric }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", word(self.kind))?;
        if self.prefix.prefix_len() == 0 {
            f.write_str("default")?;
        } else if self.prefix.prefix_len() == self.prefix.max_prefix_len() {
            write!(f, "{}", self.prefix.addr())?;
        } else {
            write!(f, "{}", self.prefix)?;
        }
        let mut field = |name: &str, value: Option<&dyn fmt::Display>| match value {
            Some(value) => write!(f, " {name} {value}"),
            None => Ok(()),
        };
        field("via", self.via.as_ref().map(|via| via as _))?;
        field("dev", self.dev.as_ref().map(|dev| dev as _))?;
        field("src", self.src.as_ref().map(|src| src as _))?;
        field("metric", (self.metric != 0).then_some(&self.metric as _))?;
        field("mtu", self.mtu.as_ref().map(|mtu| mtu as _))
    }
}

/// Returns the word that `ip route` prints in front of the prefix.
const fn word(kind: RouteKind) -> &'static str {
    match kind {
        RouteKind::Unicast => "",
        RouteKind::Local => "local ",
        RouteKind::Broadcast => "broadcast ",
        RouteKind::Multicast => "multicast ",
        RouteKind::Blackhole => "blackhole ",
        RouteKind::Unreachable => "unreachable ",
    }
}

impl FromStr for Route {
    type Err = ConfigError;

    /// Parses `[blackhole|unreachable] PREFIX OPTIONS`, where `PREFIX` may be `default` or a single
    /// address, and `OPTIONS` are `[via ADDRESS] [dev NAME] [src ADDRESS] [metric N] [mtu BYTES]`.
    /// `default` has the address family of the next hop, or IPv4 without one.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let refuse = |allowed: &str| ConfigError::new("route", text, allowed);
        let mut words = text.split_whitespace().peekable();
        let kind = match words.peek() {
            Some(&"blackhole") => RouteKind::Blackhole,
            Some(&"unreachable") => RouteKind::Unreachable,
            _ => RouteKind::Unicast,
        };
        if kind != RouteKind::Unicast {
            words.next();
        }
        let prefix = words.next().ok_or_else(|| refuse("a prefix or `default`"))?;
        let mut route = Self::dropping(IpNet::V4(Ipv4Net::default()), kind);
        if prefix != "default" {
            let address = prefix.parse::<IpAddr>().map(IpNet::from);
            route.prefix = prefix.parse().or(address).map_err(|_| refuse("a prefix first"))?;
        }
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| refuse("a value for each name"))?;
            let address = || value.parse().map_err(|_| refuse("an IP address"));
            let number = || value.parse().map_err(|_| refuse("a number"));
            match name {
                "via" => route.via = Some(address()?),
                "dev" => route.dev = Some(value.to_owned()),
                "src" => route.src = Some(address()?),
                "mtu" => route.mtu = Some(number()?),
                "metric" => route.metric = number()?,
                _ => return Err(refuse("`via`, `dev`, `src`, `metric` and `mtu`")),
            }
        }
        if prefix == "default" && route.via.is_some_and(|via| via.is_ipv6()) {
            route.prefix = IpNet::V6(Ipv6Net::default());
        }
        Ok(route)
    }
}
