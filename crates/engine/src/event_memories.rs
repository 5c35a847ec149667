//! Memory for long events of programs, by tenant.

use std::collections::HashMap;

use aludel_sandbox::{AllEventMemory, EventMemory};
use aludel_store::Tenant;
use parking_lot::Mutex;

/// Bytes for all tenants.
const ALL: usize = 1 << 30;
/// Bytes for one tenant.
const EACH: usize = 256 << 20;
/// Tenants in memory; beyond that, those without executions are forgotten.
const MAX_IDLE_TENANTS: usize = 256;

/// Every tenant's memory.
#[derive(Debug)]
pub(crate) struct EventMemories {
    all: AllEventMemory,
    tenants: Mutex<HashMap<Tenant, EventMemory>>,
}

impl Default for EventMemories {
    fn default() -> Self {
        Self { all: AllEventMemory::new(ALL, EACH), tenants: Mutex::default() }
    }
}

impl EventMemories {
    /// A tenant's memory.
    pub(crate) fn of(&self, tenant: &Tenant) -> EventMemory {
        let mut tenants = self.tenants.lock();
        if tenants.len() >= MAX_IDLE_TENANTS && !tenants.contains_key(tenant) {
            tenants.retain(|_, memory| memory.is_used());
        }
        tenants.entry(tenant.clone()).or_insert_with(|| self.all.tenant()).clone()
    }
}
