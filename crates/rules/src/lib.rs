//! Rules on programs: what may run at once, what somebody is asked about, what is refused.
//!
//! A program is read, never run: it is parsed as IPython would, names are followed through imports and plain assignments, and each
//! dotted name is looked up in lists: of the policy, of its groups, of harmless names. What cannot be followed so (an attribute or an
//! import by a name that is put together, `exec` of anything but a text that is written out, all names of a module) is *undecidable*,
//! and ends as the policy says, which is never with "allow". Undecidable is also what a known package holds besides the public names
//! that are listed as harmless, unless a rule or a group names it.
//!
//! This is an aid for those who approve programs, and no boundary: a language in which everything can be changed while it runs cannot be
//! judged by reading. The sandbox is the boundary.
#![forbid(unsafe_code)]

mod act;
mod calls;
mod dotted;
mod expressions;
mod files;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod harmless;
mod ipython;
mod judgement;
mod known;
mod lists;
mod meaning;
mod names;
mod nesting;
mod policy;
mod reader;
mod rule;
mod statements;
mod steering;

pub use judgement::{Decision, Judgement, Reason};
pub use known::Known;
pub use policy::{PolicyError, Rules};
