//! The reference of all settings, made from their declarations: as text, as Markdown, and as a JSON schema.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::approval::ApprovalSection;
use super::declare::{SettingKey, ValueForm};
use super::environment::variable;
use super::model::ModelSection;
use super::sandbox::SandboxSection;
use super::server::ServerSection;
use super::{ConfigEntry, Section};

/// Flags that set a part of the configuration, by section and key, and the commands that have them.
const FLAGS: [(Section, &str, &str); 8] = [
    (Section::Server, "listen", "`--listen` of `serve`"),
    (Section::Server, "data", "`--data`"),
    (Section::Sandbox, "memory", "`--memory` of `run`, `ask`, `chat` and `mcp`"),
    (Section::Sandbox, "disk", "`--disk` of `run`, `ask`, `chat` and `mcp`"),
    (Section::Sandbox, "timeout", "`--timeout` of `run`, `ask`, `chat` and `mcp`"),
    (Section::Model, "name", "`--model` of `ask` and `chat`"),
    (Section::Model, "url", "`--url` of `ask` and `chat`"),
    (Section::Model, "key", "`--key` of `ask` and `chat`"),
];

/// The description of a section.
fn description_of(section: Section) -> String {
    one_line(match section {
        Section::Server => ServerSection::ABOUT,
        Section::Sandbox => SandboxSection::ABOUT,
        Section::Approval => ApprovalSection::ABOUT,
        Section::Model => ModelSection::ABOUT,
    })
}

/// The defaults, by key.
fn defaults(section: Section) -> Vec<ConfigEntry> {
    match section {
        Section::Server => ServerSection::default().entries_of(""),
        Section::Sandbox => SandboxSection::default().entries_of(""),
        Section::Approval => ApprovalSection::default().entries_of(""),
        Section::Model => ModelSection::default().entries_of(""),
    }
}

/// The reference as text: the settings whose name contains `part`, if there are any.
pub(crate) fn explain(part: &str) -> Option<String> {
    let mut text = String::new();
    for (section, key, default) in all() {
        let name = format!("{}.{}", section.name(), key.name);
        if !name.contains(part) {
            continue;
        }
        let default = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        let _ = writeln!(text, "{name} = {}{default}", written(key.form));
        for line in key.description() {
            let _ = writeln!(text, "    {line}");
        }
        let _ = writeln!(text, "    ${}", variable(section, key.name));
        text.push('\n');
    }
    (!text.is_empty()).then_some(text)
}

/// The page `docs/guide/settings.md`.
pub(crate) fn markdown() -> String {
    let mut text = String::from(
        "# Settings\n\nMade by `aludel config --markdown` from the declarations of the settings; do not edit it.\n\nA value comes, in rising \
         order, from its default, from `aludel.toml` (the file of `--config` or `ALUDEL_CONFIG`, or the first of `./aludel.toml`,\n\
         `~/.config/aludel/aludel.toml` and `/etc/aludel/aludel.toml`), from the environment, and from a flag. `aludel config` shows each value\n\
         and where it comes from, `aludel config --explain` this page at a terminal, and `aludel config --schema` prints a JSON schema of the\n\
         file for editors. Sizes are written like `512m` or `2g`, times like `30s` or `20m`. A relative path in the file starts at the file's\n\
         directory, one in a variable or a flag at the working directory.\n",
    );
    for section in Section::ALL {
        let title = if section == Section::Model { "[[model]]".to_owned() } else { format!("[{}]", section.name()) };
        let _ = writeln!(text, "\n## `{title}`\n\n{}", description_of(section));
        for (of, key, default) in all() {
            if of != section {
                continue;
            }
            let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
            let _ = write!(
                text,
                "\n### `{}`\n\n{}. Default: {default}. Variable: `{}`.",
                key.name,
                written(key.form),
                variable(section, key.name)
            );
            if let Some((.., flag)) = FLAGS.iter().find(|(of, name, _)| *of == section && *name == key.name) {
                let _ = write!(text, " Flag: {flag}.");
            }
            text.push_str("\n\n");
            for line in key.description() {
                text.push_str(&line);
                text.push('\n');
            }
        }
    }
    text
}

/// A JSON schema of `aludel.toml`.
pub(crate) fn schema() -> Value {
    let mut sections = Map::new();
    for section in Section::ALL {
        let mut keys = Map::new();
        for (of, key, default) in all() {
            if of != section {
                continue;
            }
            let mut schema = match key.form {
                ValueForm::Text => json!({ "type": "string" }),
                ValueForm::Number => json!({ "type": "number" }),
                ValueForm::Switch => json!({ "type": "boolean" }),
                ValueForm::Choice(words) => json!({ "enum": with_booleans(&words()) }),
                ValueForm::List => json!({ "type": "array", "items": { "type": "string" } }),
                ValueForm::Table => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            };
            let description =
                format!("{} Default: {}.", sentence(key), if default.is_empty() { "none" } else { &default });
            schema["description"] = json!(description);
            match key.name.split_once('.') {
                None => {
                    keys.insert(key.name.to_owned(), schema);
                }
                Some((table, inner)) => {
                    let table = keys.entry(table).or_insert_with(
                        || json!({ "type": "object", "additionalProperties": false, "properties": {} }),
                    );
                    table["properties"][inner] = schema;
                }
            }
        }
        let mut table = json!({ "type": "object", "description": description_of(section), "additionalProperties": false, "properties": keys });
        if section == Section::Model {
            table = json!({ "type": "array", "items": table });
        }
        sections.insert(section.name().to_owned(), table);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "aludel.toml",
        "type": "object",
        "additionalProperties": false,
        "properties": sections,
    })
}

/// The help of a flag that sets a key: the first sentences of its description, and its default.
pub(crate) fn help(section: Section, name: &str) -> String {
    let found = all().into_iter().find(|(of, key, _)| *of == section && key.name == name);
    let Some((_, key, default)) = found else { return String::new() };
    let text = sentence(key).replace('`', "");
    let text = text.trim_end_matches('.');
    if default.is_empty() { text.to_owned() } else { format!("{text} [default: {default}]") }
}

/// All settings with their sections and defaults.
fn all() -> Vec<(Section, &'static SettingKey, String)> {
    let of_section = |section: Section| {
        let keys = section.keys().iter().zip(defaults(section));
        keys.map(move |(key, default)| (section, key, default.value)).collect::<Vec<_>>()
    };
    Section::ALL.into_iter().flat_map(of_section).collect()
}

/// The first paragraph of a description, on one line.
fn sentence(key: &SettingKey) -> String {
    one_line(&key.description())
}

fn one_line(lines: &[impl AsRef<str>]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.as_ref().trim()).take_while(|line| !line.is_empty()).collect();
    lines.join(" ")
}

/// A form in words.
fn written(form: ValueForm) -> String {
    match form {
        ValueForm::Text => "Text".to_owned(),
        ValueForm::Number => "Number".to_owned(),
        ValueForm::Switch => "`true` or `false`".to_owned(),
        ValueForm::Choice(words) => {
            let words: Vec<String> = words().iter().map(|word| format!("`{word}`")).collect();
            format!("One of {}", words.join(", "))
        }
        ValueForm::List => "List".to_owned(),
        ValueForm::Table => "Table".to_owned(),
    }
}

/// Words as a file has them: `true` and `false` without quotes.
fn with_booleans(words: &[&str]) -> Vec<Value> {
    words.iter().map(|word| word.parse().map_or_else(|_| json!(word), |word: bool| json!(word))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If it fails: `aludel config --markdown > docs/guide/settings.md`.
    #[test]
    fn the_page_of_settings_is_that_of_the_declarations() {
        let page = include_str!("../../../../docs/guide/settings.md");
        assert!(page == markdown(), "docs/guide/settings.md is out of date; `aludel config --markdown` prints it");
    }

    #[test]
    fn every_flag_sets_a_key_that_there_is() {
        for (section, key, _) in FLAGS {
            assert!(section.keys().iter().any(|known| known.name == key), "{section:?} {key}");
        }
    }

    #[test]
    fn the_schema_has_every_key_with_its_form() {
        let schema = schema();
        let at = |path: &str| schema.pointer(path).unwrap_or_else(|| panic!("no {path}")).clone();
        assert_eq!(at("/properties/sandbox/properties/docker/properties/image/type"), "string");
        assert_eq!(at("/properties/model/items/properties/fallback/type"), "array");
        assert_eq!(
            at("/properties/model/items/properties/code_interpreter/enum"),
            json!([false, true, "output", "files"])
        );
        assert_eq!(at("/properties/server/properties/log/enum"), json!(["text", "json", "off"]));
    }
}
