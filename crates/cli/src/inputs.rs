//! The files that a person hands over: `--file PATH`.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use aludel_engine::Session;
use aludel_engine::sessions::LiveSession;
use aludel_sandbox::mime_of;
use aludel_store::Store;
use anyhow::Context;

use crate::exit::usage;

/// A file, with the name that it gets in the workspace.
#[derive(Debug)]
pub(crate) struct Input {
    name: String,
    path: PathBuf,
}

/// Looks at the files before anything is started.
pub(crate) fn check(paths: &[PathBuf]) -> anyhow::Result<Vec<Input>> {
    let mut inputs: Vec<Input> = Vec::new();
    for path in paths {
        let shown = path.display();
        let metadata = std::fs::metadata(path).map_err(|error| usage(format!("--file {shown}: {error}")))?;
        if !metadata.is_file() {
            return Err(usage(format!("--file {shown}: not a regular file; name each file by itself")));
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| usage(format!("--file {shown}: its name is not Unicode; rename it")))?;
        if let Some(other) = inputs.iter().find(|input| input.name == name) {
            let other = other.path.display();
            return Err(usage(format!("--file {shown}: {other} has the same name; rename one of them")));
        }
        inputs.push(Input { name: name.to_owned(), path: path.clone() });
    }
    Ok(inputs)
}

/// Copies the files into the workspace.
pub(crate) async fn add(session: &LiveSession, inputs: &[Input]) -> anyhow::Result<()> {
    for input in inputs {
        let added = async {
            let file = File::open(&input.path)?;
            anyhow::Ok(session.add_file(&input.name, file.metadata()?.len(), file).await?)
        };
        added.await.with_context(|| format!("cannot hand over {}", input.path.display()))?;
    }
    Ok(())
}

/// Stores the files and puts them into a session.
pub(crate) async fn store(session: &Session, store: &Store, inputs: &[Input]) -> anyhow::Result<()> {
    for input in inputs {
        let stored = input.store(session, store).await;
        stored.with_context(|| format!("cannot hand over {}", input.path.display()))?;
    }
    Ok(())
}

impl Input {
    /// Its name in the workspace.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its path on the host.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    async fn store(&self, session: &Session, store: &Store) -> anyhow::Result<()> {
        let file = File::open(&self.path)?;
        let (bytes, limit) = (file.metadata()?.len(), session.limits().disk);
        if bytes > limit {
            // Before it fills the disk.
            let reason = format!("{bytes} bytes are more than the workspace takes ({limit}); raise sandbox.disk");
            return Err(aludel_sandbox::Error::File { path: self.path.display().to_string(), reason }.into());
        }
        // It may grow meanwhile; what is too much by then, the workspace refuses.
        for blob in store.write_blobs(store.no_room(session.tenant()), vec![file.take(limit + 1)]).await? {
            session.add_file_as_named(&self.name, mime_of(&self.name), blob).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_handed_over_is_said_before() {
        let home = tempfile::tempdir().unwrap();
        let (here, there) = (home.path().join("a.csv"), home.path().join("b/a.csv"));
        std::fs::create_dir(home.path().join("b")).unwrap();
        for path in [&here, &there] {
            std::fs::write(path, "1").unwrap();
        }
        assert_eq!(check(std::slice::from_ref(&here)).unwrap()[0].name, "a.csv");
        for (paths, words) in [
            (vec![home.path().join("none")], "No such file"),
            (vec![home.path().join("b")], "not a regular file"),
            (vec![here, there], "has the same name"),
        ] {
            let error = check(&paths).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
