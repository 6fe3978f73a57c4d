//! The service that the command line selects.
//!
//! Not here: how connections are assigned to threads (`serve`), and the services themselves.

use std::{io, sync::Arc};

use anyhow::Context as _;

use super::{chargen, discard, echo, http::HttpService, meter::Metered};
use crate::{
    args::{ServeArgs, Service},
    endpoint::Stream,
    failure::Failure,
    sandbox::Files,
};

/// A service that is ready for connections.
#[derive(Debug)]
pub(super) enum Handler {
    /// RFC 862.
    Echo,
    /// RFC 863.
    Discard,
    /// RFC 864.
    Chargen {
        /// Whether the pattern is sent without a copy.
        zero_copy: bool,
    },
    /// RFC 9112.
    Http(Arc<HttpService>),
    /// RFC 862 over UDP.
    UdpEcho,
    /// RFC 863 over UDP.
    UdpDiscard,
}

impl Handler {
    pub(super) fn prepare(args: &ServeArgs) -> Result<Self, Failure> {
        if args.service != Service::Http && (args.dir.is_some() || args.upload) {
            let message = format!("--dir and --upload have no use with {}", args.service.name());
            return Err(Failure::Usage(message));
        }
        let can_zero_copy = args.service == Service::Chargen && !args.link.is_kernel();
        if args.zerocopy && !can_zero_copy {
            let message = "--zerocopy needs the service chargen and a link other than kernel";
            return Err(Failure::Usage(message.to_owned()));
        }
        Ok(match args.service {
            Service::Echo => Self::Echo,
            Service::Discard => Self::Discard,
            Service::UdpEcho => Self::UdpEcho,
            Service::UdpDiscard => Self::UdpDiscard,
            Service::Chargen => Self::Chargen { zero_copy: args.zerocopy },
            Service::Http => {
                let Some(dir) = &args.dir else {
                    return Err(Failure::Usage("http needs --dir DIR".to_owned()));
                };
                let service = HttpService::open(dir, args.upload, args.upload_max)
                    .map_err(|error| Failure::option("--dir", dir.display(), error))?;
                Self::Http(Arc::new(service))
            }
        })
    }

    /// The files that the service opens while it runs.
    pub(super) fn files(&self) -> Files<'_> {
        match self {
            Self::Http(service) => service.files(),
            _ => Files::default(),
        }
    }

    /// Refuses a directory that the sandbox has made inaccessible.
    pub(super) fn check_files(&self) -> Result<(), Failure> {
        let Self::Http(service) = self else { return Ok(()) };
        Ok(service.check_access().context(
            "--dir: its permissions exclude this user, and the sandbox has dropped the capabilities \
             that override them (--no-sandbox keeps them)",
        )?)
    }

    /// Serves one connection until it ends.
    pub(super) fn serve<S: Stream>(&self, stream: &mut Metered<S>) -> io::Result<()> {
        match self {
            Self::Echo => echo::serve(stream),
            Self::Discard => discard::serve(stream),
            Self::Chargen { zero_copy } => chargen::serve(stream, *zero_copy),
            // Served by `clients` (`HttpService::client`) and by `datagrams`.
            Self::Http(_) | Self::UdpEcho | Self::UdpDiscard => Ok(()),
        }
    }
}
