//! Amounts of resources, in Kubernetes' words.

use std::collections::BTreeMap;

/// The least memory of a sandbox, bytes: its first kernel takes less.
const LEAST_MEMORY: f64 = (64 << 20) as f64;
/// The least share of processors.
const LEAST_CPUS: f64 = 0.1;

/// The resources that a client asks for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Resources {
    /// Processors.
    pub(super) cpus: Option<f64>,
    /// Memory, bytes.
    pub(super) memory: Option<u64>,
}

impl Resources {
    /// Reads the resources that a client asks for.
    pub(super) fn read(asked: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut read = Self::default();
        for (name, text) in asked {
            let shown: String = text.chars().take(32).collect();
            let amount = amount(text).ok_or_else(|| {
                let name: String = name.chars().take(32).collect();
                format!("resourceLimits: {name} must be an amount such as 500m, 2 or 512Mi, and not '{shown}'")
            })?;
            let least = |least: f64, words: &str| {
                if amount < least { Err(format!("resourceLimits: {name} must be at least {words}")) } else { Ok(()) }
            };
            match name.as_str() {
                "cpu" => {
                    least(LEAST_CPUS, "100m")?;
                    read.cpus = Some(amount);
                }
                "memory" => {
                    least(LEAST_MEMORY, "64Mi")?;
                    read.memory = Some(amount as u64);
                }
                other => {
                    let other: String = other.chars().take(32).collect();
                    return Err(format!("resourceLimits: {other} is not supported by this server; cpu and memory are"));
                }
            }
        }
        Ok(read)
    }
}

/// Reads an amount such as `500m`, `1.5`, `512Mi` or `2G`.
fn amount(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 12] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("m", 0.001),
        ("k", 1e3),
        ("K", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("B", 1.0),
        ("", 1.0),
    ];
    let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = if plain { number.parse().ok()? } else { return None };
    Some(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_has_them() {
        for (text, number) in [("500m", 0.5), ("2", 2.0), ("1.5", 1.5), ("512Mi", 536_870_912.0), ("2G", 2e9)] {
            assert_eq!(amount(text), Some(number), "{text}");
        }
        for text in ["", "Mi", "-1", "1e9", "nan", "inf", "1 Gi", "1Qi", "1.2.3"] {
            assert_eq!(amount(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_none_is_refused_in_words() {
        let read = |name: &str, text: &str| Resources::read(&[(name.to_owned(), text.to_owned())].into());
        assert_eq!(read("cpu", "1").unwrap(), Resources { cpus: Some(1.0), memory: None });
        assert_eq!(read("memory", "1Gi").unwrap(), Resources { cpus: None, memory: Some(1 << 30) });
        for (name, text) in [("memory", "1Mi"), ("memory", "x"), ("cpu", "1m"), ("nvidia.com/gpu", "1")] {
            assert!(read(name, text).unwrap_err().contains("resourceLimits"), "{name} {text}");
        }
    }
}
