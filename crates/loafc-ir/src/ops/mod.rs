//! The operators that loafc knows: schemas, type inference, promotion, and their reference semantics.
