//! Sizes: integer polynomials in size symbols, canonical and interned, with constants kept inline.
//!
//! Every extent, stride and offset is a [`Size`], so dynamic shapes need no second code path. Equal
//! polynomials are one value: comparing sizes compares two words. What a polynomial can't express (floor
//! division, modulo, minimum, maximum) is an atom of its own, equal to the same operation on the same sizes.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Mul, MulAssign, Neg, Sub};
use std::sync::{OnceLock, RwLock};

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

/// An integer polynomial in size symbols: one word, because indices and loop nests are made of them.
///
/// A constant is its own value. A narrow range of values that no extent, stride or offset has (near -7.7·10^18)
/// stands for polynomials: its upper half is [`Size::TAG`], the lower half a position in the interner. A constant
/// of that range becomes the next one below it.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Size(i64);

/// What a [`Size`]'s word means.
#[derive(Copy, Clone)]
enum Repr {
    Const(i64),
    /// Position in the interner; never a constant polynomial.
    Poly(u32),
}

/// A symbol or an operation on sizes that no polynomial expresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Atom {
    /// A size known when the program is called.
    Symbol(Box<str>),
    /// `a // b`, rounded towards minus infinity.
    FloorDiv(Size, Size),
    /// `a - (a // b) * b`.
    Mod(Size, Size),
    /// The larger of two.
    Max(Size, Size),
    /// The smaller of two.
    Min(Size, Size),
}

/// Handle of an interned [`Atom`].
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
struct AtomId(u32);

/// Product of atoms with repetition, sorted by the atoms' text so that the form does not depend on the order
/// in which a process met them. Empty is 1.
type Monomial = SmallVec<[AtomId; 3]>;

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Poly {
    /// Sorted by monomial; no zero coefficient.
    terms: SmallVec<[(Monomial, i64); 2]>,
}

#[derive(Default)]
struct Interner {
    polys: IndexSet<Poly, FxBuildHasher>,
    atoms: IndexSet<Atom, FxBuildHasher>,
    /// Text of each atom: the order of monomials.
    atom_text: Vec<Box<str>>,
}

fn interner() -> &'static RwLock<Interner> {
    static INTERNER: OnceLock<RwLock<Interner>> = OnceLock::new();
    INTERNER.get_or_init(RwLock::default)
}

// A poisoned lock means that a panic hit between two `insert`s; both sets are then still consistent.
fn read() -> std::sync::RwLockReadGuard<'static, Interner> {
    interner().read().unwrap_or_else(|e| e.into_inner())
}

fn write() -> std::sync::RwLockWriteGuard<'static, Interner> {
    interner().write().unwrap_or_else(|e| e.into_inner())
}

impl Interner {
    fn compare(&self, a: &Monomial, b: &Monomial) -> Ordering {
        // Higher degree first: the leading term of a polynomial is its first.
        b.len().cmp(&a.len()).then_with(|| {
            a.iter()
                .map(|x| &self.atom_text[x.0 as usize])
                .cmp(b.iter().map(|x| &self.atom_text[x.0 as usize]))
        })
    }
}

fn poly_of(size: Size) -> Poly {
    match size.repr() {
        Repr::Const(0) => Poly::default(),
        Repr::Const(c) => {
            let mut terms = SmallVec::new();
            terms.push((Monomial::new(), c));
            Poly { terms }
        }
        Repr::Poly(p) => read().polys[p as usize].clone(),
    }
}

/// Sorts, adds up equal monomials, drops zeros and interns. Coefficients wrap: sizes near 2^63 have no tensor.
fn intern(mut poly: Poly) -> Size {
    let mut lock = write();
    poly.terms.sort_by(|a, b| lock.compare(&a.0, &b.0));
    let mut merged: SmallVec<[(Monomial, i64); 2]> = SmallVec::new();
    for (monomial, factor) in poly.terms {
        match merged.last_mut() {
            Some(last) if last.0 == monomial => last.1 = last.1.wrapping_add(factor),
            _ => merged.push((monomial, factor)),
        }
    }
    merged.retain(|t| t.1 != 0);
    if merged.is_empty() {
        return Size::ZERO;
    }
    if merged.len() == 1 && merged[0].0.is_empty() {
        return Size::from(merged[0].1);
    }
    Size::polynomial(lock.polys.insert_full(Poly { terms: merged }).0)
}

fn atom(atom: Atom) -> Size {
    let text = atom.to_string();
    let id = {
        let mut lock = write();
        let (id, new) = lock.atoms.insert_full(atom);
        if new {
            lock.atom_text.push(text.into());
        }
        AtomId(id as u32)
    };
    let mut terms = SmallVec::new();
    terms.push((Monomial::from_slice(&[id]), 1));
    intern(Poly { terms })
}

impl Size {
    /// 0
    pub const ZERO: Size = Size::constant(0);
    /// 1
    pub const ONE: Size = Size::constant(1);

    const TAG: i32 = i32::from_ne_bytes(0x9537_1C2B_u32.to_ne_bytes());

    /// A size of this value.
    pub const fn constant(value: i64) -> Size {
        if Size(value).is_tagged() { Size(((Size::TAG as i64) << 32) - 1) } else { Size(value) }
    }

    fn polynomial(at: usize) -> Size {
        Size((i64::from(Size::TAG) << 32) | i64::from(at as u32))
    }

    const fn is_tagged(self) -> bool {
        self.0 >> 32 == Size::TAG as i64
    }

    const fn repr(self) -> Repr {
        if self.is_tagged() { Repr::Poly(self.0 as u32) } else { Repr::Const(self.0) }
    }

    /// The size symbol of this name; equal names are one symbol.
    pub fn symbol(name: &str) -> Size {
        atom(Atom::Symbol(name.into()))
    }

    /// The value, where it is known while compiling.
    pub const fn as_const(self) -> Option<i64> {
        match self.repr() {
            Repr::Const(c) => Some(c),
            Repr::Poly(_) => None,
        }
    }

    /// Whether this is the constant `value`.
    pub const fn is(self, value: i64) -> bool {
        self.0 == value && !self.is_tagged()
    }

    /// `self / divisor` where that is again a polynomial without remainder; `None` for a zero divisor too.
    #[inline]
    pub fn div_exact(self, divisor: Size) -> Option<Size> {
        if self == divisor && !divisor.is(0) {
            return Some(Size::ONE);
        }
        match (self.repr(), divisor.repr()) {
            (_, Repr::Const(0)) => None,
            (Repr::Const(0), _) => Some(Size::ZERO),
            (_, Repr::Const(1)) => Some(self),
            (Repr::Const(a), Repr::Const(b)) => {
                (a.wrapping_rem(b) == 0).then(|| Size::from(a.wrapping_div(b)))
            }
            (Repr::Const(_), Repr::Poly(_)) => None,
            _ => divide(self, divisor),
        }
    }

    /// `self // divisor`, rounded towards minus infinity. The divisor must not be zero when the program runs.
    pub fn floor_div(self, divisor: Size) -> Size {
        if let (Some(a), Some(b)) = (self.as_const(), divisor.as_const())
            && b != 0
        {
            return Size::from(floor_div(a, b));
        }
        self.div_exact(divisor).unwrap_or_else(|| atom(Atom::FloorDiv(self, divisor)))
    }

    /// `self mod divisor`, of the divisor's sign. The divisor must not be zero when the program runs.
    pub fn modulo(self, divisor: Size) -> Size {
        if let (Some(a), Some(b)) = (self.as_const(), divisor.as_const())
            && b != 0
        {
            return Size::from(floor_mod(a, b));
        }
        if self.div_exact(divisor).is_some() { Size::ZERO } else { atom(Atom::Mod(self, divisor)) }
    }

    /// `ceil(self / divisor)`.
    pub fn ceil_div(self, divisor: Size) -> Size {
        match (self.as_const(), divisor.as_const()) {
            // The sum below may overflow.
            (Some(a), Some(b)) if b > 0 => Size::from(floor_div(a, b) + i64::from(floor_mod(a, b) != 0)),
            _ => (self + divisor - Size::ONE).floor_div(divisor),
        }
    }

    /// The larger of two.
    pub fn max(self, other: Size) -> Size {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Size::from(a.max(b)),
            _ if self == other => self,
            _ => atom(Atom::Max(self, other)),
        }
    }

    /// The smaller of two.
    pub fn min(self, other: Size) -> Size {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Size::from(a.min(b)),
            _ if self == other => self,
            _ => atom(Atom::Min(self, other)),
        }
    }

    /// The value under `values`; `None` where a symbol has none or a divisor is zero.
    pub fn eval(self, values: &SymbolValues) -> Option<i64> {
        match self.repr() {
            Repr::Const(c) => Some(c),
            Repr::Poly(_) => {
                let poly = poly_of(self);
                let mut sum = 0i64;
                for (monomial, factor) in &poly.terms {
                    let mut product = *factor;
                    for a in monomial {
                        let a = read().atoms[a.0 as usize].clone();
                        product = product.checked_mul(a.eval(values)?)?;
                    }
                    sum = sum.checked_add(product)?;
                }
                Some(sum)
            }
        }
    }

    /// The value for scores: symbols without a value count as [`SymbolValues::DEFAULT_HINT`].
    #[inline]
    pub fn hint(self, values: &SymbolValues) -> i64 {
        match self.repr() {
            Repr::Const(c) => c,
            Repr::Poly(_) => self.hint_of_polynomial(values),
        }
    }

    fn hint_of_polynomial(self, values: &SymbolValues) -> i64 {
        if let Some(v) = self.eval(values) {
            return v;
        }
        let mut filled = values.clone();
        for name in self.symbols() {
            filled.0.entry(name).or_insert(SymbolValues::DEFAULT_HINT);
        }
        self.eval(&filled).unwrap_or(SymbolValues::DEFAULT_HINT)
    }

    /// Names of all symbols in it, sorted, each once.
    pub fn symbols(self) -> Vec<Box<str>> {
        let mut names = Vec::new();
        self.collect_symbols(&mut names);
        names.sort();
        names.dedup();
        names
    }

    /// The name of the symbol, where the size is one symbol alone.
    pub fn as_symbol(self) -> Option<Box<str>> {
        match &self.terms()[..] {
            [(1, atoms)] => match &atoms[..] {
                [Atom::Symbol(name)] => Some(name.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    fn collect_symbols(self, names: &mut Vec<Box<str>>) {
        if self.as_const().is_some() {
            return;
        }
        for (monomial, _) in &poly_of(self).terms {
            for a in monomial {
                let a = read().atoms[a.0 as usize].clone();
                match a {
                    Atom::Symbol(name) => names.push(name),
                    Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                        a.collect_symbols(names);
                        b.collect_symbols(names);
                    }
                }
            }
        }
    }

    /// The polynomial as a sum of products: each term is a factor and the atoms multiplied with it.
    pub fn terms(self) -> Vec<(i64, Vec<Atom>)> {
        let poly = poly_of(self);
        let lock = read();
        poly.terms
            .iter()
            .map(|(m, c)| (*c, m.iter().map(|a| lock.atoms[a.0 as usize].clone()).collect()))
            .collect()
    }

    /// An order that is the same in every process: constants by value, then polynomials by their text.
    pub fn order(self, other: Size) -> Ordering {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) if self == other => Ordering::Equal,
            (None, None) => self.to_string().cmp(&other.to_string()),
        }
    }
}

/// Rounds towards minus infinity. `b` must not be zero.
pub fn floor_div(a: i64, b: i64) -> i64 {
    let q = a.wrapping_div(b);
    if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { q - 1 } else { q }
}

/// Remainder of [`floor_div`], of the divisor's sign. `b` must not be zero.
pub fn floor_mod(a: i64, b: i64) -> i64 {
    let rest = a.wrapping_rem(b);
    if rest != 0 && (a < 0) != (b < 0) { rest + b } else { rest }
}

/// Polynomial long division; `None` where a remainder stays.
fn divide(dividend: Size, divisor: Size) -> Option<Size> {
    let by = poly_of(divisor);
    let (lead, lead_factor) = by.terms.first()?.clone();
    let mut rest = dividend;
    let mut quotient = Size::ZERO;
    // Each step removes the leading monomial; degrees are bounded, so few steps are ever needed.
    for _ in 0..32 {
        if rest.is(0) {
            return Some(quotient);
        }
        let top = poly_of(rest);
        let (monomial, factor) = top.terms.first()?;
        if factor.wrapping_rem(lead_factor) != 0 {
            return None;
        }
        let mut left = monomial.clone();
        for a in &lead {
            let at = left.iter().position(|x| x == a)?;
            left.remove(at);
        }
        let mut terms = SmallVec::new();
        terms.push((left, factor.wrapping_div(lead_factor)));
        let step = intern(Poly { terms });
        quotient += step;
        rest = rest - step * divisor;
    }
    None
}

impl Atom {
    fn eval(&self, values: &SymbolValues) -> Option<i64> {
        let pair = |a: &Size, b: &Size| Some((a.eval(values)?, b.eval(values)?));
        match self {
            Atom::Symbol(name) => values.0.get(name).copied(),
            Atom::FloorDiv(a, b) => pair(a, b).and_then(|(a, b)| (b != 0).then(|| floor_div(a, b))),
            Atom::Mod(a, b) => pair(a, b).and_then(|(a, b)| (b != 0).then(|| floor_mod(a, b))),
            Atom::Max(a, b) => pair(a, b).map(|(a, b)| a.max(b)),
            Atom::Min(a, b) => pair(a, b).map(|(a, b)| a.min(b)),
        }
    }
}

/// Values of size symbols: those of one call, or hints for scores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolValues(pub FxHashMap<Box<str>, i64>);

impl SymbolValues {
    /// What a symbol of unknown value counts as in a score: big enough that fusing pays.
    pub const DEFAULT_HINT: i64 = 8192;

    /// No symbol has a value.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one symbol.
    pub fn set(&mut self, name: &str, value: i64) {
        self.0.insert(name.into(), value);
    }
}

impl Default for Size {
    fn default() -> Self {
        Size::ZERO
    }
}
impl From<i64> for Size {
    fn from(value: i64) -> Size {
        Size::constant(value)
    }
}
impl From<usize> for Size {
    fn from(value: usize) -> Size {
        Size::constant(value as i64)
    }
}
impl From<i32> for Size {
    fn from(value: i32) -> Size {
        Size::constant(i64::from(value))
    }
}

// Nearly all sizes are constants: their arithmetic is to be part of the caller's code, that of polynomials is not.
impl Add for Size {
    type Output = Size;
    #[inline]
    fn add(self, rhs: Size) -> Size {
        match (self.repr(), rhs.repr()) {
            (Repr::Const(a), Repr::Const(b)) => Size::constant(a.wrapping_add(b)),
            _ => add_polynomials(self, rhs),
        }
    }
}
impl Mul for Size {
    type Output = Size;
    #[inline]
    fn mul(self, rhs: Size) -> Size {
        match (self.repr(), rhs.repr()) {
            (Repr::Const(a), Repr::Const(b)) => Size::constant(a.wrapping_mul(b)),
            _ => multiply_polynomials(self, rhs),
        }
    }
}

#[cold]
fn add_polynomials(a: Size, b: Size) -> Size {
    if b.is(0) {
        return a;
    }
    if a.is(0) {
        return b;
    }
    let mut sum = poly_of(a);
    sum.terms.extend(poly_of(b).terms);
    intern(sum)
}

#[cold]
fn multiply_polynomials(a: Size, b: Size) -> Size {
    if a.is(0) || b.is(0) {
        return Size::ZERO;
    }
    if b.is(1) {
        return a;
    }
    if a.is(1) {
        return b;
    }
    let (a, b) = (poly_of(a), poly_of(b));
    let mut out = Poly::default();
    let lock = read();
    for (m, c) in &a.terms {
        for (n, d) in &b.terms {
            let mut product = m.clone();
            product.extend_from_slice(n);
            product.sort_by(|x, y| lock.atom_text[x.0 as usize].cmp(&lock.atom_text[y.0 as usize]));
            out.terms.push((product, c.wrapping_mul(*d)));
        }
    }
    drop(lock);
    intern(out)
}

impl Neg for Size {
    type Output = Size;
    fn neg(self) -> Size {
        self * Size::from(-1)
    }
}
impl Sub for Size {
    type Output = Size;
    fn sub(self, rhs: Size) -> Size {
        self + -rhs
    }
}
impl AddAssign for Size {
    fn add_assign(&mut self, rhs: Size) {
        *self = *self + rhs;
    }
}
impl MulAssign for Size {
    fn mul_assign(&mut self, rhs: Size) {
        *self = *self * rhs;
    }
}
impl std::iter::Sum for Size {
    fn sum<I: Iterator<Item = Size>>(iter: I) -> Size {
        iter.fold(Size::ZERO, Add::add)
    }
}
impl std::iter::Product for Size {
    fn product<I: Iterator<Item = Size>>(iter: I) -> Size {
        iter.fold(Size::ONE, Mul::mul)
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Symbol(name) => f.write_str(name),
            Atom::FloorDiv(a, b) => write!(f, "({a} // {})", Divisor(*b)),
            Atom::Mod(a, b) => write!(f, "({a} % {})", Divisor(*b)),
            Atom::Max(a, b) => write!(f, "max({a}, {b})"),
            Atom::Min(a, b) => write!(f, "min({a}, {b})"),
        }
    }
}

/// A size behind `//` or `%`, where a product needs parentheses: `a // 2*b` would be `(a // 2)*b`.
pub(crate) struct Divisor(pub(crate) Size);

impl fmt::Display for Divisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let product = match &self.0.terms()[..] {
            [(factor, atoms)] => !atoms.is_empty() && (*factor != 1 || atoms.len() > 1),
            _ => false,
        };
        if product { write!(f, "({})", self.0) } else { write!(f, "{}", self.0) }
    }
}

impl fmt::Display for Size {
    /// A sum of products. A sum of several terms stands in parentheses, so that the text can be put into any
    /// larger expression as it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Repr::Const(c) = self.repr() {
            return write!(f, "{c}");
        }
        let terms = self.terms();
        let many = terms.len() > 1;
        if many {
            f.write_str("(")?;
        }
        for (k, (factor, atoms)) in terms.iter().enumerate() {
            let magnitude = factor.unsigned_abs();
            match (k, *factor < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let mut first = true;
            if magnitude != 1 || atoms.is_empty() {
                write!(f, "{magnitude}")?;
                first = false;
            }
            for a in atoms {
                if !first {
                    f.write_str("*")?;
                }
                write!(f, "{a}")?;
                first = false;
            }
        }
        if many {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn n() -> Size {
        Size::symbol("n")
    }
    fn m() -> Size {
        Size::symbol("m")
    }

    #[test]
    fn equal_polynomials_are_one_value() {
        assert_eq!((n() + m()) * (n() - m()), n() * n() - m() * m());
        assert_eq!(n() * Size::from(4) - n() * Size::from(4), Size::ZERO);
        assert_eq!((n() + Size::ONE) - n(), Size::ONE);
    }

    #[test]
    fn a_constant_is_never_taken_for_a_polynomial() {
        let first = i64::from(Size::TAG) << 32;
        for value in [i64::MIN, first - 1, first + (1 << 32), -1, 0, i64::MAX] {
            assert_eq!(Size::from(value).as_const(), Some(value));
        }
        for value in [first, first + 1, first + (1 << 32) - 1] {
            assert_eq!(Size::from(value).as_const(), Some(first - 1));
        }
        assert_eq!(n().as_const(), None);
    }

    #[test]
    fn exact_division_finds_polynomial_quotients_and_no_others() {
        assert_eq!((n() * m() * Size::from(6)).div_exact(n() * Size::from(2)), Some(m() * Size::from(3)));
        assert_eq!((n() * n() - m() * m()).div_exact(n() + m()), Some(n() - m()));
        assert_eq!((n() * Size::from(3)).div_exact(Size::from(2)), None);
        assert_eq!(n().div_exact(Size::ZERO), None);
    }

    #[test]
    fn floor_division_rounds_down_and_is_an_atom_when_symbolic() {
        assert_eq!(Size::from(-7).floor_div(Size::from(2)), Size::from(-4));
        assert_eq!(n().floor_div(Size::from(2)), n().floor_div(Size::from(2)));
        assert_eq!((n() * Size::from(4)).floor_div(Size::from(2)), n() * Size::from(2));
    }

    #[test]
    fn only_a_symbol_alone_is_a_symbol() {
        assert_eq!(n().as_symbol().as_deref(), Some("n"));
        let others = [Size::ONE, n() + n(), n() + Size::ONE, n() * m(), n() * n(), n().max(m())];
        assert!(others.iter().all(|s| s.as_symbol().is_none()));
    }

    #[test]
    fn text_puts_sums_in_parentheses() {
        assert_eq!((n() * Size::from(4) + m() - Size::ONE).to_string(), "(m + 4*n - 1)");
        assert_eq!((n() * m()).to_string(), "m*n");
    }

    fn any_size() -> impl Strategy<Value = Size> {
        let leaf = prop_oneof![(-5i64..6).prop_map(Size::from), Just(n()), Just(m())];
        leaf.prop_recursive(4, 12, 2, |inner| {
            (inner.clone(), inner, 0..3).prop_map(|(a, b, op)| match op {
                0 => a + b,
                1 => a * b,
                _ => a - b,
            })
        })
    }

    proptest! {
        #[test]
        fn arithmetic_agrees_with_integers(a in any_size(), b in any_size(), vn in -4i64..9, vm in -4i64..9) {
            let mut v = SymbolValues::new();
            v.set("n", vn);
            v.set("m", vm);
            let e = |s: Size| s.eval(&v).unwrap();
            prop_assert_eq!(e(a + b), e(a) + e(b));
            prop_assert_eq!(e(a * b), e(a) * e(b));
            prop_assert_eq!(e(a - b), e(a) - e(b));
            if let Some(q) = a.div_exact(b) {
                prop_assert_eq!(q * b, a);
            }
        }
    }
}
