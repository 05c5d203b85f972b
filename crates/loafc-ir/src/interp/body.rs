//! Runs one body.
