//! Numbers that decide how a group is cut. Results are right whatever they are, which the tests check with
//! numbers so small that small programs are cut in every way.

/// Sizes of tiles, blocks and parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Elements in a tile where nothing is kept for a tile: long enough that starting one costs nothing.
    pub pointwise_tile: i64,
    /// Elements in a tile where states or rows are kept for each of them.
    pub state_tile: i64,
    /// Smallest tile: four cache lines of f32, so that strided rows are still read in runs.
    pub smallest_tile: i64,
    /// Bytes of a tile's states and rows that stay in the second-level cache, with room for what streams by.
    pub tile_bytes: i64,
    /// Bytes of states that sums over columns keep in the first-level cache while rows stream by.
    pub column_bytes: i64,
    /// Most rows that go into such states at once, so that these are read and written less often.
    pub rows_at_once: i64,
    /// Units that keep the threads of a machine busy.
    pub enough_units: i64,
    /// Elements that are worth a phase of their own.
    pub long: i64,
    /// Most parts of a digit whose partial results are combined.
    pub chunks: i64,
    /// Fewest iterations in such a part, so that combining costs little beside.
    pub chunk_iterations: i64,
    /// Elements of an inner digit's part are a multiple of this.
    pub inner_chunk: i64,
    /// Values that one state of a floating-point sum takes before a new one begins: the error of the sum grows
    /// with the number of values in a state and the number of states, not with their product.
    pub block: i64,
    /// The same for a vectorised digit, where each lane has a state.
    pub vector_block: i64,
    /// Iterations of the digit that transposed accesses are contiguous along, for 4-byte elements: four cache lines.
    /// Smaller elements get as many lines.
    pub transposed_columns: i64,
    /// The same for the vectorised digit.
    pub transposed_rows: i64,
    /// A shorter digit is not worth a transposed copy.
    pub fewest_columns: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            pointwise_tile: 4096,
            state_tile: 256,
            smallest_tile: 64,
            tile_bytes: 256 << 10,
            column_bytes: 16 << 10,
            rows_at_once: 4,
            enough_units: 16,
            long: 1 << 15,
            chunks: 64,
            chunk_iterations: 16,
            inner_chunk: 1024,
            block: 1024,
            vector_block: 8192,
            transposed_columns: 64,
            transposed_rows: 64,
            fewest_columns: 8,
        }
    }
}

impl Limits {
    /// Cuts even the smallest programs into many pieces: for tests.
    pub fn tiny() -> Self {
        Limits {
            pointwise_tile: 16,
            state_tile: 16,
            smallest_tile: 16,
            tile_bytes: 4096,
            column_bytes: 128,
            rows_at_once: 2,
            enough_units: 16,
            long: 8,
            chunks: 3,
            chunk_iterations: 2,
            inner_chunk: 2,
            block: 2,
            vector_block: 4,
            transposed_columns: 3,
            transposed_rows: 5,
            fewest_columns: 2,
        }
    }
}
