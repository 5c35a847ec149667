//! The connections of a server. Beyond the limit, idle connections are closed first, beginning with the address that has most.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The connections that are open.
#[derive(Debug)]
pub(crate) struct Connections {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    by_number: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    address: Option<IpAddr>,
    /// Requests under way.
    requests: usize,
    has_asked: bool,
    idle_since: Instant,
    closed: CancellationToken,
}

/// A connection that is open until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    connections: Arc<Connections>,
    number: u64,
    closed: CancellationToken,
}

/// A request that is being answered, until this is dropped.
#[derive(Debug)]
pub(crate) struct RequestInProgress(Arc<OpenConnection>);

impl Connections {
    /// Room for `most` connections.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// Registers a connection. `None` if the limit is reached and no connection is idle.
    pub(crate) fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Arc<OpenConnection>> {
        let mut open = self.open.lock();
        if open.by_number.len() >= self.most {
            let number = open.most_idle()?;
            if let Some(entry) = open.by_number.remove(&number) {
                entry.closed.cancel();
            }
        }
        let (number, closed) = (open.next, CancellationToken::new());
        open.next += 1;
        let entry =
            Entry { address, requests: 0, has_asked: false, idle_since: Instant::now(), closed: closed.clone() };
        open.by_number.insert(number, entry);
        drop(open);
        Some(Arc::new(OpenConnection { connections: Arc::clone(self), number, closed }))
    }
}

impl Open {
    /// Returns the longest idle connection of the address with most idle ones.
    fn most_idle(&self) -> Option<u64> {
        let idle = || self.by_number.iter().filter(|(_, entry)| entry.requests == 0);
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for (_, entry) in idle() {
            *counts.entry(entry.address).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        let of_most = idle().filter(|(_, entry)| counts.get(&entry.address) == Some(&most));
        of_most.min_by_key(|(_, entry)| entry.idle_since).map(|(number, _)| *number)
    }
}

impl OpenConnection {
    /// Records a request.
    pub(crate) fn ask(self: &Arc<Self>) -> RequestInProgress {
        self.change(|entry| {
            entry.requests += 1;
            entry.has_asked = true;
        });
        RequestInProgress(Arc::clone(self))
    }

    /// Returns true once it has brought a request.
    pub(crate) fn has_asked(&self) -> bool {
        self.connections.open.lock().by_number.get(&self.number).is_some_and(|entry| entry.has_asked)
    }

    /// Waits until this connection has to close for another.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.connections.open.lock().by_number.get_mut(&self.number) {
            change(entry);
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.open.lock().by_number.remove(&self.number);
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.0.change(|entry| {
            entry.requests = entry.requests.saturating_sub(1);
            entry.idle_since = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_greediest_address_makes_room_first() {
        let connections = Connections::new(4);
        let address = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let enter = async |last| {
            advance(Duration::from_secs(1)).await;
            connections.enter(address(last)).unwrap()
        };
        let (other, first, second, third) = (enter(1).await, enter(2).await, enter(2).await, enter(2).await);
        let asking = first.ask();
        let next = enter(3).await;
        let closed = |connection: &OpenConnection| connection.closed.is_cancelled();
        assert_eq!([&other, &first, &second, &third].map(|one| closed(one)), [false, false, true, false]);
        drop(asking);
        // The connection with the latest request has been idle for the shortest time.
        let _more = enter(3).await;
        assert_eq!([&other, &first, &third, &next].map(|one| closed(one)), [false, false, true, false]);
        let all: Vec<_> = [&other, &first, &next].into_iter().map(|one| one.ask()).collect();
        drop(connections.enter(address(4)).unwrap());
        let last = connections.enter(address(4)).unwrap();
        let _last = last.ask();
        assert!(connections.enter(address(5)).is_none());
        drop(all);
        assert!(connections.enter(address(5)).is_some());
    }
}
