//! Access control: keys, daily budgets, and web pages of other origins.

mod budgets;
mod keys;
mod origins;
mod ttl_cache;

pub(crate) use budgets::DailyBudgets;
pub(crate) use keys::{FRESH, KeyCache, KeyRefusal};
pub use origins::Origins;
