//! Checks of the guide: its commands parse, its configuration is valid, its links work, and the names on the map exist in the code.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::commands::CliArguments;
use crate::config::{self, HostEnvironment};

/// A fenced block of a page.
struct Block {
    language: String,
    text: String,
}

/// The directory of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The pages for users, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let root = root();
    let guide = std::fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let top =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name));
    let pages: Vec<PathBuf> =
        top.into_iter().chain(guide).filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    assert!(pages.len() > 10, "the guide is not where it was");
    pages.into_iter().map(|page| (page.clone(), std::fs::read_to_string(page).unwrap())).collect()
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), open.as_mut()) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => open = Some(Block { language: language.to_owned(), text: String::new() }),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    blocks
}

/// The words of a shell line, without comments; quotes keep words together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for character in line.chars() {
        match (character, quote) {
            (_, Some(open)) if character == open => quote = None,
            (_, Some(_)) => word.push(character),
            ('"' | '\'', None) => quote = Some(character),
            ('#', None) if word.is_empty() => break,
            (' ', None) => words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty())),
            _ => word.push(character),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

#[test]
fn every_command_of_a_page_is_understood() {
    let mut seen = 0;
    for (page, text) in pages() {
        for line in blocks(&text).iter().filter(|block| block.language == "sh").flat_map(|block| block.text.lines()) {
            // The last program of a pipe, without a prefix such as sudo.
            let words = words(line.rsplit(" | ").next().unwrap());
            let Some(start) = words.iter().position(|word| word == "aludel") else { continue };
            if words[..start].iter().any(|word| !matches!(word.as_str(), "sudo" | "-H" | "-u")) {
                continue;
            }
            let end = words.iter().position(|word| word == ">" || word == "&").unwrap_or(words.len());
            let parsed = CliArguments::try_parse_from(&words[start..end]);
            assert!(parsed.is_ok(), "{}: {line}\n{}", page.display(), parsed.unwrap_err());
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen} commands");
}

#[test]
fn every_configuration_of_a_page_is_taken() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("aludel.toml");
    let host = HostEnvironment::made_up(home.path(), &[("HOME", "/root")]);
    for (page, text) in pages() {
        for block in blocks(&text).into_iter().filter(|block| block.language == "toml") {
            if block.text.contains("[[rule]]") {
                let rules = aludel_rules::Rules::parse(&block.text);
                assert!(rules.is_ok(), "{}: {}", page.display(), rules.unwrap_err());
                continue;
            }
            std::fs::write(&file, &block.text).unwrap();
            let taken = config::load(&host, Some(&file), &[]);
            assert!(taken.is_ok(), "{}: {}", page.display(), taken.unwrap_err());
        }
    }
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    for (page, text) in pages() {
        let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        for link in links.filter(|link| !link.contains("://") && !link.contains(' ')) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            assert!(target.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&target).unwrap();
                let titles = text.lines().filter(|line| line.starts_with('#'));
                assert!(titles.map(anchor_of).any(|title| title == anchor), "{}: {link}", page.display());
            }
        }
    }
}

/// The anchor of a title, as Git's hosts make it.
fn anchor_of(title: &str) -> String {
    let title = title.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|character| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_'));
    kept.map(|character| if character == ' ' { '-' } else { character }).collect()
}

/// Finds the repository's files and directories below one.
fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        found.push(entry.path());
        let is_foreign = matches!(entry.file_name().to_str(), Some("target" | ".git" | "node_modules" | "corpus"));
        if entry.file_type().unwrap().is_dir() && !is_foreign {
            walk(&entry.path(), found);
        }
    }
}

#[test]
fn every_name_of_the_map_is_in_the_code() {
    let root = root();
    let mut files = Vec::new();
    walk(&root, &mut files);
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut words = HashSet::new();
    let is_code = |file: &&PathBuf| file.extension().is_some_and(|end| end == "rs" || end == "py");
    for file in files.iter().filter(is_code) {
        let text = std::fs::read_to_string(file).unwrap();
        words.extend(text.split(|character| !is_name(character)).map(str::to_owned));
    }
    let mut seen = 0;
    let pages = [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "docs/decisions/019-local-sandboxes.md",
        "docs/decisions/020-turns-and-tenants.md",
    ];
    for page in pages {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        for name in text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let is_plain = name.chars().all(|character| is_name(character) || matches!(character, '/' | '.' | '-'));
            let is_file = name.ends_with(".rs") || name.ends_with(".py") || name.ends_with(".md");
            let is_directory = name.contains('/') && !name.contains('.') && name.starts_with(char::is_lowercase);
            if is_plain && (is_file || is_directory) {
                let path = Path::new(name);
                assert!(files.iter().any(|file| file.ends_with(path)), "{page}: no file is called {name}");
                seen += 1;
            } else if name.contains("::") || name.contains('_') || name.starts_with(char::is_uppercase) {
                let parts = name.split("::").filter(|part| !part.is_empty() && part.chars().all(is_name));
                for part in parts {
                    assert!(words.contains(part), "{page}: nothing is called {name}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 150, "{seen} names");
}
