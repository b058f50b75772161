//! Figures that are counted far below the store and shown by it.

/// Defines a structure of figures and the list of its fields, so that a figure is named in one place.
macro_rules! figures {
    ($(#[doc = $what:literal])+ $type:ident { $($(#[doc = $help:literal])+ $name:ident: $kind:ident,)* }) => {
        $(#[doc = $what])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $type {
            $($(#[doc = $help])+ pub $name: u64,)*
        }

        impl $type {
            /// How many figures there are.
            pub const COUNT: usize = [$(stringify!($name)),*].len();

            /// All of them, in order.
            pub fn values(&self) -> [u64; Self::COUNT] {
                [$(self.$name),*]
            }

            /// What [`values`](Self::values) has been taken from.
            pub fn from_values(values: [u64; Self::COUNT]) -> $type {
                let [$($name),*] = values;
                $type { $($name),* }
            }

            /// Every figure with its name and what it is.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, $crate::FigureKind, &'static str, u64)> {
                [$((stringify!($name), $crate::FigureKind::$kind, concat!($($help),+), self.$name),)*].into_iter()
            }
        }
    };
}
pub(crate) use figures;

/// How a figure moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// Up only.
    Counter,
    /// Up and down.
    Gauge,
}
