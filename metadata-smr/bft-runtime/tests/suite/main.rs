//! Real clusters in one process, over TLS on loopback and with journals on a disk.

mod attacks;
mod cluster;
mod distance;
mod membership;
mod observers;
mod state_copy;
mod support;
mod system_calls;
