//! Tables in columns.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Blanks between two columns.
const GAP: usize = 2;
/// Rows that are held until their table is shown.
const MAX_ROWS: usize = 500;

/// Columns of a table; one with more is not rendered.
const MAX_COLUMNS: usize = 40;

/// The rows of a table, as far as they were written.
#[derive(Debug, Default)]
pub(super) struct MarkdownTable {
    lines: Vec<String>,
}

impl MarkdownTable {
    /// Takes a line; false when it has to begin another table.
    pub(super) fn add(&mut self, line: &str) -> bool {
        let has_room = self.lines.len() < MAX_ROWS;
        if has_room {
            self.lines.push(line.to_owned());
        }
        has_room
    }

    /// The rendered table, at most this wide in columns of the terminal. Text that is not a table stays as it was.
    pub(super) fn render(self, width: usize) -> String {
        let rows: Vec<Vec<&str>> = self.lines.iter().map(|line| cells(line)).collect();
        let Some(rule) = rows.get(1).filter(|rule| rule.len() <= MAX_COLUMNS && rule.iter().all(|cell| is_rule(cell)))
        else {
            return self.lines.iter().map(|line| format!("{line}\n")).collect();
        };
        let columns = rule.len();
        let shown = |row: &Vec<&str>| -> Vec<String> {
            (0..columns).map(|column| plain(row.get(column).copied().unwrap_or_default())).collect()
        };
        let body: Vec<_> =
            rows.iter().enumerate().filter(|(index, _)| *index != 1).map(|(_, row)| shown(row)).collect();
        let widest = |column: usize| body.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
        let widths = fitted((0..columns).map(|column| widest(column).unwrap_or_default().max(1)).collect(), width);
        let is_right: Vec<bool> = rule.iter().map(|cell| cell.ends_with(':') && !cell.starts_with(':')).collect();
        let mut out = String::new();
        for (index, row) in body.iter().enumerate() {
            let cells: Vec<Vec<String>> = row.iter().zip(&widths).map(|(cell, width)| wrapped(cell, *width)).collect();
            for line in 0..cells.iter().map(Vec::len).max().unwrap_or_default() {
                let parts = cells.iter().map(|cell| cell.get(line).map(String::as_str).unwrap_or_default());
                let parts = parts.zip(&widths).zip(&is_right);
                out.push_str(joined(parts.map(|((part, width), right)| aligned(part, *width, *right))).trim_end());
                out.push('\n');
            }
            if index == 0 {
                out.push_str(&joined(widths.iter().map(|width| "─".repeat(*width))));
                out.push('\n');
            }
        }
        out
    }
}

/// The cells of a row, without the bars at its ends.
fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    line.strip_suffix('|').unwrap_or(line).split('|').map(str::trim).collect()
}

fn is_rule(cell: &str) -> bool {
    cell.contains('-') && cell.chars().all(|character| matches!(character, '-' | ':'))
}

/// The text of a cell without marks.
fn plain(cell: &str) -> String {
    cell.replace("**", "").replace('`', "")
}

/// Widths that fit: the widest columns give way.
fn fitted(mut widths: Vec<usize>, most: usize) -> Vec<usize> {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > most {
        match widths.iter_mut().max() {
            Some(widest) if *widest > 3 => *widest -= 1,
            _ => break,
        }
    }
    widths
}

/// The lines of a cell, broken between words unless those are too long; at least one.
fn wrapped(cell: &str, width: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in cell.split_whitespace() {
        if !line.is_empty() {
            if line.width() + 1 + word.width() > width {
                lines.push(std::mem::take(&mut line));
            } else {
                line.push(' ');
            }
        }
        for character in word.chars() {
            if !line.is_empty() && line.width() + character.width().unwrap_or_default() > width {
                lines.push(std::mem::take(&mut line));
            }
            line.push(character);
        }
    }
    lines.push(line);
    lines
}

/// A part of a cell, padded on one side.
fn aligned(text: &str, width: usize, right: bool) -> String {
    let blanks = " ".repeat(width.saturating_sub(text.width()));
    if right { blanks + text } else { text.to_owned() + &blanks }
}

fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(&" ".repeat(GAP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_columns_give_way_to_the_terminal() {
        let mut table = MarkdownTable::default();
        for line in ["|name|words|n|", "|---|---|--:|", "|a|日本語の長い文章です|1|", "|b|a short one|2|", "|c|"]
        {
            assert!(table.add(line));
        }
        let text = table.render(20);
        assert!(text.lines().all(|line| line.width() <= 20), "{text}");
        assert_eq!(
            text,
            "name  words        n\n────  ───────────  ─\na     日本語の長   1\n      い文章です\nb     a short one  2\nc\n"
        );
    }
}
