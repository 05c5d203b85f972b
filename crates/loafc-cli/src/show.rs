//! Values as text: all elements of small tensors, a summary of large ones.

use loafc::{Tensor, Value};

/// Tensors of more elements than this are summarised.
const MOST_ELEMENTS: usize = 64;

/// One line, or a few, about a value.
pub fn value(name: &str, value: &Value) -> String {
    match value {
        Value::Size(size) => format!("{name}: size = {size}\n"),
        Value::None => format!("{name}: none\n"),
        Value::Tensor(tensor) => {
            format!("{name}: {}{:?} = {}\n", tensor.dtype(), tensor.shape(), elements(tensor))
        }
    }
}

fn elements(tensor: &Tensor) -> String {
    let Ok(host) = tensor.to_host() else { return "(complex)".to_owned() };
    if host.data.len() <= MOST_ELEMENTS {
        let mut text = String::new();
        write_level(&mut text, &host.shape, &mut host.data.iter().map(|v| v.to_string()));
        return text;
    }
    let numbers = host.data.iter().map(|v| v.to_f64());
    let (mut low, mut high, mut sum) = (f64::INFINITY, f64::NEG_INFINITY, 0.0);
    for x in numbers {
        (low, high, sum) = (low.min(x), high.max(x), sum + x);
    }
    format!("min {low}, max {high}, mean {}", sum / host.data.len() as f64)
}

/// Nested brackets, one pair for each dimension.
fn write_level(text: &mut String, shape: &[usize], values: &mut dyn Iterator<Item = String>) {
    let Some((extent, inner)) = shape.split_first() else {
        text.extend(values.next());
        return;
    };
    text.push('[');
    for k in 0..*extent {
        if k > 0 {
            text.push_str(", ");
        }
        write_level(text, inner, values);
    }
    text.push(']');
}
