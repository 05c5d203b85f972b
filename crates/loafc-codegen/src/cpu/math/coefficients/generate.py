"""Computes the polynomial coefficients of the functions in this folder's parent and writes `mod.rs`.

Needs mpmath (gmpy2 makes it fast). Run: python3 generate.py > mod.rs
"""

import struct
import sys

from mpmath import (
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cos,
    diff,
    erf,
    erfc,
    exp,
    log,
    loggamma,
    lu_solve,
    matrix,
    mp,
    mpf,
    pi,
    sin,
    sinh,
    sqrt,
    tanh,
)

mp.prec = 700


def minimax(f, low, high, degree, weight=lambda x: mpf(1)):
    """Coefficients c of the polynomial for which max |weight·(Σ c_k x^k - f)| is least (Remez's exchange)."""
    low, high = mpf(low), mpf(high)
    count = degree + 2
    middle, half = (low + high) / 2, (high - low) / 2
    nodes = [middle - half * cos(pi * (mpf(2 * k + 1) / (2 * count))) for k in range(count)]
    dense = [middle - half * cos(pi * mpf(k) / (24 * count)) for k in range(1, 24 * count)]
    values = [(x, f(x), weight(x)) for x in dense]
    coefficients = None
    for _ in range(30):
        a, b = matrix(count, count), matrix(count, 1)
        for row, x in enumerate(nodes):
            for k in range(degree + 1):
                a[row, k] = x**k
            a[row, degree + 1] = (-1) ** row / weight(x)
            b[row] = f(x)
        solution = lu_solve(a, b)
        coefficients = [solution[k] for k in range(degree + 1)]
        level = abs(solution[degree + 1])
        errors = [(x, w * (horner(coefficients, x) - y)) for x, y, w in values]
        extrema = alternating(errors)
        worst = max(abs(e) for _, e in errors)
        if len(extrema) < count or worst <= level * mpf("1.02"):
            break
        while len(extrema) > count:
            extrema.pop(0 if abs(extrema[0][1]) < abs(extrema[-1][1]) else -1)
        nodes = [x for x, _ in extrema]
    report([mpf(float(c)) for c in coefficients], f, low, high, weight)
    return coefficients


def alternating(errors):
    """The largest error of each run of one sign."""
    runs = []
    for x, e in errors:
        if runs and (runs[-1][1] > 0) == (e > 0):
            if abs(e) > abs(runs[-1][1]):
                runs[-1] = (x, e)
        else:
            runs.append((x, e))
    return runs


def horner(coefficients, x):
    total = mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def single(x):
    return struct.unpack("f", struct.pack("f", float(x)))[0]


def minimax_single(f, low, high, degree, weight=lambda x: mpf(1)):
    """As `minimax`, with coefficients that are floats: each is rounded before the next ones are fitted again, those
    by weighted least squares, as what is left has no alternating error."""
    low, high = mpf(low), mpf(high)
    count = 12 * (degree + 1)
    nodes = [(low + high) / 2 - (high - low) / 2 * cos(pi * (mpf(2 * k + 1) / (2 * count))) for k in range(count)]
    points = [(x, f(x), weight(x) ** 2) for x in nodes]
    fixed = [mpf(single(minimax(f, low, high, degree, weight)[0]))]
    for first in range(1, degree + 1):
        free = degree + 1 - first
        a, b = matrix(free, free), matrix(free, 1)
        for x, y, w in points:
            rest = y - horner(fixed, x)
            for i in range(free):
                b[i] += w * rest * x ** (first + i)
                for j in range(free):
                    a[i, j] += w * x ** (2 * first + i + j)
        fixed.append(mpf(single(lu_solve(a, b)[0])))
    report(fixed, f, low, high, weight)
    return fixed


def report(coefficients, f, low, high, weight):
    """Prints the logarithm of the largest weighted error to the error stream."""
    worst = max(
        abs(weight(x) * (horner(coefficients, x) - f(x)))
        for x in (low + (high - low) * (mpf(k) + mpf("0.37")) / 400 for k in range(400))
    )
    print(f"    2^{float(mp.log(worst, 2)):.1f}", file=sys.stderr)


def rational(f, low, high, top, bottom):
    """Coefficients of P and Q, Q(0) = 1, with P/Q = f at Chebyshev's nodes."""
    low, high = mpf(low), mpf(high)
    count = top + bottom + 1
    a, b = matrix(count, count), matrix(count, 1)
    for row in range(count):
        x = (low + high) / 2 - (high - low) / 2 * cos(pi * mpf(2 * row + 1) / (2 * count))
        y = f(x)
        for k in range(top + 1):
            a[row, k] = x**k
        for k in range(1, bottom + 1):
            a[row, top + k] = -y * x**k
        b[row] = y
    solution = lu_solve(a, b)
    return [solution[k] for k in range(top + 1)], [mpf(1)] + [solution[top + k] for k in range(1, bottom + 1)]


# Distance of the points around which erf has polynomials of its own: one for which erf at its multiples is close to
# floats, and of few enough bits that multiples are exact.
ERF_STEP = mpf(17051) / 65536


def erf_pieces():
    """For each power, the coefficients around the first 16 multiples of `ERF_STEP`, by interpolation in Chebyshev's
    points. One is taken from the first power's, as the argument itself is added at the end; around 0 the function that
    is interpolated is erf(t)/t, so that small results are as precise as others."""
    degree, count = 5, 16
    half = ERF_STEP / 2

    def interpolate(f, low, high, terms):
        a, b = matrix(terms, terms), matrix(terms, 1)
        for row in range(terms):
            x = (low + high) / 2 + (high - low) / 2 * cos(pi * mpf(2 * row + 1) / (2 * terms))
            for k in range(terms):
                a[row, k] = x**k
            b[row] = f(x)
        return list(lu_solve(a, b))

    pieces = [[mpf(0), *interpolate(lambda t: erf(t) / t, mpf(0), half, degree)]]
    for k in range(1, count):
        pieces.append(interpolate(lambda t, k=k: erf(k * ERF_STEP + t), -half, half, degree + 1))
    for piece in pieces:
        piece[1] -= 1
    return [[piece[power] for piece in pieces] for power in range(degree + 1)]


def odd(f, skip=1):
    """(f(√z) - √z)/(√z)³ as a function of z: the part of an odd function behind its first term."""
    return lambda z: (f(sqrt(z)) - skip * sqrt(z)) / (z * sqrt(z))


def table(name, what, values, convert=float):
    print(name, file=sys.stderr)
    print(f"/// {what}")
    print(f"pub(super) const {name}: [f64; {len(values)}] = [")
    for v in values:
        print(f"    {convert(v)!r},")
    print("];\n")


def chunk(value, bits):
    """The leading bits of a value."""
    scale = mpf(2) ** (bits - 1 - int(mp.floor(mp.log(abs(value), 2))))
    return mp.nint(value * scale) / scale


def split(name, what, value, bits):
    """Parts of these bit counts that sum up to the value."""
    parts = []
    for b in bits:
        part = chunk(value, b)
        parts.append(part)
        value -= part
    table(name, what, parts)


TINY = mpf(2) ** -40


def main():
    ln2 = log(mpf(2))
    print("//! Coefficients of the polynomials, computed by `generate.py`; not edited by hand.")
    print("#![allow(clippy::excessive_precision, clippy::approx_constant, clippy::unreadable_literal)]\n")
    split("LN2", "ln 2 in two parts; products of the first with exponents are exact.", ln2, [42, 53])
    split("LN2_NEAREST", "ln 2 in two parts, the first the nearest f64.", ln2, [53, 53])
    split("LN2_F32", "ln 2 in two floats.", ln2, [24, 24])
    split("LOG2_E", "1/ln 2 in two parts.", 1 / ln2, [53, 53])
    split("LOG10_E", "1/ln 10 in two parts.", 1 / log(mpf(10)), [53, 53])
    split("LOG10_2", "log10 2 in two parts; products of the first with exponents are exact.", ln2 / log(mpf(10)), [42, 53])
    split("LOG10_2_F32", "log10 2 in two floats; products of the first with exponents are exact.", ln2 / log(mpf(10)), [12, 24])
    split("LOG10_E_F32", "1/ln 10 in two floats.", 1 / log(mpf(10)), [24, 24])
    split("LOG2_E_F32", "1/ln 2 in two floats.", 1 / ln2, [24, 24])
    split("PI", "π in three parts.", pi + 0, [53, 53, 53])
    split("PI_F32", "π in four floats.", pi + 0, [24, 24, 24, 24])
    split("HALF_PI_F32", "π/2 in two floats.", pi / 2, [24, 24])
    split("LN2_200", "200 ln 2 in two parts.", 200 * ln2, [53, 53])
    split("LN_PI", "ln π in two parts.", log(pi), [53, 53])
    split("HALF_LN_2PI", "ln(2π)/2 in two parts.", log(2 * pi) / 2, [53, 53])
    split("TWO_THIRDS", "2/3 in two parts.", mpf(2) / 3, [53, 53])
    split("TWELFTH", "1/12 in two parts, the first coefficient of Stirling's formula.", mpf(1) / 12, [53, 53])
    split("TWO_FIFTHS", "2/5 in two parts.", mpf(2) / 5, [53, 53])

    words = [int(mp.floor(mp.ldexp(2 / pi_long(), 64 * (k + 1)))) & (2**64 - 1) for k in range(20)]
    print("/// The bits of 2/π behind the point, behind 64 zeros.")
    print("pub(super) const TWO_OVER_PI: [u64; 21] = [\n    0x0,")
    for w in words:
        print(f"    {w:#018x},")
    print("];\n")
    mp.prec = 700

    def after_linear(r):
        return (mp.expm1(r) - r) / r**2

    half = ln2 / 2 * mpf("1.00001")
    table("EXP", "(e^r - 1 - r)/r², |r| ≤ ln 2 / 2.", minimax(after_linear, -half - TINY, half, 9, lambda r: r * r / exp(r)))
    table(
        "EXP_F32",
        "(e^r - 1)/r, |r| ≤ ln 2 / 2.",
        minimax_single(lambda r: mp.expm1(r) / r, -half - TINY, half, 5, lambda r: r / exp(r)),
    )
    table(
        "EXPM1_F32",
        "(e^r - 1 - r)/r², |r| ≤ ln 2 / 2.",
        minimax_single(after_linear, -half - TINY, half, 4, lambda r: r * r / abs(mp.expm1(r))),
    )
    table(
        "EXP2_F32",
        "(2^f - 1)/f, |f| ≤ 1/2.",
        minimax_single(lambda f: mp.expm1(f * ln2) / f, -mpf("0.5001"), mpf("0.5"), 5, lambda f: f / exp(f * ln2)),
    )
    table(
        "EXP_SHORT",
        "(e^r - 1)/r, |r| ≤ ln 2 / 2, in f64 for results in f32.",
        minimax(lambda r: mp.expm1(r) / r, -half - TINY, half, 6, lambda r: r / exp(r)),
    )

    zlog = mpf("0.02944")
    table("LOG", "(2 atanh s - 2s)/s³ in s², (1+s)/(1-s) between √½ and √2.", minimax(odd(lambda s: 2 * atanh(s), 2), TINY, zlog, 6, lambda z: z))
    table("LOG_TAIL", "(2 atanh s - 2s - 2/3 s³)/s⁵ in s², same range.", minimax(lambda z: (2 * atanh(sqrt(z)) / sqrt(z) - 2 - 2 * z / 3) / z**2, TINY, zlog, 6, lambda z: z * z))
    table("LOG_SHORT", "(2 atanh s - 2s)/s³ in s², same range, in f64 for results in f32.", minimax(odd(lambda s: 2 * atanh(s), 2), TINY, zlog, 3, lambda z: z))

    def log_tail(f):
        return (mp.log1p(f) - f + f * f / 2) / f**3

    table(
        "LOG_F32",
        "(log(1+f) - f + f²/2)/f³, f between -1/3 and 1/3.",
        minimax_single(log_tail, -mpf(1) / 3 + TINY, mpf(1) / 3, 8, lambda f: f**3 / mp.log1p(f)),
    )

    quarter = (pi / 4) ** 2 * mpf("1.0000001")
    table("SIN_QUARTER", "(sin r - r)/r³ in r², |r| ≤ π/4.", minimax(odd(sin), TINY, quarter, 6, lambda z: z))
    cosine = minimax(lambda z: (cos(sqrt(z)) - 1 + z / 2) / z**2, TINY, quarter, 6, lambda z: z * z)
    table("COS_QUARTER", "(cos r - 1)/r² in r², |r| ≤ π/4.", [mpf(-0.5), *cosine])
    table("SIN_F32", "(sin r - r)/r³ in r², |r| ≤ π/4.", minimax_single(odd(sin), TINY, quarter, 2, lambda z: z))
    table("COS_F32", "(cos r - 1)/r² in r², |r| ≤ π/4.", minimax_single(lambda z: (cos(sqrt(z)) - 1) / z, TINY, quarter, 3, lambda z: z))
    table("SIN_SHORT", "(sin r - r)/r³ in r², |r| ≤ π/4, in f64 for results in f32.", minimax(odd(sin), TINY, quarter, 3, lambda z: z))
    table("COS_SHORT", "(cos r - 1 + r²/2)/r⁴ in r², |r| ≤ π/4, in f64 for results in f32.", minimax(lambda z: (cos(sqrt(z)) - 1 + z / 2) / z**2, TINY, quarter, 3, lambda z: z * z))

    table("ATAN", "(atan t - t)/t³ in t², t ≤ tan(π/8).", minimax(odd(atan), TINY, mpf("0.17158"), 10, lambda z: z))
    table("ATAN_F32", "(atan t - t)/t³ in t², t ≤ 1.", minimax_single(odd(atan), TINY, 1, 8, lambda z: z * sqrt(z) / atan(sqrt(z))))
    table("ASIN", "(asin x - x)/x³ in x², x ≤ 1/2.", minimax(odd(asin), TINY, mpf("0.2500001"), 12, lambda z: z))
    table("ASIN_F32", "(asin x - x)/x³ in x², x ≤ 1/2.", minimax_single(odd(asin), TINY, mpf("0.2500001"), 4, lambda z: z))
    table("SINH", "(sinh x - x)/x³ in x², x ≤ 1.", minimax(odd(sinh), TINY, mpf("1.0000001"), 7, lambda z: z * sqrt(z) / sinh(sqrt(z))))
    table("SINH_F32", "(sinh x - x)/x³ in x², x ≤ 1.", minimax_single(odd(sinh), TINY, mpf("1.0000001"), 3, lambda z: z * sqrt(z) / sinh(sqrt(z))))
    table("ASINH", "(asinh x - x)/x³ in x², x ≤ 1/2.", minimax(odd(asinh), TINY, mpf("0.2500001"), 12, lambda z: z))
    top, bottom = rational(odd(tanh), TINY, mpf("1.0000001"), 4, 4)
    table("TANH_TOP", "(tanh x - x)/x³ in x², x ≤ 1: numerator.", top)
    table("TANH_BOTTOM", "(tanh x - x)/x³ in x², x ≤ 1: denominator.", bottom)
    table("TANH_F32", "(tanh x - x)/x³ in x², x ≤ 0.65.", minimax_single(odd(tanh), TINY, mpf("0.4226"), 5, lambda z: z * sqrt(z) / tanh(sqrt(z))))

    table("ERF", "erf(x)/x - 1 in x², x ≤ 0.9.", minimax(lambda z: erf(sqrt(z)) / sqrt(z) - 1, TINY, mpf("0.8101"), 11))
    table("ERF_F32", "erf(x)/x - 1 in x², x ≤ 1.", minimax_single(lambda z: erf(sqrt(z)) / sqrt(z) - 1, TINY, mpf("1.0001"), 6))
    print("/// The distance of points around which erf has polynomials of its own.")
    print(f"pub(super) const ERF_STEP_F32: f64 = {float(ERF_STEP)!r};\n")
    print("/// Their coefficients of each power, one for each point, the first power's less one.")
    print("pub(super) const ERF_PIECES_F32: [[f64; 16]; 6] = [")
    for coefficients in erf_pieces():
        print("    [")
        for c in coefficients:
            print(f"        {single(c)!r},")
        print("    ],")
    print("];\n")
    table(
        "ERF_TAIL_F32",
        "ln(erfc x) in x, 1 ≤ x ≤ 3.95.",
        minimax_single(lambda x: log(erfc(x)), 1, mpf("3.95"), 7, lambda x: erfc(x)),
    )

    def scaled_erfc(t):
        a = 4 * (1 + t) / (1 - t)
        return (1 + 2 * a) * exp(a * a) * erfc(a)

    tail = minimax(scaled_erfc, -1, mpf("0.7501"), 23)
    table("ERFC", "(1+2a) exp(a²) erfc(a) in t = (a-4)/(a+4), 0 ≤ a ≤ 28, without its first coefficient.", tail[1:])
    split("ERFC_FIRST", "The first coefficient of that, in two parts.", tail[0], [53, 53])

    table("ERFC_SHORT", "(1+2a) exp(a²) erfc(a) in t, 0 ≤ a ≤ 11, in f64 for results in f32.", minimax(scaled_erfc, -1, mpf("0.4667"), 11))

    erfinv_tables()
    gamma_tables()


def pi_long():
    """π with bits enough for the arguments of f64."""
    mp.prec = 1500
    value = pi + 0
    return value


def erfinv_tables():
    mp.prec = 200

    def near(w):
        x = sqrt(-mp.expm1(-w))
        return mp.erfinv(x) / x

    def tail(shift):
        def f(u):
            w = (u + shift) ** 2
            # erfinv(√(1-e^-w)) from its complement: √(1-q) = 1 - c with c small.
            q = exp(-w)
            c = q / (1 + sqrt(1 - q))
            y = sqrt(w)
            # Newton's method on the logarithm, which is concave: it converges from anywhere.
            for _ in range(60):
                value = erfc(y)
                step = log(value / c) * value / (2 / sqrt(pi) * exp(-y * y))
                y += step
                if abs(step) < mpf(2) ** -120:
                    break
            return y / sqrt(1 - q)

        return f

    def relative(f):
        cache = {}

        def at(x):
            if x not in cache:
                cache[x] = f(x)
            return cache[x]

        return at, lambda x: 1 / at(x)

    f, w = relative(lambda v: near(v + mpf("3.125")))
    table("ERFINV_NEAR", "erfinv(x)/x in w - 3.125, w = -ln(1-x²) < 6.25.", minimax(f, mpf("-3.125") + TINY, mpf("3.1251"), 24, w))
    f, w = relative(tail(mpf("3.25")))
    table("ERFINV_MIDDLE", "erfinv(x)/x in √w - 3.25, 6.25 ≤ w < 16.", minimax(f, mpf("-0.7501"), mpf("0.7501"), 22, w))
    f, w = relative(tail(mpf("5")))
    table("ERFINV_FAR", "erfinv(x)/x in √w - 5, 16 ≤ w < 37.", minimax(f, mpf("-1.0001"), mpf("1.1"), 22, w))


def gamma_tables():
    mp.prec = 200
    # Stirling's series, B_2k/(2k(2k-1)), and that of digamma, B_2k/(2k): exact coefficients.
    table("STIRLING", "B(2k)/(2k(2k-1)): the corrections of Stirling's formula in 1/x.", [mp.bernoulli(2 * k) / (2 * k * (2 * k - 1)) for k in range(1, 11)])
    near_one = [-mp.euler] + [mp.zeta(k) * (-1) ** k / k for k in range(2, 11)]
    table("LGAMMA_ONE", "lgamma(1+t)/t in t, |t| small: Taylor's series.", near_one)
    near_two = [1 - mp.euler] + [(mp.zeta(k) - 1) * (-1) ** k / k for k in range(2, 11)]
    table("LGAMMA_TWO", "lgamma(2+t)/t in t, |t| small: Taylor's series.", near_two)
    table("DIGAMMA", "B(2k)/(2k): the corrections of ln x - 1/(2x) in 1/x².", [mp.bernoulli(2 * k) / (2 * k) for k in range(1, 11)])


if __name__ == "__main__":
    main()
