//! Pip's output, as progress.

use super::BuildProgress;

/// Makes a count of pip's lines.
#[derive(Debug, Default)]
pub(super) struct PipOutput {
    /// Entries of the list, minus those for other versions of Python.
    total: u64,
    /// Packages begun.
    done: u64,
    /// The package of the moment, with its version.
    package: String,
    /// Of all packages so far.
    kilobytes: f64,
    unpacking: bool,
}

impl PipOutput {
    pub(super) fn new(entries: u64) -> Self {
        Self { total: entries, ..Self::default() }
    }

    pub(super) fn line(&mut self, line: &str, progress: &mut dyn FnMut(BuildProgress)) {
        let line = line.trim();
        if line.starts_with("Ignoring ") {
            // Printed before the first package.
            self.total = self.total.saturating_sub(1);
        } else if let Some(rest) = line.strip_prefix("Collecting ") {
            if self.done == 0 {
                progress(BuildProgress::Phase { name: "downloading packages", total: self.total });
            }
            self.done += 1;
            self.package = rest.split([' ', ';']).next().unwrap_or(rest).replace("==", " ");
            progress(BuildProgress::Step { done: self.done, what: self.package.clone() });
        } else if let Some(rest) = line.strip_prefix("Downloading ").or_else(|| line.strip_prefix("Using cached ")) {
            // "Downloading pandas-3.0-cp311-….whl (11.2 MB)"
            let size = rest.rsplit_once('(').map_or("", |(_, size)| size.trim_end_matches(')'));
            self.kilobytes += kilobytes(size).unwrap_or(0.0);
            let what = format!("{} ({:.0} MB so far)", self.package, self.kilobytes / 1000.0);
            progress(BuildProgress::Step { done: self.done, what });
        } else if line.starts_with("Installing collected packages") && !self.unpacking {
            self.unpacking = true;
            progress(BuildProgress::Phase { name: "unpacking packages", total: 0 });
        }
    }
}

/// pip's sizes: `443 kB`, `11.2 MB`.
fn kilobytes(size: &str) -> Option<f64> {
    let (number, unit) = size.split_once(' ')?;
    let factor = match unit {
        "bytes" => 0.001,
        "kB" => 1.0,
        "MB" => 1000.0,
        "GB" => 1_000_000.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pips_lines_become_progress() {
        let mut seen = Vec::new();
        let mut output = PipOutput::new(3);
        for line in [
            "Looking in links: /somewhere",
            "Ignoring numpy: markers 'python_full_version < \"3.11\"' don't match your environment",
            "Collecting pandas==3.0.1 (from -r requirements.lock (line 9))",
            "  Downloading pandas-3.0.1-cp311-cp311-manylinux_2_24_x86_64.whl (11.2 MB)",
            "Collecting tabulate==0.9.0",
            "  Using cached tabulate-0.9.0-py3-none-any.whl (735 kB)",
            "Installing collected packages: pandas, tabulate",
            "Successfully installed pandas-3.0.1 tabulate-0.9.0",
        ] {
            output.line(line, &mut |progress| seen.push(progress));
        }
        let step = |done, what: &str| BuildProgress::Step { done, what: what.into() };
        assert_eq!(
            seen,
            [
                BuildProgress::Phase { name: "downloading packages", total: 2 },
                step(1, "pandas 3.0.1"),
                step(1, "pandas 3.0.1 (11 MB so far)"),
                step(2, "tabulate 0.9.0"),
                step(2, "tabulate 0.9.0 (12 MB so far)"),
                BuildProgress::Phase { name: "unpacking packages", total: 0 },
            ]
        );
    }

    #[test]
    fn sizes_have_units() {
        let sizes = ["17 bytes", "443 kB", "11.2 MB", "1.1 GB", "", "much MB", "3 XB"].map(kilobytes);
        assert_eq!(sizes, [Some(0.017), Some(443.0), Some(11_200.0), Some(1_100_000.0), None, None, None]);
    }
}
