//! Owners: the processes that have the store open.
//!
//! Each has a random id and, as long as it lives, locks a file of that name. Its unfinished files have the id in their names, and the turns
//! that it drives have it in their rows, so that leftovers of a dead process can be told from work of a living one.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aludel_ignore::Ignore;
use parking_lot::Mutex;
use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

use crate::id::{fresh, random_hex};
use crate::{Error, TurnId, now_ms};

/// Digits of time and count that names in flight begin with.
const TIME: usize = 16;

/// Digits of the owner's id in them.
const SHORT: usize = 8;

/// Id of a process that has the store open.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnerId(String);

impl OwnerId {
    /// Returns the id as it stands in rows.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn short(&self) -> &str {
        self.0.get(..SHORT).unwrap_or(&self.0)
    }
}

impl ToSql for OwnerId {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

impl FromSql for OwnerId {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        String::column_result(value).map(Self)
    }
}

/// This process as an owner.
#[derive(Debug)]
pub(crate) struct Owner {
    id: OwnerId,
    directory: PathBuf,
    /// The locked file, once there is something to own.
    lock: Mutex<Option<File>>,
    /// True once rows contain the id. Then the file has to stay, so that a sweep finds and releases them.
    is_named: AtomicBool,
}

impl Owner {
    pub(crate) fn new(directory: PathBuf) -> Self {
        let mut id = random_hex();
        id.truncate(32);
        Self { id: OwnerId(id), directory, lock: Mutex::default(), is_named: AtomicBool::new(false) }
    }

    pub(crate) fn id(&self) -> &OwnerId {
        &self.id
    }

    /// Notes that rows are about to carry the id.
    pub(crate) fn name_in_rows(&self) -> Result<(), Error> {
        self.is_named.store(true, Ordering::Relaxed);
        self.register()
    }

    /// Takes the lock that shows that this process lives. Call it before anything is in flight.
    pub(crate) fn register(&self) -> Result<(), Error> {
        let mut lock = self.lock.lock();
        if lock.is_some() {
            return Ok(());
        }
        let path = self.directory.join(&self.id.0);
        let failed = |source| Error::Io { path: path.clone(), source };
        crate::make_directory(&self.directory)?;
        // Locked before it gets its name, so that no other process finds it unlocked.
        let unnamed = self.directory.join(format!(".{}", self.id.0));
        let file = File::create(&unnamed).map_err(failed)?;
        file.lock().and_then(|()| std::fs::rename(&unnamed, &path)).map_err(failed)?;
        *lock = Some(file);
        Ok(())
    }

    /// Returns an id for a turn that contains its owner, as names of files in flight do.
    pub(crate) fn turn_id(&self, prefix: &str) -> TurnId {
        TurnId::owned(prefix, &self.name_in_flight())
    }

    /// Returns a name for something in flight. It sorts by time.
    pub(crate) fn name_in_flight(&self) -> String {
        let name = fresh("", TIME + SHORT);
        let (time, random) = name.split_at(TIME);
        format!("{time}{}{random}", self.id.short())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(lock) = self.lock.get_mut().take() else { return };
        if !self.is_named.load(Ordering::Relaxed) {
            std::fs::remove_file(self.directory.join(&self.id.0)).ignore("a sweep removes it otherwise");
        }
        // Closing the file is not enough: a process that is being started has a copy of it until its exec.
        lock.unlock().ignore("the last copy of the file releases it otherwise");
    }
}

/// Owners as a sweep finds them.
#[derive(Debug)]
pub(crate) struct Owners {
    /// Files of owners that were alive when they were looked at.
    living: Vec<String>,
    /// Owners whose file exists unlocked: they have died, and their rows may not have been released.
    pub(crate) dead: Vec<OwnerId>,
}

impl Owners {
    /// Reads the state of all owners. List things in flight before this: a process that starts later is not seen.
    pub(crate) fn look(directory: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io { path: directory.to_path_buf(), source };
        let mut owners = Self { living: Vec::new(), dead: Vec::new() };
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(owners),
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let Ok(name) = entry.map_err(failed)?.file_name().into_string() else { continue };
            let named = name.trim_start_matches('.').to_owned();
            match is_locked(&directory.join(&name)) {
                Ok(Some(false)) if named == name => owners.dead.push(OwnerId(name)),
                // Without its final name it is about to begin; one that died at that point leaves an empty file.
                Ok(Some(_)) => owners.living.push(named),
                Ok(None) => {}
                Err(source) => return Err(Error::Io { path: directory.join(&name), source }),
            }
        }
        Ok(owners)
    }

    /// Returns true if a turn may still be ended by the process in its name, see [`Owner::turn_id`].
    pub(crate) fn may_end(&self, turn: &str) -> bool {
        turn.split_once(TurnId::OWNED).is_some_and(|(_, name)| self.may_finish(name))
    }

    /// Returns true if something in flight may still be finished by its owner.
    pub(crate) fn may_finish(&self, name: &str) -> bool {
        let short = name.get(TIME..TIME + SHORT);
        short.is_some_and(|short| self.living.iter().any(|owner| owner.starts_with(short)))
    }
}

/// Returns the age of a name in flight; `None` if it is no such name.
pub(crate) fn age(name: &str) -> Option<Duration> {
    let began = u64::from_str_radix(name.get(..TIME)?, 16).ok()? >> 16;
    Some(Duration::from_millis(u64::try_from(now_ms()).ok()?.saturating_sub(began)))
}

/// Returns true if a process holds the lock of a file; `None` if the file is gone.
fn is_locked(path: &Path) -> io::Result<Option<bool>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(false)),
        Err(TryLockError::WouldBlock) => Ok(Some(true)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
