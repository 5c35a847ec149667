//! The layer of the configuration file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::declare::ValueForm;
use super::model::RawModel;
use super::raw_value::{ConfigError, RawValue, ValueOrigin};
use super::{Layers, Section, nearest};

/// Reads a file into `layers`.
pub(crate) fn read(path: &Path, layers: &mut Layers) -> Result<(), ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })?;
    let file = File { path: Arc::from(tidy(path)), text: &text };
    let table = DeTable::parse(&text).map_err(|error| ConfigError::Syntax {
        origin: file.origin(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    for (key, value) in table.get_ref() {
        file.section(key, value, layers)?;
    }
    Ok(())
}

struct File<'t> {
    path: Arc<Path>,
    text: &'t str,
}

impl File<'_> {
    fn section(
        &self,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
        layers: &mut Layers,
    ) -> Result<(), ConfigError> {
        let name = key.get_ref().as_ref();
        let origin = self.origin(key.span().start);
        let Some(section) = Section::ALL.into_iter().find(|section| section.name() == name) else {
            return Err(unknown_section(name, origin));
        };
        let tables: Vec<&Spanned<DeValue<'_>>> = match (section, value.get_ref()) {
            (Section::Model, DeValue::Array(tables)) => tables.iter().collect(),
            (Section::Model, _) => return Err(shape(origin, "model", value, "a list of tables: write [[model]]")),
            (_, _) => vec![value],
        };
        for table in tables {
            let origin = self.origin(table.span().start);
            let DeValue::Table(entries) = table.get_ref() else {
                return Err(shape(origin, name, table, "a table"));
            };
            let mut model = RawModel::starting_at(origin);
            for (key, value) in entries {
                let origin = self.origin(key.span().start);
                let name = &**key.get_ref();
                let form = section.keys().iter().find(|key| key.name == name).map(|key| key.form);
                if let (Section::Sandbox, None, DeValue::Table(entries)) = (section, form, value.get_ref()) {
                    for (inner, value) in entries {
                        let origin = self.origin(inner.span().start);
                        let key = format!("{}.{}", key.get_ref(), inner.get_ref());
                        let Some(text) = plain(value.get_ref()) else {
                            return Err(shape(origin, &key, value, "one value"));
                        };
                        layers.set(section, &key, RawValue { text, origin }, |given| model.set(&key, given))?;
                    }
                    continue;
                }
                let (text, wanted) = match form {
                    Some(ValueForm::List) => (list(value.get_ref()), "a list"),
                    Some(ValueForm::Table) => (lines(value.get_ref()), "a table of single values"),
                    _ => (plain(value.get_ref()), "one value"),
                };
                let Some(text) = text else {
                    return Err(shape(origin, key.get_ref(), value, wanted));
                };
                layers.set(section, name, RawValue { text, origin }, |given| model.set(name, given))?;
            }
            if section == Section::Model {
                layers.models.push(model);
            }
        }
        Ok(())
    }

    fn origin(&self, offset: usize) -> ValueOrigin {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        ValueOrigin::File {
            path: Arc::clone(&self.path),
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
        }
    }
}

/// The text of a single value. Each key parses it, whatever layer it comes from.
fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(on) => Some(on.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// The values of a list, or one value, in the form of an environment variable: separated by commas.
fn list(value: &DeValue<'_>) -> Option<String> {
    let DeValue::Array(values) = value else { return plain(value) };
    let values: Option<Vec<String>> = values.iter().map(|value| plain(value.get_ref())).collect();
    values.map(|values| values.join(","))
}

/// A table of single values in the form of an environment variable: a line of `NAME: VALUE` for each.
fn lines(value: &DeValue<'_>) -> Option<String> {
    let DeValue::Table(entries) = value else { return None };
    let line = |name: &str, value: String| (!value.contains(['\n', '\r'])).then(|| format!("{name}: {value}\n"));
    entries.iter().map(|(name, value)| line(name.get_ref(), plain(value.get_ref())?)).collect()
}

fn shape(origin: ValueOrigin, key: &str, found: &Spanned<DeValue<'_>>, wanted: &'static str) -> ConfigError {
    ConfigError::Shape { origin, key: key.to_owned(), found: found.get_ref().type_str(), wanted }
}

/// The error for an unknown word: a misspelt section, or a key without its section.
fn unknown_section(name: &str, origin: ValueOrigin) -> ConfigError {
    let names = Section::ALL.map(Section::name);
    let nearest = nearest(name, names).map(str::to_owned).or_else(|| {
        let section = Section::ALL.into_iter().find(|section| section.keys().iter().any(|key| key.name == name))?;
        Some(format!("{}.{name}", section.name()))
    });
    ConfigError::UnknownKey { origin, key: name.to_owned(), nearest, known: names.join(", ") }
}

/// Without the `./` that the search put before it.
fn tidy(path: &Path) -> PathBuf {
    path.strip_prefix(".").unwrap_or(path).to_path_buf()
}
