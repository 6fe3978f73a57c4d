//! Expansion of the table of socket options: a row becomes a variant of `SocketOption`, an arm of
//! each of its functions, and typed setters.
//!
//! Below: nothing; the names in the expansion are those that the table imports. Above: `table`,
//! which explains the parts of a row.
//!
//! Not here: the rows (`table`), the checks (`check`).

/// Access of a row from the presence of its parts `set` and `get`.
macro_rules! access {
    ([] [$($get:tt)+]) => {
        Access::Read
    };
    ([$($set:tt)+] []) => {
        Access::Write
    };
    ([$($set:tt)+] [$($get:tt)+]) => {
        Access::Both
    };
}

/// Expands to the typed setter of a row, if the row has one: with `settings`, the setter of
/// [`SocketSettings`]; with `options`, a setter of [`ListenOptions`] or [`ConnectOptions`] that
/// calls it.
macro_rules! setter {
    ($target:tt $docs:tt $name:literal) => {};
    ((settings $kept:ident $new:ident) ($($doc:tt)*) $name:literal
        $setter:ident($($arg:ident: $type:ty),+) { $with:expr } { $keep:expr }) => {
        $($doc)*
        ///
        #[doc = concat!("`setsockopt`: `", $name, "`.")]
        pub fn $setter(mut self, $($arg: $type),+) -> Self {
            let $kept = &mut self;
            let $new = $with;
            $keep;
            self
        }
    };
    ((options $kept:ident $new:ident) ($($doc:tt)*) $name:literal
        $setter:ident($($arg:ident: $type:ty),+) { $with:expr } { $keep:expr }) => {
        $($doc)*
        ///
        #[doc = concat!("`setsockopt`: `", $name, "`.")]
        pub fn $setter(mut self, $($arg: $type),+) -> Self {
            self.settings = self.settings.$setter($($arg),+);
            self
        }
    };
}

/// Evaluates the expression of a row in the place that keeps the option of a connection: with the
/// locked `Tcb`, with the socket alone, or not at all.
macro_rules! store {
    (nowhere ($socket:ident $net:ident $cx:ident $tcb:ident) $store:expr) => {};
    (socket ($socket:ident $net:ident $cx:ident $tcb:ident) $store:expr) => {
        $store
    };
    (tcb ($socket:ident $net:ident $cx:ident $tcb:ident) $store:expr) => {
        $socket.with_tcb($net, $cx, |$tcb, $cx| $store)
    };
}

/// Expands the rows of the table into `SocketOption`, its functions, and the typed setters.
macro_rules! options {
    (
        names($new:ident $state:ident $kept:ident $socket:ident $tcb:ident $net:ident $cx:ident
            $given:ident $sysctls:ident);
        $(
            $(#[doc = $doc:literal])+
            $option:ident = $level:ident $number:literal, $name:literal, $form:ident
            $(, set $states:ident { $check:expr }
                $(with $setter:ident($($arg:ident: $type:ty),+) { $with:expr })?
                settings { $keep:expr } $place:ident { $store:expr })?
            $(, get settings { $before:expr } $source:ident { $value:expr })?;
        )*
    ) => {
        /// A socket option: of Linux, or of [`SOL_QUIETLINE`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum SocketOption {
            $(
                $(#[doc = $doc])+
                ///
                #[doc = concat!("`setsockopt`: `", $name, "`.")]
                $option,
            )*
        }

        impl SocketOption {
            /// All options.
            pub const ALL: &[Self] = &[$(Self::$option),*];

            /// Returns the level: [`SOL_SOCKET`], [`IPPROTO_IP`], [`IPPROTO_IPV6`],
            /// [`IPPROTO_TCP`], [`IPPROTO_UDP`] or [`SOL_QUIETLINE`].
            #[must_use]
            pub const fn level(self) -> i32 {
                match self { $(Self::$option => $level,)* }
            }

            /// Returns the number within its level.
            #[must_use]
            pub const fn number(self) -> i32 {
                match self { $(Self::$option => $number,)* }
            }

            /// Returns the name in Linux's headers, or one that begins with `QUIETLINE_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$option => $name,)* }
            }

            /// Returns the form of its value in memory.
            #[must_use]
            pub const fn form(self) -> Form {
                match self { $(Self::$option => Form::$form,)* }
            }

            /// Returns whether it can be read, written or both.
            #[must_use]
            pub const fn access(self) -> Access {
                match self {
                    $(Self::$option => access!([$($states)?] [$($source)?]),)*
                }
            }

            /// Returns the socket states in which it can be set. In another state, setting fails
            /// with `EINVAL`. A read-only option has no such states, and setting it fails with
            /// `ENOPROTOOPT`.
            #[must_use]
            pub const fn settable_in(self) -> &'static [SocketState] {
                match self {
                    $($(Self::$option => $states,)?)*
                    _ => &[],
                }
            }

            /// Checks the value and stores it in the settings of a socket without a connection.
            pub(super) fn keep(
                self,
                $state: SocketState,
                $kept: &mut SocketSettings,
                $given: &OptionValue,
                $sysctls: &Sysctls,
            ) -> Result<(), Errno> {
                match self {
                    $($(Self::$option => {
                        let $new = $check;
                        self.check_state($state)?;
                        $keep;
                    })?)*
                    _ => return Err(Errno::ENOPROTOOPT),
                }
                Ok(())
            }

            /// Returns the value from the settings of a socket without a connection.
            pub(super) fn kept(
                self,
                $state: SocketState,
                $kept: &SocketSettings,
                $sysctls: &Sysctls,
            ) -> Result<OptionValue, Errno> {
                Ok(match self {
                    $($(Self::$option => $before,)?)*
                    _ => return Err(Errno::ENOPROTOOPT),
                })
            }

            /// Checks the value and stores it in a connection.
            #[expect(unused_variables, reason = "a row uses some of the names")]
            pub(super) fn store(
                self,
                $socket: &Connection,
                $net: &Net,
                $cx: &mut Cx,
                $given: &OptionValue,
            ) -> Result<(), Errno> {
                let $state = SocketState::Connected;
                match self {
                    $($(Self::$option => {
                        let $sysctls = $cx.sysctls_of($net);
                        let $new = $check;
                        self.check_state($state)?;
                        store!($place ($socket $net $cx $tcb) $store);
                    })?)*
                    _ => return Err(Errno::ENOPROTOOPT),
                }
                Ok(())
            }

            /// Returns the value from a connection.
            #[expect(unused_variables, reason = "a row uses some of the names")]
            pub(super) fn load(
                self,
                $socket: &Connection,
                $net: &Net,
                $cx: &mut Cx,
            ) -> Result<OptionValue, Errno> {
                Ok(match self {
                    $($(Self::$option => {
                        store!($source ($socket $net $cx $tcb) $value)
                    })?)*
                    _ => return Err(Errno::ENOPROTOOPT),
                })
            }
        }

        /// Typed setters of options of stream sockets. A number or time outside Linux's bounds
        /// becomes the nearest value within them.
        impl SocketSettings {
            $(setter! {
                (settings $kept $new) ($(#[doc = $doc])+) $name
                $($($setter($($arg: $type),+) { $with } { $keep })?)?
            })*
        }

        /// The setters of [`SocketSettings`].
        impl ListenOptions {
            $(setter! {
                (options $kept $new) ($(#[doc = $doc])+) $name
                $($($setter($($arg: $type),+) { $with } { $keep })?)?
            })*
        }

        /// The setters of [`SocketSettings`].
        impl ConnectOptions {
            $(setter! {
                (options $kept $new) ($(#[doc = $doc])+) $name
                $($($setter($($arg: $type),+) { $with } { $keep })?)?
            })*
        }
    };
}

pub(super) use {access, options, setter, store};
