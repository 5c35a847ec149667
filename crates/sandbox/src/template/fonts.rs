//! Fonts in the usual place, `/usr/share/fonts`, with Matplotlib falling back from its own to those of Chinese, Japanese, Korean and Hindi.

use std::fs;
use std::path::Path;

use super::{at, tree};
use crate::Error;

/// The directory of fonts, in the root.
const FONTS: &str = "usr/share/fonts/truetype";
/// Packages of which only the fonts are kept: the package, its fonts, and their directory.
const PACKAGES: [(&str, &[&str], &str); 3] = [
    ("zhplot", &["NotoSansSC-Regular.ttf"], "noto"),
    ("koreanize_matplotlib", &["NanumGothic.ttf", "NanumGothicBold.ttf"], "nanum"),
    ("devanagari_fonts", &["Shobhika-1.05/Shobhika-Regular.otf", "Shobhika-1.05/Shobhika-Bold.otf"], "shobhika"),
];
/// Font families for characters that Matplotlib's own fonts lack.
const FAMILIES: &str = "sans-serif, Noto Sans SC, NanumGothic, Shobhika";
/// Matplotlib's own data.
const MATPLOTLIB: &str = "matplotlib/mpl-data";

/// Moves the fonts of packages that are installed only for them to the directory of fonts, and adds them to Matplotlib's settings. Skips
/// packages that are not installed.
pub(super) fn place(root: &Path, site_packages: &Path) -> Result<(), Error> {
    let fonts = root.join(FONTS);
    let mut is_there = false;
    for (package, names, directory) in PACKAGES {
        let from = site_packages.join(package);
        if !from.is_dir() {
            continue;
        }
        let into = fonts.join(directory);
        fs::create_dir_all(&into).map_err(at(&into))?;
        for name in names {
            let font = from.join("fonts").join(name);
            let name = Path::new(name).file_name().unwrap_or_default();
            fs::rename(&font, into.join(name)).map_err(at(&font))?;
        }
        fs::remove_dir_all(&from).map_err(at(&from))?;
        remove_metadata(site_packages, package)?;
        is_there = true;
    }
    let data = site_packages.join(MATPLOTLIB);
    let own = data.join("fonts/ttf");
    if own.is_dir() {
        let into = fonts.join("dejavu");
        fs::create_dir_all(&into).map_err(at(&into))?;
        for entry in tree::entries(&own)? {
            // The same file under both names; programs that search for fonts do not follow links.
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b"DejaVu") {
                fs::hard_link(entry.path(), into.join(name)).map_err(at(&entry.path()))?;
            }
        }
    }
    let settings = data.join("matplotlibrc");
    if is_there && settings.is_file() {
        let text = fs::read_to_string(&settings).map_err(at(&settings))?;
        // Matplotlib reads commented-out lines as defaults, and the key must not appear twice.
        let others = text.lines().filter(|line| !line.trim_start_matches('#').starts_with("font.family:"));
        let ours = format!("font.family: {FAMILIES}");
        let lines: Vec<&str> = others.chain([ours.as_str(), ""]).collect();
        fs::write(&settings, lines.join("\n")).map_err(at(&settings))?;
    }
    Ok(())
}

/// Removes the note that a package is installed.
fn remove_metadata(site_packages: &Path, package: &str) -> Result<(), Error> {
    for entry in fs::read_dir(site_packages).map_err(at(site_packages))? {
        let entry = entry.map_err(at(site_packages))?;
        let name = entry.file_name();
        let is_its = name.to_str().is_some_and(|name| {
            name.strip_prefix(package).is_some_and(|rest| rest.starts_with('-') && rest.ends_with(".dist-info"))
        });
        if is_its {
            fs::remove_dir_all(entry.path()).map_err(at(&entry.path()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fonts_are_moved_and_named_to_matplotlib() {
        let root = tempfile::tempdir().unwrap();
        let site = root.path().join("usr/local/lib/python3.11/site-packages");
        for file in [
            "zhplot/fonts/NotoSansSC-Regular.ttf",
            "zhplot/__init__.py",
            "devanagari_fonts/fonts/Shobhika-1.05/Shobhika-Regular.otf",
            "devanagari_fonts/fonts/Shobhika-1.05/Shobhika-Bold.otf",
            "zhplot-1.0.0.dist-info/METADATA",
            "matplotlib/mpl-data/matplotlibrc",
            "matplotlib/mpl-data/fonts/ttf/DejaVuSans.ttf",
        ] {
            fs::create_dir_all(site.join(file).parent().unwrap()).unwrap();
            fs::write(site.join(file), "#font.family:  sans-serif\n#font.size: 10\n").unwrap();
        }
        place(root.path(), &site).unwrap();
        assert!(root.path().join(FONTS).join("noto/NotoSansSC-Regular.ttf").is_file());
        assert!(!site.join("zhplot").exists() && !site.join("zhplot-1.0.0.dist-info").exists());
        assert!(root.path().join(FONTS).join("shobhika/Shobhika-Bold.otf").is_file());
        assert!(root.path().join(FONTS).join("dejavu/DejaVuSans.ttf").is_file());
        let settings = fs::read_to_string(site.join("matplotlib/mpl-data/matplotlibrc")).unwrap();
        assert_eq!(settings, "#font.size: 10\nfont.family: sans-serif, Noto Sans SC, NanumGothic, Shobhika\n");
    }
}
