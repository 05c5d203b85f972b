"""Writes reference points of the f64 functions: one a line, `function x [y] high low`, floats as hexadecimal bits.

The exact value is high + low. Needs mpmath. Run: python3 points.py COUNT [NAME...] > points.txt; with names, only of these
functions, as many as asked for even of the slow ones.
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


def negative(f):
    """Exact where `f` has poles at the negative integers: these are no points."""
    return lambda x: None if x <= 0 and x == mp.floor(x) else f(x)


def near(places):
    """A float at any relative distance of one of these places, most of them very near."""
    x = random.choice(places)
    return float(x * (1 + random.choice([-1, 1]) * mpf(2) ** random.randint(-53, -2) * random.uniform(0.5, 1)))


def zeros(f, between):
    """A zero of the function in each of these intervals."""
    with mp.workprec(200):
        return [mp.findroot(f, interval, solver="anderson") for interval in between]


def gamma_places(f, between):
    """Poles, zeros and what lies between them: near, at large distances from zero, and over all exponents."""
    poles = [mpf(-n) for n in (1, 2, 3, 4, 7, 10, 19, 100, 171, 1000, 2**20, 2**40)]
    roots = zeros(f, between)
    return [
        lambda: near(poles),
        lambda: near(roots),
        lambda: random.uniform(-10, 0),
        lambda: random.uniform(-200, 0),
        lambda: -math.exp(random.uniform(math.log(1e-300), math.log(1e15))),
    ]


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
    "Lgamma": (negative(lgamma), [(0, 4), (0, 40), (0.9, 1.1), (1.9, 2.1)], (1e-300, 1e305)),
    "Digamma": (negative(digamma), [(0, 4), (0, 40)], (1e-300, 1e300)),
    "Rsqrt": (lambda x: 1 / mp.sqrt(x), [(0, 4)], None),
}

# Samples of places where ranges don't reach.
PLACES = {
    "Lgamma": lambda: gamma_places(
        lgamma, [(0.9, 1.1), (1.9, 2.1), (-2.5, -2.4), (-2.8, -2.7), (-3.2, -3.1), (-3.97, -3.94), (-4.05, -4.03), (-4.995, -4.98)]
    ),
    "Digamma": lambda: gamma_places(
        digamma, [(1.4, 1.5), (-0.6, -0.4), (-1.7, -1.5), (-2.7, -2.5), (-9.72, -9.68), (-19.77, -19.7)]
    ),
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
    if value is None or isinstance(value, mpmath.mpc):
        return
    high = float(value)
    if not math.isfinite(high):
        return
    print(name, *(bits(x) for x in operands), bits(high), bits(float(value - mpf(high))))


def main():
    random.seed(1)
    count, names = int(sys.argv[1]), sys.argv[2:]
    for name, (f, ranges, exponents) in UNARY.items():
        if names and name not in names:
            continue
        slow = not names and name in ("Erfinv", "Lgamma", "Digamma")
        places = PLACES[name]() if name in PLACES else []
        for _ in range(min(count, 4000) if slow else count):
            x = random.choice(places)() if places and random.random() < 0.5 else sample(ranges, exponents)
            try:
                emit(name, [x], f(mpf(x)))
            except (ValueError, ZeroDivisionError, mpmath.libmp.NoConvergence, OverflowError):
                continue
    for name, (f, operands) in BINARY.items():
        if names and name not in names:
            continue
        for _ in range(count):
            x, y = operands()
            if math.isfinite(x) and math.isfinite(y) and x != 0 and y != 0:
                emit(name, [x, y], f(mpf(x), mpf(y)))


if __name__ == "__main__":
    main()
