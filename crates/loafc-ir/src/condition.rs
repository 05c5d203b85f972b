//! Conditions on sizes: what a program takes for true about its size symbols, such as that a position lies within
//! its dimension. Type inference and the lowering note them where constants don't decide; they are tested once for
//! each set of sizes that a program is called with.

use std::fmt::{self, Write};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::graph::SourceLine;
use crate::size::{Atom, Size, SymbolValues};

/// How two sizes have to compare.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// `left == right`.
    Equal,
    /// `left <= right`.
    AtMost,
    /// `left < right`.
    Less,
}

impl Relation {
    fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Relation::Equal => left == right,
            Relation::AtMost => left <= right,
            Relation::Less => left < right,
        }
    }
}

/// Two sizes and how they have to compare.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Comparison {
    /// One size.
    pub left: Size,
    /// How.
    pub relation: Relation,
    /// The other size.
    pub right: Size,
    /// Where this is zero, nothing is compared: views without elements reach nowhere.
    pub elements: Size,
}

/// A comparison that must hold when the program is called, and what is wrong where it doesn't.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeCondition {
    /// What must hold.
    pub comparison: Comparison,
    /// What is wrong otherwise; names the operator and its argument.
    pub message: Arc<str>,
    /// The user's source line.
    pub origin: Option<SourceLine>,
}

/// A condition that doesn't hold for the sizes of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BrokenCondition(String);

impl Comparison {
    /// A comparison that holds whatever number of elements there is.
    pub fn new(left: Size, relation: Relation, right: Size) -> Comparison {
        Comparison { left, relation, right, elements: Size::ONE }
    }

    /// The same where there are elements.
    pub fn with_elements(self, elements: Size) -> Comparison {
        Comparison { elements, ..self }
    }

    /// Whether it holds; `None` where that depends on the symbols' values.
    pub fn decided(&self) -> Option<bool> {
        let holds = match (self.left.as_const(), self.right.as_const()) {
            (Some(left), Some(right)) => Some(self.relation.holds(left, right)),
            _ => (self.right - self.left).as_const().map(|difference| self.relation.holds(0, difference)),
        };
        match (holds, self.elements.as_const()) {
            (_, Some(0)) => Some(true),
            (Some(false), None) => None,
            _ => holds,
        }
    }

    fn holds(&self, values: &SymbolValues) -> Option<bool> {
        if self.elements.eval(values)? == 0 {
            return Some(true);
        }
        Some(self.relation.holds(self.left.eval(values)?, self.right.eval(values)?))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = match self.relation {
            Relation::Equal => "==",
            Relation::AtMost => "<=",
            Relation::Less => "<",
        };
        write!(f, "{} {relation} {}", self.left, self.right)?;
        if self.elements.as_const().is_none() {
            write!(f, " unless {} == 0", self.elements)?;
        }
        Ok(())
    }
}

impl SizeCondition {
    /// Fails where the condition doesn't hold for these values, or a size in it has none.
    pub fn check(&self, values: &SymbolValues) -> Result<(), BrokenCondition> {
        match self.comparison.holds(values) {
            Some(true) => Ok(()),
            _ => Err(self.broken(values)),
        }
    }

    /// What is wrong where the condition doesn't hold for values of some symbols; those that it needs may be missing.
    pub fn contradiction(&self, values: &SymbolValues) -> Option<BrokenCondition> {
        (self.comparison.holds(values) == Some(false)).then(|| self.broken(values))
    }

    fn broken(&self, values: &SymbolValues) -> BrokenCondition {
        let mut text = self.origin.as_ref().map(|line| format!("{line}: ")).unwrap_or_default();
        text.push_str(&self.message);
        for (k, (name, value)) in self.values(values).into_iter().enumerate() {
            let _ = write!(text, "{} {name} = {value}", if k == 0 { ", where" } else { "," });
        }
        BrokenCondition(text)
    }

    /// The values of both sides and of their symbols, each once.
    fn values(&self, values: &SymbolValues) -> Vec<(String, String)> {
        let Comparison { left, right, .. } = self.comparison;
        let sides = [left, right].into_iter().filter(|side| side.as_const().is_none());
        let symbols = sides.clone().flat_map(Size::symbols).map(|name| Size::symbol(&name));
        let mut shown: Vec<(String, String)> = Vec::new();
        for size in sides.chain(symbols) {
            let name = size.to_string();
            if shown.iter().all(|(other, _)| *other != name) {
                let value = size
                    .eval(values)
                    .map_or("nothing (it overflows or divides by zero)".to_owned(), |v| v.to_string());
                shown.push((name, value));
            }
        }
        shown
    }
}

/// Collects conditions: each comparison once, and none that holds for all values of the symbols.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    kept: Vec<SizeCondition>,
    seen: FxHashSet<Comparison>,
    /// Symbols that are never negative: extents of inputs.
    extents: FxHashSet<Box<str>>,
}

impl Conditions {
    /// No conditions yet, for a program in which these symbols are extents of inputs.
    pub fn new(extents: impl IntoIterator<Item = Box<str>>) -> Conditions {
        Conditions { extents: extents.into_iter().collect(), ..Conditions::default() }
    }

    /// Adds a condition unless it holds anyway.
    pub fn add(&mut self, condition: SizeCondition) {
        if !self.is_sure(&condition.comparison) && self.seen.insert(condition.comparison) {
            self.kept.push(condition);
        }
    }

    /// Those that were added and don't hold anyway, in order.
    pub fn into_vec(self) -> Vec<SizeCondition> {
        self.kept
    }

    fn is_sure(&self, comparison: &Comparison) -> bool {
        let Comparison { left, relation, right, .. } = *comparison;
        comparison.decided() == Some(true)
            || match relation {
                Relation::Equal => false,
                Relation::AtMost => self.is_natural(right - left),
                Relation::Less => self.is_natural(right - left - Size::ONE),
            }
    }

    /// Whether a size is surely not negative, as far as its form shows.
    fn is_natural(&self, size: Size) -> bool {
        let natural = |atom: &Atom| match atom {
            Atom::Symbol(name) => self.extents.contains(name),
            Atom::FloorDiv(a, b) => self.is_natural(*a) && self.is_natural(*b),
            // A remainder has the divisor's sign.
            Atom::Mod(_, b) => self.is_natural(*b),
            Atom::Max(a, b) => self.is_natural(*a) || self.is_natural(*b),
            Atom::Min(a, b) => self.is_natural(*a) && self.is_natural(*b),
        };
        size.terms().iter().all(|(factor, atoms)| *factor > 0 && atoms.iter().all(natural))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(comparison: Comparison) -> SizeCondition {
        SizeCondition { comparison, message: "no".into(), origin: None }
    }

    fn values(pairs: &[(&str, i64)]) -> SymbolValues {
        let mut values = SymbolValues::new();
        for (name, value) in pairs {
            values.set(name, *value);
        }
        values
    }

    #[test]
    fn a_broken_condition_shows_values_and_source() {
        let n = Size::symbol("n");
        let origin = Some(SourceLine { file: "model.py".into(), line: 7 });
        let below = Comparison::new(n * Size::from(2), Relation::Less, Size::from(6));
        let condition = SizeCondition { comparison: below, message: "too far".into(), origin };
        assert_eq!(condition.check(&values(&[("n", 2)])), Ok(()));
        let text = condition.check(&values(&[("n", 3)])).unwrap_err().to_string();
        assert_eq!(text, "model.py:7: too far, where 2*n = 6, n = 3");
    }

    #[test]
    fn each_relation_holds_where_it_should() {
        let (n, six) = (Size::symbol("n"), Size::from(6));
        let holding = |relation| -> Vec<i64> {
            let condition = condition(Comparison::new(n, relation, six));
            (4..9).filter(|v| condition.check(&values(&[("n", *v)])).is_ok()).collect()
        };
        assert_eq!(holding(Relation::Equal), [6]);
        assert_eq!(holding(Relation::AtMost), [4, 5, 6]);
        assert_eq!(holding(Relation::Less), [4, 5]);
        let empty = condition(Comparison::new(six, Relation::Less, n).with_elements(n));
        assert_eq!(empty.check(&values(&[("n", 0)])), Ok(()));
        assert!(empty.check(&values(&[("n", 3)])).is_err());
        let divided = condition(Comparison::new(six.floor_div(n), Relation::Less, six));
        assert!(
            divided
                .check(&values(&[("n", 0)]))
                .unwrap_err()
                .to_string()
                .contains("overflows or divides by zero")
        );
    }

    #[test]
    fn what_always_holds_and_what_is_there_is_not_kept() {
        let (n, k) = (Size::symbol("n"), Size::symbol("k"));
        let mut conditions = Conditions::new(["n".into()]);
        let mut add = |left: Size, relation, right: Size| {
            conditions.add(condition(Comparison::new(left, relation, right)));
        };
        add(Size::ZERO, Relation::AtMost, n);
        add(n, Relation::AtMost, n + (n * n).floor_div(Size::from(3)));
        add(n, Relation::Less, n + Size::ONE);
        add(Size::ZERO, Relation::AtMost, k);
        add(Size::ZERO, Relation::AtMost, k);
        add(Size::ONE, Relation::AtMost, n);
        let kept: Vec<Comparison> = conditions.into_vec().into_iter().map(|c| c.comparison).collect();
        assert_eq!(
            kept,
            [
                Comparison::new(Size::ZERO, Relation::AtMost, k),
                Comparison::new(Size::ONE, Relation::AtMost, n)
            ]
        );
    }
}
