"""Writes reference points of the f64 functions: one a line, `function x [y] high low`, floats as hexadecimal bits.

The exact value is high + low. Needs mpmath. Run: python3 points.py COUNT > points.txt
"""

import math
import random
import struct
import sys

import mpmath
from mpmath import mp, mpf

mp.prec = 200


def bits(x):
    return f"{struct.unpack('<Q', struct.pack('<d', x))[0]:016x}"


def from_bits(b):
    return struct.unpack("<d", struct.pack("<Q", b))[0]


def any_float():
    while True:
        x = from_bits(random.getrandbits(64))
        if math.isfinite(x):
            return x


def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def lgamma(x):
    with mp.workprec(400):
        return mp.log(abs(mp.gamma(x))) if abs(x) < 1e6 else mp.loggamma(x).real


def digamma(x):
    with mp.workprec(400):
        return mp.digamma(x)


def erfinv(x):
    """By Newton's method on the complement, from mpmath's start."""
    with mp.workprec(260):
        return mp.erfinv(x)


def trig(f):
    def exact(x):
        with mp.workprec(1400):
            return f(x)

    return exact


def precisely(f):
    def exact(x):
        with mp.workprec(400):
            return f(x)

    return exact


# Function, the ranges that uniform samples come from, and whether samples over all exponents make sense too.
UNARY = {
    "Exp": (mp.exp, [(-745, 710), (-1, 1)], (2**-60, 745)),
    "Exp2": (lambda x: mp.mpf(2) ** x, [(-1075, 1024), (-1, 1)], (2**-60, 1075)),
    "Expm1": (mp.expm1, [(-40, 710), (-2, 2)], (1e-300, 709)),
    "Sigmoid": (sigmoid, [(-745, 40), (-2, 2)], (2**-60, 40)),
    "Log": (mp.log, [(0.5, 2), (0, 100)], None),
    "Log2": (lambda x: mp.log(x, 2), [(0.5, 2), (0, 100)], None),
    "Log10": (mp.log10, [(0.5, 2), (0, 100)], None),
    "Log1p": (precisely(lambda x: mp.log(1 + x) if abs(x) > 1e-20 else x - x * x / 2), [(-1, 1), (-0.5, 3)], (1e-300, 1e308)),
    "Sin": (trig(mp.sin), [(-4, 4), (-1000, 1000)], (1e-300, 1e308)),
    "Cos": (trig(mp.cos), [(-4, 4), (-1000, 1000)], (1e-30, 1e308)),
    "Tan": (trig(mp.tan), [(-4, 4), (-1000, 1000)], (1e-300, 1e308)),
    "Asin": (mp.asin, [(-1, 1)], (1e-300, 1)),
    "Acos": (mp.acos, [(-1, 1)], (1e-30, 1)),
    "Atan": (mp.atan, [(-4, 4)], (1e-300, 1e308)),
    "Sinh": (mp.sinh, [(-2, 2), (-710, 710)], (1e-300, 710)),
    "Cosh": (mp.cosh, [(-2, 2), (-710, 710)], (1e-30, 710)),
    "Tanh": (precisely(mp.tanh), [(-2, 2), (-20, 20)], (1e-300, 30)),
    "Asinh": (precisely(mp.asinh), [(-2, 2), (-100, 100)], (1e-30, 1e308)),
    "Acosh": (precisely(mp.acosh), [(1, 3), (1, 100)], (1, 1e308)),
    "Atanh": (precisely(mp.atanh), [(-1, 1), (-0.1, 0.1)], (1e-30, 1)),
    "Erf": (precisely(mp.erf), [(-1, 1), (-6, 6)], (1e-300, 6)),
    "Erfc": (mp.erfc, [(-1, 1), (-6, 6), (5, 27)], (1e-30, 27)),
    "Erfinv": (erfinv, [(-1, 1), (0.99, 1)], (1e-30, 1)),
    "Lgamma": (lgamma, [(0, 4), (0, 40), (0.9, 1.1), (1.9, 2.1)], (1e-300, 1e305)),
    "Digamma": (digamma, [(0, 4), (0, 40)], (1e-300, 1e300)),
    "Rsqrt": (lambda x: 1 / mp.sqrt(x), [(0, 4)], None),
}

BINARY = {
    "Pow": (lambda x, y: x**y, lambda: pow_operands()),
    "Atan2": (lambda y, x: mp.atan2(y, x), lambda: mixed_operands()),
    "Hypot": (lambda x, y: mp.sqrt(x * x + y * y), lambda: mixed_operands()),
    "Fmod": (lambda a, b: exact_fmod(a, b), lambda: (any_float(), any_float())),
}


def exact_fmod(a, b):
    with mp.workprec(4400):
        a, b = mpf(a), mpf(b)
        rest = abs(a) - abs(b) * mp.floor(abs(a) / abs(b))
        return rest if a >= 0 else -rest


def pow_operands():
    kind = random.random()
    if kind < 0.3:
        x, y = random.uniform(0, 4), random.uniform(-100, 100)
    elif kind < 0.6:
        x = abs(any_float())
        y = random.uniform(-720, 720) / (abs(math.log(x)) + 1e-3) if x else 1.0
    else:
        x = 1 + random.uniform(-1, 1) * 2.0 ** random.randint(-40, -2)
        y = random.uniform(-700, 700) / math.log(x) if x != 1 else 2.0
    return x, y


def mixed_operands():
    if random.random() < 0.5:
        return random.uniform(-4, 4), random.uniform(-4, 4)
    scale = 2.0 ** random.randint(-1000, 1000)
    return scale * random.uniform(-1, 1), scale * random.uniform(-1, 1) * 2.0 ** random.randint(-20, 20)


def sample(ranges, exponents):
    if random.random() < 0.6:
        return random.uniform(*random.choice(ranges))
    if exponents is None:
        return abs(any_float())
    low, high = exponents
    x = math.exp(random.uniform(math.log(low), math.log(high)))
    return x if ranges[0][0] >= 0 else random.choice([x, -x])


def emit(name, operands, value):
    if isinstance(value, mpmath.mpc):
        return
    high = float(value)
    if not math.isfinite(high):
        return
    print(name, *(bits(x) for x in operands), bits(high), bits(float(value - mpf(high))))


def main():
    random.seed(1)
    count = int(sys.argv[1])
    for name, (f, ranges, exponents) in UNARY.items():
        slow = name in ("Erfinv", "Lgamma", "Digamma")
        for _ in range(min(count, 4000) if slow else count):
            x = sample(ranges, exponents)
            try:
                emit(name, [x], f(mpf(x)))
            except (ValueError, ZeroDivisionError, mpmath.libmp.NoConvergence, OverflowError):
                continue
    for name, (f, operands) in BINARY.items():
        for _ in range(count):
            x, y = operands()
            if math.isfinite(x) and math.isfinite(y) and x != 0 and y != 0:
                emit(name, [x, y], f(mpf(x), mpf(y)))


if __name__ == "__main__":
    main()
