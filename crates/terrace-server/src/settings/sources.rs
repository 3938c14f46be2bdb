//! Sources of settings besides the command line: `TERRACE_*` variables and `terrace.toml`.
//!
//! Variables are read by the same deserializer as the file, so both accept the same values.
//! Relative paths in the file are relative to the file. An unknown key in the file is an error; an
//! unknown variable only causes a warning, because other programs share the environment.

use super::Layer;
use crate::failure::{Failure, Outcome};
use serde::{
    Deserialize as _, Deserializer,
    de::{Visitor, value::MapDeserializer},
};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

/// The default file, read if it exists and no other is given.
const FILE_DEFAULT: &str = "terrace.toml";
/// Prefix of variables.
const PREFIX: &str = "TERRACE_";
/// The variable that names the file; not a setting itself.
const CONFIG_VARIABLE: &str = "TERRACE_CONFIG";

/// Merges command line, environment and file, in this order of precedence.
///
/// # Errors
/// A usage failure naming the invalid source.
pub fn gather(
    flags: Layer,
    config: Option<PathBuf>,
    variables: impl Iterator<Item = (OsString, OsString)>,
    warn: &mut dyn FnMut(String),
) -> Outcome<Layer> {
    let variables: Vec<_> = variables.collect();
    let named = config.or_else(|| {
        let found = variables
            .iter()
            .find(|(name, value)| name == CONFIG_VARIABLE && !value.is_empty());
        found.map(|(_, value)| PathBuf::from(value))
    });
    flags.check("command line")?;
    let environment = from_variables(&variables, warn)?;
    environment.check("TERRACE_* variables")?;
    let file = from_file(named)?;
    Ok(flags.or(environment).or(file))
}

/// Collects the names of a type's fields.
struct Asking<'n>(&'n mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Asking<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_map(MapDeserializer::<_, Self::Error>::new(std::iter::empty::<((), ())>()))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The names of all settings.
fn names() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // It has no required field.
    let _ = Layer::deserialize(Asking(&mut names));
    names
}

/// The settings of the environment.
fn from_variables(variables: &[(OsString, OsString)], warn: &mut dyn FnMut(String)) -> Outcome<Layer> {
    let mut layer = Layer::default();
    let settings = names();
    for (name, value) in variables {
        let Some(setting) = setting_of(name) else { continue };
        if value.is_empty() {
            continue;
        }
        let Some(text) = value.to_str() else {
            return Err(Failure::usage(format!(
                "variable {}: its value is not UTF-8",
                name.to_string_lossy()
            )));
        };
        if !settings.contains(&setting.as_str()) {
            warn(format!(
                "variable {} is not a setting and is ignored",
                name.to_string_lossy()
            ));
            continue;
        }
        let table = toml::Table::from_iter([(setting, toml::Value::from(text))]);
        match Layer::deserialize(table) {
            Ok(one) => layer = one.or_all(layer),
            Err(error) => {
                return Err(Failure::usage(format!(
                    "variable {}: {}",
                    name.to_string_lossy(),
                    error.message()
                )));
            }
        }
    }
    Ok(layer)
}

/// `TERRACE_SIZE_THRESHOLD` → `size-threshold`.
fn setting_of(name: &OsStr) -> Option<String> {
    let rest = name.to_str()?.strip_prefix(PREFIX)?;
    (name != CONFIG_VARIABLE && name != "TERRACE_LOG").then(|| rest.to_ascii_lowercase().replace('_', "-"))
}

/// The settings of the file; none if no file is given and the default one does not exist.
fn from_file(named: Option<PathBuf>) -> Outcome<Layer> {
    let path = named.clone().unwrap_or_else(|| PathBuf::from(FILE_DEFAULT));
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => return Ok(Layer::default()),
        Err(error) => {
            return Err(Failure::usage(format!(
                "configuration file {}: {error}",
                path.display()
            )));
        }
    };
    let mut layer: Layer = toml::from_str(&text)
        .map_err(|error| Failure::usage(format!("configuration file {}: {error}", path.display()).trim_end()))?;
    layer.check(&format!("configuration file {}", path.display()))?;
    let base = path.parent().unwrap_or(Path::new(""));
    for dir in [&mut layer.store, &mut layer.flash, &mut layer.large]
        .into_iter()
        .flatten()
    {
        *dir = base.join(&dir);
    }
    for file in [
        &mut layer.tls_cert,
        &mut layer.tls_key,
        &mut layer.s3_notify_ca,
        &mut layer.page_password_file,
        &mut layer.secrets_key_file,
    ]
    .into_iter()
    .flatten()
    {
        *file = base.join(&file);
    }
    if let Some(log) = layer.access_log.as_mut().filter(|log| log.as_path() != Path::new("-")) {
        *log = base.join(&log);
    }
    Ok(layer)
}

impl Layer {
    /// Joins two layers of the same source: neither hides the other, so that [`Layer::check`]
    /// detects contradictions.
    fn or_all(self, other: Self) -> Self {
        let (store, flash, large) = (
            self.store.clone().or(other.store.clone()),
            self.flash.clone().or(other.flash.clone()),
            self.large.clone().or(other.large.clone()),
        );
        let (secrets_key, key_command) = (
            self.secrets_key.clone().or(other.secrets_key.clone()),
            self.key_command.clone().or(other.key_command.clone()),
        );
        Self {
            store,
            flash,
            large,
            secrets_key,
            key_command,
            ..self.or(other)
        }
    }
}
