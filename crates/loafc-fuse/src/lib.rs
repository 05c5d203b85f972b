//! The fusion scheduler: decides which loop nests become one kernel, in regular rounds and in a final round
//! that may reorder loops. Sees no machine, no thread and no operator name.

pub mod schedule;
