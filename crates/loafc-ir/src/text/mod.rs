//! The `.loaf` text form of tensor programs.
