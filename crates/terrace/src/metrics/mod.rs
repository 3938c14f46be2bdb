//! Counters, and small building blocks of these and of policies.

pub(crate) mod bucket;
pub(crate) mod counters;
pub(crate) mod event;
pub(crate) mod moving_average;
pub(crate) mod stalls;
pub(crate) mod striped;

use std::sync::atomic::{AtomicU64, Ordering};

/// Raises a counter.
pub fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Subtracts from a counter that never wraps below zero. Returns the subtracted amount.
pub fn subtract(counter: &AtomicU64, amount: u64) -> u64 {
    let less = |now: u64| Some(now.saturating_sub(amount));
    let before = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    before.unwrap_or_default().min(amount)
}

/// Declares figures and their counters, each number once: a public structure, and one of atomics
/// with the same names for those that are counted. Its `picture` has the present values of the
/// counters; the other figures are left at their defaults.
macro_rules! counted {
    (
        $(#[$about:meta])*
        pub struct $figures:ident { $($(#[$figure_is:meta])* pub $figure:ident: $kind:ty,)* }
        $(#[$counters_are:meta])*
        $vis:vis struct $counters:ident { $($(#[$is:meta])* $name:ident,)* }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $figures {
            $($(#[$figure_is])* pub $figure: $kind,)*
            $($(#[$is])* pub $name: u64,)*
        }

        $(#[$counters_are])*
        #[derive(Debug, Default)]
        $vis struct $counters {
            $($(#[$is])* pub $name: std::sync::atomic::AtomicU64,)*
        }

        impl $counters {
            /// Their present values.
            $vis fn picture(&self) -> $figures {
                $figures {
                    $($figure: <$kind>::default(),)*
                    $($name: self.$name.load(std::sync::atomic::Ordering::Relaxed),)*
                }
            }
        }
    };
}
pub(crate) use counted;
