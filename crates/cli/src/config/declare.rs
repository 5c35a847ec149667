//! Declarations of settings: each is declared once, with its key, type, default and description. Parsing, `aludel config`, environment
//! variables, the help of flags and the reference are derived from it.

use std::fmt;

use super::raw_value::{ConfigError, RawValue, Setting};

/// A setting, as it is declared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SettingKey {
    /// The key below its section, for example `memory` or `docker.image`.
    pub(crate) name: &'static str,
    /// The lines of its description; the first paragraph is the help of its flag.
    pub(crate) lines: &'static [&'static str],
    /// Further lines, which its type has.
    pub(crate) about: fn() -> Vec<String>,
    /// The form of its value in a file.
    pub(crate) form: ValueForm,
}

impl SettingKey {
    /// All lines of its description.
    pub(crate) fn description(&self) -> Vec<String> {
        self.lines.iter().map(|line| line.trim().to_owned()).chain((self.about)()).collect()
    }
}

/// The form of a value in a file. Elsewhere all values are texts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueForm {
    /// One text.
    Text,
    /// A number.
    Number,
    /// True or false.
    Switch,
    /// One of these words.
    Choice(fn() -> Vec<&'static str>),
    /// Several texts, with commas between them outside of a file.
    List,
    /// A table of texts, with a line of `NAME: VALUE` for each outside of a file.
    Table,
}

/// A value of a setting.
pub(crate) trait Value: Sized + fmt::Display {
    /// Its form in a file.
    const FORM: ValueForm;

    /// Reads it as the setting `name`.
    fn read(given: RawValue, name: &str) -> Result<Setting<Self>, ConfigError>;

    /// Lines that end the description of a setting of this type.
    fn about() -> Vec<String> {
        Vec::new()
    }
}

/// Declares types with [`std::str::FromStr`] as values of settings.
macro_rules! values {
    ($($type:ty: $form:ident),+ $(,)?) => {
        $(impl $crate::config::declare::Value for $type {
            const FORM: $crate::config::declare::ValueForm = $crate::config::declare::ValueForm::$form;

            fn read(
                given: $crate::config::raw_value::RawValue,
                name: &str,
            ) -> Result<$crate::config::raw_value::Setting<Self>, $crate::config::raw_value::ConfigError> {
                given.parse(name)
            }
        })+
    };
}

/// Declares an enum whose variants are words.
macro_rules! choice {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $name:ident { $($(#[$of_variant:meta])* $variant:ident = $word:literal),+ $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $visibility enum $name { $($(#[$of_variant])* $variant),+ }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("is none of: {}", [$($word),+].join(", "))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl $crate::config::declare::Value for $name {
            const FORM: $crate::config::declare::ValueForm = $crate::config::declare::ValueForm::Choice(|| vec![$($word),+]);

            fn read(
                given: $crate::config::raw_value::RawValue,
                name: &str,
            ) -> Result<$crate::config::raw_value::Setting<Self>, $crate::config::raw_value::ConfigError> {
                given.parse(name)
            }
        }
    };
}

/// The key of a field: its name, unless another one is given.
macro_rules! key {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

/// Declares a section of the configuration. The description of a setting is Markdown for users.
macro_rules! settings {
    (
        $(#[doc = $section:literal])+
        $visibility:vis struct $name:ident of $prefix:literal {
            $(
                $(#[doc = $line:literal])+
                $field:ident $(as $key:literal)?: $type:ty = $default:expr;
            )+
        }
    ) => {
        $(#[doc = $section])+
        #[derive(Debug)]
        $visibility struct $name {
            $($(#[doc = $line])+ pub(crate) $field: $crate::config::raw_value::Setting<$type>,)+
        }

        impl $name {
            /// The lines of the section's description.
            pub(crate) const ABOUT: &[&str] = &[$($section),+];
            /// The settings in the order of their declaration.
            pub(crate) const KEYS: &[$crate::config::declare::SettingKey] = &[$(
                $crate::config::declare::SettingKey {
                    name: $crate::config::declare::key!($field $($key)?),
                    lines: &[$($line),+],
                    about: <$type as $crate::config::declare::Value>::about,
                    form: <$type as $crate::config::declare::Value>::FORM,
                }
            ),+];

            /// Sets a key, over the value that it has.
            pub(crate) fn set(
                &mut self,
                key: &str,
                given: $crate::config::raw_value::RawValue,
            ) -> Result<(), $crate::config::raw_value::ConfigError> {
                use $crate::config::declare::Value;
                $(if key == $crate::config::declare::key!($field $($key)?) {
                    let name = concat!($prefix, ".", $crate::config::declare::key!($field $($key)?));
                    self.$field = <$type as Value>::read(given, name)?;
                    return Ok(());
                })+
                Err($crate::config::unknown_key($prefix, key, Self::KEYS, given.origin))
            }

            /// The values, with `prefix` before their keys.
            pub(crate) fn entries_of(&self, prefix: &str) -> Vec<$crate::config::ConfigEntry> {
                vec![$({
                    let key = format!("{prefix}.{}", $crate::config::declare::key!($field $($key)?));
                    $crate::config::ConfigEntry::new(key, &self.$field)
                }),+]
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $crate::config::raw_value::Setting::default($default)),+ }
            }
        }
    };
}

pub(super) use {choice, key, settings, values};
