//! Files of packages without use in a sandbox: about a tenth of the template.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::{at, tree};
use crate::Error;

/// Large packages with large test suites.
const WITHOUT_TESTS: &[&str] = &[
    "h5py",
    "matplotlib",
    "mpl_toolkits",
    "networkx",
    "numexpr",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "shapely",
    "skimage",
    "sklearn",
    "statsmodels",
    "sympy",
];

/// Files to compile against; there is no compiler.
const SOURCES: &[&str] = &["a", "c", "cpp", "h", "hpp", "pxd", "pyx"];

/// Parts of packages, by the beginning of their paths.
const PARTS: &[&str] = &[
    "plotly/labextension",
    "bokeh/server/static/js/types",
    "bokeh/server/static/js/compiler",
    "pyarrow/include",
    // A network protocol between databases, in a library of 30 MB.
    "pyarrow/_flight",
    "pyarrow/libarrow_flight",
    "pyarrow/libarrow_python_flight",
];

/// Removes all of it from the environment.
pub(super) fn remove_the_useless(environment: &Path, site_packages: &Path) -> Result<(), Error> {
    for name in WITHOUT_TESTS {
        let package = site_packages.join(name);
        if package.is_dir() {
            remove_tests(&package)?;
        }
    }
    for part in PARTS {
        remove_part(&site_packages.join(part))?;
    }
    // For compilers and JupyterLab; the declarations of kernels stay.
    remove_part(&environment.join("include"))?;
    let of_jupyter = environment.join("share/jupyter");
    if of_jupyter.is_dir() {
        for entry in tree::entries(&of_jupyter)?.into_iter().filter(|entry| entry.file_name() != "kernels") {
            remove_part(&entry.path())?;
        }
    }
    remove_sources(site_packages)
}

/// Removes the tests of a package, but not the helpers beside them, which packages such as numpy import.
fn remove_tests(package: &Path) -> Result<(), Error> {
    for entry in tree::directories(package)? {
        if entry.file_name() == "tests" {
            remove_named_as_tests(&entry.path())?;
        } else {
            remove_tests(&entry.path())?;
        }
    }
    Ok(())
}

fn remove_named_as_tests(directory: &Path) -> Result<(), Error> {
    remove_part(&directory.join("test_"))?;
    for entry in tree::directories(directory)? {
        remove_named_as_tests(&entry.path())?;
    }
    Ok(())
}

fn remove_sources(directory: &Path) -> Result<(), Error> {
    for entry in tree::entries(directory)? {
        let path = entry.path();
        if entry.file_type().map_err(at(&path))?.is_dir() {
            remove_sources(&path)?;
        } else if path.extension().and_then(OsStr::to_str).is_some_and(|extension| SOURCES.contains(&extension)) {
            fs::remove_file(&path).map_err(at(&path))?;
        }
    }
    Ok(())
}

/// Removes every sibling of `start` whose name begins with its name. Other versions of a package may have none.
fn remove_part(start: &Path) -> Result<(), Error> {
    let (Some(directory), Some(name)) = (start.parent(), start.file_name()) else { return Ok(()) };
    if !directory.is_dir() {
        return Ok(());
    }
    for entry in tree::entries(directory)? {
        let path = entry.path();
        if !entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes()) {
            continue;
        }
        let is_directory = entry.file_type().map_err(at(&path))?.is_dir();
        let removed = if is_directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(at(&path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_useless_goes_and_the_rest_stays() {
        let environment = tempfile::tempdir().unwrap();
        let packages = environment.path().join("lib");
        let gone = [
            "numpy/tests/test_x.py",
            "numpy/linalg/tests/frame/test_y.py",
            "numpy/x.pxd",
            "pyarrow/include/arrow.h",
            "pyarrow/libarrow_flight.so.26",
            "other/fast.c",
        ];
        let kept = [
            "numpy/tests/_natype.py",
            "numpy/linalg/test_y.py",
            "pyarrow/libarrow.so.26",
            "other/tests/test_data.py",
            "a.pyi",
        ];
        for file in gone.iter().chain(&kept) {
            let path = packages.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        remove_the_useless(environment.path(), &packages).unwrap();
        assert_eq!(gone.map(|file| packages.join(file).exists()), [false; 6]);
        assert_eq!(kept.map(|file| packages.join(file).exists()), [true; 5]);
    }
}
