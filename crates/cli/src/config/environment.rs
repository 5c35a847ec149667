//! The layer of the environment: `ALUDEL_SECTION_KEY`.

use super::model::{Overlay, RawModel};
use super::raw_value::{ConfigError, RawValue, ValueOrigin};
use super::{HostEnvironment, Layers, Section, nearest};

/// Reads the variables over `layers`.
///
/// Kubernetes gives every pod variables like `ALUDEL_PORT` and `ALUDEL_SERVICE_HOST` when there is a service of that name, so an unknown
/// variable is an error only if it resembles a known one.
pub(crate) fn read(host: &HostEnvironment, layers: &mut Layers) -> Result<(), ConfigError> {
    let known: Vec<(String, Section, &str)> = Section::ALL
        .into_iter()
        .flat_map(|section| section.keys().iter().map(move |key| (variable(section, key.name), section, key.name)))
        .collect();
    let mut model = Overlay::new();
    for (name, value) in host.variables().filter(|(name, _)| name.starts_with("ALUDEL_")) {
        let origin = ValueOrigin::Environment(name.to_owned());
        if let Some((_, section, key)) = known.iter().find(|(variable, ..)| variable == name) {
            layers.overlay(&mut model, *section, key, RawValue { text: value.to_owned(), origin })?;
            continue;
        }
        let names = known.iter().map(|(variable, ..)| variable.as_str());
        let of_a_section = Section::ALL.into_iter().any(|section| name.starts_with(&variable(section, "")));
        let near =
            nearest(name, names.clone()).filter(|known| of_a_section || strsim::damerau_levenshtein(name, known) <= 2);
        if of_a_section || near.is_some() {
            let known = names.collect::<Vec<_>>().join(", ");
            return Err(ConfigError::UnknownKey {
                origin,
                key: name.to_owned(),
                nearest: near.map(str::to_owned),
                known,
            });
        }
    }
    RawModel::overlay(&mut layers.models, model)
}

/// The variable of a key.
pub(super) fn variable(section: Section, key: &str) -> String {
    format!("ALUDEL_{}_{key}", section.name()).replace('.', "_").to_uppercase()
}
