//! Programs that run in a sandbox and can be interrupted by name.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The programs that run in one sandbox, bounded by the limit of executions.
#[derive(Debug, Clone, Default)]
pub struct RunningPrograms(Arc<Mutex<HashMap<String, Running>>>);

#[derive(Debug)]
struct Running {
    context: String,
    cancel: CancellationToken,
}

/// A registration of a program, until this is dropped.
#[derive(Debug)]
pub struct RunningProgram {
    programs: RunningPrograms,
    id: String,
}

impl RunningPrograms {
    /// Registers a program by its id and that of its context.
    pub fn add(&self, id: &str, context: &str, cancel: CancellationToken) -> RunningProgram {
        self.0.lock().insert(id.to_owned(), Running { context: context.to_owned(), cancel });
        RunningProgram { programs: self.clone(), id: id.to_owned() }
    }

    /// Interrupts the program of this id, or the programs in the context of this id. Returns false if there was none.
    pub fn interrupt(&self, id: &str) -> bool {
        let known = self.0.lock();
        let wanted = known.iter().filter(|(program, running)| *program == id || running.context == id);
        wanted.map(|(_, running)| running.cancel.cancel()).count() > 0
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.programs.0.lock().remove(&self.id);
    }
}
