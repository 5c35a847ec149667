//! Tables in columns.

use unicode_width::UnicodeWidthStr as _;

/// Blanks between two columns.
const GAP: usize = 2;
/// Rows that are held until their table is shown.
const MAX_ROWS: usize = 500;

/// Columns of a table; one with more stays as it was.
const MAX_COLUMNS: usize = 40;

/// The rows of a table, as far as they were written.
#[derive(Debug, Default)]
pub(super) struct Table {
    lines: Vec<String>,
}

impl Table {
    /// Takes a line; false when it has to begin another table.
    pub(super) fn add(&mut self, line: &str) -> bool {
        let has_room = self.lines.len() < MAX_ROWS;
        if has_room {
            self.lines.push(line.to_owned());
        }
        has_room
    }

    /// The table, at most so many columns of the terminal wide. What is no table stays as it was.
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
            rows.iter().enumerate().filter(|(place, _)| *place != 1).map(|(_, row)| shown(row)).collect();
        let widest = |column: usize| body.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
        let widths = fitted((0..columns).map(|column| widest(column).unwrap_or_default().max(1)).collect(), width);
        let is_right: Vec<bool> = rule.iter().map(|cell| cell.ends_with(':') && !cell.starts_with(':')).collect();
        let mut out = String::new();
        for (place, row) in body.iter().enumerate() {
            let cells = row.iter().zip(&widths).zip(&is_right);
            out.push_str(joined(cells.map(|((cell, width), right)| aligned(cell, *width, *right))).trim_end());
            out.push('\n');
            if place == 0 {
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

/// A cell with blanks on one side, or cut.
fn aligned(cell: &str, width: usize, right: bool) -> String {
    let mut text = cell.to_owned();
    if text.width() > width {
        while text.width() + 1 > width && text.pop().is_some() {}
        text.push('…');
    }
    let blanks = " ".repeat(width.saturating_sub(text.width()));
    if right { blanks + &text } else { text + &blanks }
}

fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(&" ".repeat(GAP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_columns_give_way_to_the_terminal() {
        let mut table = Table::default();
        for line in ["|name|words|n|", "|---|---|--:|", "|a|日本語の長い文章です|1|", "|b|short||", "|c|"] {
            assert!(table.add(line));
        }
        let text = table.render(20);
        assert!(text.lines().all(|line| line.width() <= 20), "{text}");
        assert_eq!(text, "name  words        n\n────  ───────────  ─\na     日本語の長…  1\nb     short\nc\n");
    }
}
