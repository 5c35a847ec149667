//! Linux isolation.
