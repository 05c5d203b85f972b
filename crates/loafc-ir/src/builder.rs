//! Builds tensor programs call by call.
