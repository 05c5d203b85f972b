//! NumPy's `.npy` files: one array with its shape. bfloat16 has no name in NumPy and is written as the raw 16 bits
//! (`uint16`); 8-bit floats as raw bytes.

use std::io::{Read, Write};

use loafc_ir::dtype::DType;

use crate::tensor::{Tensor, TensorError};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Headers are a line of text; real ones have about a hundred bytes.
const MAX_HEADER: usize = 1 << 16;

/// A file is not an array that can be read.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file is something else, or broken.
    #[error("not a .npy file: {0}")]
    Format(String),
    /// The array holds what no tensor holds.
    #[error(
        "the array has elements of type `{0}`; known are f2, f4, f8, i1, i2, i4, i8, u1, u2, u4, u8, b1, c8, c16, little-endian"
    )]
    DType(String),
    /// More or fewer bytes than the array has.
    #[error("the header says {dtype}{shape:?}, which takes {expected} bytes, but {got} bytes follow it")]
    Length {
        /// Element type.
        dtype: DType,
        /// The shape.
        shape: Vec<usize>,
        /// Bytes of the array.
        expected: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// The array does not fit the memory.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// NumPy's name of an element type.
fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "<f8",
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::BF16 | DType::U16 => "<u2",
        DType::F8E4M3FN | DType::F8E5M2 | DType::U8 => "|u1",
        DType::I64 => "<i8",
        DType::I32 => "<i4",
        DType::I16 => "<i2",
        DType::I8 => "|i1",
        DType::U64 => "<u8",
        DType::U32 | DType::C32 => "<u4",
        DType::Bool => "|b1",
        DType::C64 => "<c8",
        DType::C128 => "<c16",
    }
}

fn dtype_of(name: &str) -> Result<DType, NpyError> {
    let stored_raw = |d: &DType| matches!(d, DType::BF16 | DType::F8E4M3FN | DType::F8E5M2 | DType::C32);
    DType::ALL
        .into_iter()
        .filter(|d| !stored_raw(d))
        .find(|d| {
            // The byte order of single bytes may be given in any way.
            type_name(*d) == name || (d.bytes() == 1 && name.get(1..) == Some(&type_name(*d)[1..]))
        })
        .ok_or_else(|| NpyError::DType(name.to_owned()))
}

/// Reads an array. Raw bits of a type that NumPy has no name for come as unsigned integers; see [`reinterpret`].
///
/// # Errors
/// When the bytes are not a `.npy` file of a known type.
pub fn read(mut from: impl Read) -> Result<Tensor, NpyError> {
    let mut prefix = [0u8; 8];
    from.read_exact(&mut prefix).map_err(|_| NpyError::Format("the file is too short".into()))?;
    if &prefix[..6] != MAGIC {
        return Err(NpyError::Format("it does not begin with \\x93NUMPY".into()));
    }
    let mut length = [0u8; 4];
    let wide = prefix[6] >= 2;
    from.read_exact(if wide { &mut length[..] } else { &mut length[..2] })
        .map_err(|_| NpyError::Format("the header is cut off".into()))?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_HEADER {
        return Err(NpyError::Format(format!("the header claims to have {length} bytes")));
    }
    let mut header = vec![0u8; length];
    from.read_exact(&mut header).map_err(|_| NpyError::Format("the header is cut off".into()))?;
    let header = String::from_utf8(header).map_err(|_| NpyError::Format("the header is not text".into()))?;
    let dtype = dtype_of(&quoted(field(&header, "descr")?)?)?;
    let shape = numbers(field(&header, "shape")?)?;
    let column_major = field(&header, "fortran_order")?.starts_with("True");
    let mut data = Vec::new();
    from.read_to_end(&mut data)?;
    let elements = shape.iter().try_fold(1usize, |count, extent| count.checked_mul(*extent));
    if let Some(expected) = elements.and_then(|count| count.checked_mul(dtype.bytes()))
        && expected != data.len()
    {
        return Err(NpyError::Length { dtype, shape, expected, got: data.len() });
    }
    if !column_major {
        return Ok(Tensor::from_bytes(dtype, &shape, &data)?);
    }
    // Columns first is the turned array in rows, with the strides turned back.
    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
    let turned = Tensor::from_bytes(dtype, &reversed, &data)?;
    let back = |dims: &[i64]| dims.iter().rev().copied().collect::<Vec<_>>();
    Ok(Tensor::on_storage(
        dtype,
        &back(turned.shape()),
        &back(turned.strides()),
        turned.as_mut_ptr(),
        turned.storage().clone(),
    ))
}

/// The text behind `'name':` in the header's dictionary.
fn field<'a>(header: &'a str, name: &str) -> Result<&'a str, NpyError> {
    let key = format!("'{name}'");
    let missing = || NpyError::Format(format!("the header has no `{name}`"));
    let (_, rest) = header.split_once(&key).ok_or_else(missing)?;
    rest.trim_start().strip_prefix(':').map(str::trim_start).ok_or_else(missing)
}

fn quoted(text: &str) -> Result<String, NpyError> {
    let inner = text.strip_prefix('\'').and_then(|t| t.split_once('\''));
    // Records of several fields begin with a bracket.
    inner.map(|(name, _)| name.to_owned()).ok_or_else(|| NpyError::DType(text.chars().take(40).collect()))
}

fn numbers(text: &str) -> Result<Vec<usize>, NpyError> {
    let inner = text.strip_prefix('(').and_then(|t| t.split_once(')'));
    let (inner, _) = inner.ok_or_else(|| NpyError::Format("`shape` is no tuple".into()))?;
    inner
        .split(',')
        .map(str::trim)
        .filter(|t| !t.is_empty())
        .map(|t| t.parse().map_err(|_| NpyError::Format(format!("`{t}` is no extent"))))
        .collect()
}

/// Writes an array in row-major order.
///
/// # Errors
/// When writing fails.
pub fn write(mut to: impl Write, tensor: &Tensor) -> Result<(), NpyError> {
    let extents: String = tensor.shape().iter().map(|n| format!("{n},")).collect();
    let mut header = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({extents}), }}",
        type_name(tensor.dtype())
    );
    // The data must begin at a multiple of 64 bytes; the header ends with a line break.
    let used = MAGIC.len() + 4 + header.len() + 1;
    header.extend(std::iter::repeat_n(' ', used.next_multiple_of(64) - used));
    header.push('\n');
    to.write_all(MAGIC)?;
    let length = u16::try_from(header.len()).map_err(|_| NpyError::Format("too many dimensions".into()))?;
    to.write_all(&[1, 0])?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    to.write_all(&tensor.to_bytes())?;
    Ok(())
}

/// The same bits as the element type that a program expects: bfloat16, 8-bit floats and complex numbers of
/// two half-precision floats come as unsigned integers.
///
/// # Errors
/// When the tensor holds neither `dtype` nor its raw bits.
pub fn reinterpret(tensor: &Tensor, dtype: DType) -> Result<Tensor, TensorError> {
    if tensor.dtype() == dtype {
        return Ok(tensor.clone());
    }
    let raw = matches!(
        (dtype, tensor.dtype()),
        (DType::BF16, DType::U16) | (DType::F8E4M3FN | DType::F8E5M2, DType::U8) | (DType::C32, DType::U32)
    );
    if !raw {
        return Err(TensorError::DType { expected: dtype, got: tensor.dtype() });
    }
    let storage = tensor.storage().clone();
    Ok(Tensor::on_storage(dtype, tensor.shape(), tensor.strides(), tensor.as_mut_ptr(), storage))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(tensor: &Tensor) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, tensor).unwrap();
        bytes
    }

    #[test]
    fn every_type_and_rank_reads_back() {
        for dtype in DType::ALL {
            for shape in [&[][..], &[3], &[2, 0], &[2, 3, 4]] {
                let tensor = Tensor::zeros(dtype, shape).unwrap();
                let bytes = file(&tensor);
                assert_eq!((bytes.len() - tensor.to_bytes().len()) % 64, 0);
                let back = reinterpret(&read(&bytes[..]).unwrap(), dtype).unwrap();
                assert_eq!((back.shape(), back.dtype()), (tensor.shape(), dtype));
            }
        }
    }

    #[test]
    fn column_major_arrays_keep_their_elements() {
        let mut bytes = file(&Tensor::from_slice(&[2, 3], &[1i32, 4, 2, 5, 3, 6]).unwrap());
        let at = bytes.windows(5).position(|w| w == b"False").unwrap();
        bytes[at..at + 5].copy_from_slice(b"True ");
        assert_eq!(read(&bytes[..]).unwrap().to_vec::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn broken_files_are_errors() {
        let good = file(&Tensor::zeros(DType::F32, &[2]).unwrap());
        let message = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert!(message(b"hello").contains("too short"));
        assert!(message(b"hello, world").contains("does not begin"));
        assert!(message(&good[..40]).contains("cut off"));
        assert!(message(&good[..good.len() - 3]).contains("f32[2], which takes 8 bytes, but 5 bytes follow"));
        let longer = [&good[..], &[0]].concat();
        assert!(message(&longer).contains("f32[2], which takes 8 bytes, but 9 bytes follow"));
        for other in [">f4", "é4"] {
            let mut bytes = good.clone();
            let at = bytes.windows(3).position(|w| w == b"<f4").unwrap();
            bytes[at..at + 3].copy_from_slice(other.as_bytes());
            assert!(message(&bytes).contains(&format!("type `{other}`")));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), keep in 0usize..11) {
            let good = file(&Tensor::zeros(DType::F32, &[2]).unwrap());
            let keep = (keep * 8).min(bytes.len()).min(good.len());
            bytes[..keep].copy_from_slice(&good[..keep]);
            let _ = read(&bytes[..]);
        }
    }
}
