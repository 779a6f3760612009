//! Links between the processes of a job: the control link from each worker process to its supervisor, and data links between
//! worker processes. All begin with the same authenticated [`handshake`]. What follows is not encrypted: keep
//! `semel.cluster.bind-address` on loopback or a network that is yours.
pub mod auth;
pub mod control;
pub mod data;
pub mod frame;
pub mod handshake;
pub mod messages;
pub(crate) mod worker;
