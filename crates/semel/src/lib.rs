//! Semel: end-to-end exactly-once stream processing. The library's public face, its command line and its supervisor.
