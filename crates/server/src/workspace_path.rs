//! Paths of files as people know them: within the workspace.

use aludel_engine::sessions::WORKSPACE;

/// The path of a file within the workspace; any other path as it is.
pub(crate) fn within_workspace(path: &str) -> &str {
    let inside = path.strip_prefix(WORKSPACE).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    inside.map_or(path, |rest| rest.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_directory_is_not_the_workspace() {
        for (path, expected) in [
            ("/mnt/data/a.csv", "a.csv"),
            ("/mnt/data//sub/a.csv", "sub/a.csv"),
            ("/mnt/data", ""),
            ("/mnt/database.csv", "/mnt/database.csv"),
            ("/tmp/a", "/tmp/a"),
            ("a.csv", "a.csv"),
        ] {
            assert_eq!(within_workspace(path), expected);
        }
    }
}
