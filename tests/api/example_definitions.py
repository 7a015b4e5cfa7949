"""Definitions that differ from each other in one point each; `VARIANTS` maps a name to a function that defines one in `fd`."""

from weft import DataType as D


def unary(fd, shape=(-1, -1), contiguity=True, op="relu", **kwargs):
    x = fd.define_tensor(shape=list(shape), contiguity=contiguity, **kwargs)
    fd.add_output(getattr(fd.ops, op)(x))


def with_constant(value, dtype=None):
    def define(fd):
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.mul(x, fd.define_scalar(value, dtype) if dtype else fd.define_scalar(value)))

    return define


def reduced(**kwargs):
    return lambda fd: fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), **kwargs))


def binary(order=(0, 1), alias=None, plain=True, op="sub", extra=False):
    def define(fd):
        x = [fd.define_tensor([-1], contiguity=True) for _ in range(2)]
        y = getattr(fd.ops, op)(x[order[0]], x[order[1]])
        if alias is not None:
            fd.add_output(y, x[alias])
        if plain:
            fd.add_output(y)
        if extra:
            fd.add_output(x[0])

    return define


def slice_of_the_rest(o, x):
    y = o.reshape(x, [x.size(0), 2, -1])
    z = o.reshape(y, [4, -1])
    return o.slice(z, [0, 1], [4, z.size(1)])


def random(shape=(4,), low=0.0, seed=None, op="uniform", dtype=D.Float):
    def define(fd):
        generator = {} if seed is None else {"rng_seed": seed, "rng_offset": 0}
        fd.add_output(getattr(fd.ops, op)(low, 1.0, shape=list(shape), dtype=dtype, **generator))

    return define


def view(fd, make, shape=(4, 6), **kwargs):
    fd.add_output(make(fd.ops, fd.define_tensor(shape=list(shape), contiguity=True, **kwargs)))


VARIANTS = {
    "symbolic": unary,
    "static": lambda fd: unary(fd, (4, 4)),
    "half static": lambda fd: unary(fd, (-1, 4)),
    "other static": lambda fd: unary(fd, (4, 5)),
    "broadcast": lambda fd: unary(fd, (-1, 1)),
    "expanded": lambda fd: unary(fd, (-1, 4), [True, None]),
    "expanded symbolic": lambda fd: unary(fd, (-1, -1), [True, None]),
    "empty": lambda fd: unary(fd, (0, -1)),
    "zero dim": lambda fd: unary(fd, (), []),
    "on the cpu": lambda fd: unary(fd, (), [], is_cpu=True),
    "not contiguous": lambda fd: unary(fd, contiguity=False),
    "half contiguous": lambda fd: unary(fd, contiguity=[False, True]),
    "stride order": lambda fd: unary(fd, stride_order=[0, 1]),
    "half": lambda fd: unary(fd, dtype=D.Half),
    "bfloat": lambda fd: unary(fd, dtype=D.BFloat16),
    "other op": lambda fd: unary(fd, op="exp"),
    "copy": lambda fd: unary(fd, op="set"),
    "segment": lambda fd: unary(fd, op="segment_set"),
    "constant 1.0": with_constant(1.0),
    "constant 1": with_constant(1),
    "constant True": with_constant(True),
    "constant 2.0": with_constant(2.0),
    "constant -0.0": with_constant(-0.0),
    "constant 0.0": with_constant(0.0),
    "constant nan": with_constant(float("nan")),
    "constant Float 1.0": with_constant(1.0, D.Float),
    "symbolic double": with_constant(None, D.Double),
    "symbolic int": with_constant(None, D.Int),
    "sum rows": reduced(dims=[1]),
    "sum columns": reduced(dims=[0]),
    "sum all": reduced(),
    "sum keepdim": reduced(dims=[1], keepdim=True),
    "sum double": reduced(dims=[1], dtype=D.Double),
    "sub": binary(),
    "sub swapped": binary((1, 0)),
    "sub itself": binary((0, 0)),
    "add": binary(op="add"),
    "alias 0": binary(alias=0, plain=False),
    "alias 1": binary(alias=1, plain=False),
    "alias 0 returned": binary(alias=0),
    "two outputs": binary(extra=True),
    "uniform": random(),
    "uniform other shape": random((5,)),
    "uniform other bound": random(low=-1.0),
    "uniform seed": random(seed=3),
    "uniform other seed": random(seed=4),
    "uniform double": random(dtype=D.Double),
    "normal": random(op="normal"),
    "permute": lambda fd: fd.add_output(fd.ops.permute(fd.define_tensor([-1, -1, -1], contiguity=True), [2, 0, 1])),
    "other permute": lambda fd: fd.add_output(fd.ops.permute(fd.define_tensor([-1, -1, -1], contiguity=True), [1, 2, 0])),
    "reshape": lambda fd: view(fd, lambda o, x: o.reshape(x, [3, 8])),
    "other reshape": lambda fd: view(fd, lambda o, x: o.reshape(x, [1, 24])),
    "symbolic reshape": lambda fd: view(fd, lambda o, x: o.reshape(x, [o.size(x, 0), 2, -1]), (-1, 6)),
    "slice": lambda fd: view(fd, lambda o, x: o.slice(x, [0, 1], [4, 5])),
    "other slice": lambda fd: view(fd, lambda o, x: o.slice(x, [0, 2], [4, 6])),
    "symbolic slice": lambda fd: view(fd, lambda o, x: o.slice(x, [1, 0], [o.size(x, 0), 4]), (-1, 6)),
    "slice by scalars": lambda fd: view(fd, lambda o, x: o.slice(x, [fd.define_scalar(D.Int), 0], [3, fd.define_scalar(D.Int)]), (-1, 6)),
    "reshape to a scalar and the rest": lambda fd: view(fd, lambda o, x: o.reshape(x, [fd.define_scalar(D.Int), -1]), (-1, 6)),
    "slice of the rest": lambda fd: view(fd, slice_of_the_rest, (-1, 6)),
    "select by a scalar": lambda fd: view(fd, lambda o, x: o.select(x, fd.define_scalar(D.Int), 0), (-1, 6)),
    "select by an int32": lambda fd: view(fd, lambda o, x: o.select(x, fd.define_scalar(D.Int32), 0), (-1, 6)),
    "select from the end": lambda fd: view(fd, lambda o, x: o.select(x, -2, 0), (-1, 6)),
    "scan of an expanded axis": lambda fd: view(fd, lambda o, x: o.cumsum(o.broadcast_in_dim(x, [x.size(0), x.size(1), x.size(0)], [0, 1]), 2), (-1, -1)),
    "pad": lambda fd: view(fd, lambda o, x: o.pad(x, [1, -2, 0, 3])),
    "pad with ones": lambda fd: view(fd, lambda o, x: o.pad(x, [1, -2, 0, 3], 1.0)),
    "symbolic pad of halves": lambda fd: view(fd, lambda o, x: o.pad(x, [1, 2], 0.5), (-1, -1), dtype=D.Half),
    "cat": lambda fd: view(fd, lambda o, x: o.cat([x, o.relu(x)], 1)),
    "other cat": lambda fd: view(fd, lambda o, x: o.cat([x, o.relu(x)], 0)),
    "triu": lambda fd: view(fd, lambda o, x: o.triu(x, 1), dtype=D.BFloat16),
    "output order": lambda fd: fd.add_output(fd.ops.stride_order(fd.define_tensor([-1, -1], contiguity=True), [0, 1])),
    "iota": lambda fd: fd.add_output(fd.ops.iota(4, 0, 2)),
    "iota step": lambda fd: fd.add_output(fd.ops.iota(4, 0, 3)),
    "full": lambda fd: fd.add_output(fd.ops.full([4], 1, D.Int)),
    "full float": lambda fd: fd.add_output(fd.ops.full([4], 1, D.Float)),
}


def rows(fd, body):
    x = fd.define_tensor([-1, -1], contiguity=True)
    for out in body(x):
        fd.add_output(out)


def scalar_arithmetic(fd):
    """Shapes and operands computed from sizes and scalar inputs, in several types."""
    x, s = fd.define_tensor([-1, 8], contiguity=True), fd.define_scalar(D.Double)
    n = fd.ops.mul(fd.ops.size(x, 0), 2)
    half = fd.ops.div(fd.ops.add(n, 1), 2)
    fd.add_output(fd.ops.full([n, half, x.size(1)], fd.ops.sqrt(fd.ops.add(s, 0.1)), D.Float))
    fd.add_output(fd.ops.mul(x, fd.ops.where(fd.ops.gt(s, 1.5), fd.ops.cast(n, D.Double), float("inf"))))


def vectors(fd):
    n = fd.define_vector(2)
    fd.add_output(fd.ops.add(fd.ops.full(n, 1.0, D.Float), fd.define_tensor([-1, -1], contiguity=True)))


def layer_norm(fd):
    x, w = fd.define_tensor([-1, -1], contiguity=True, dtype=D.BFloat16), fd.define_tensor([-1], contiguity=True, dtype=D.BFloat16)
    x32 = fd.ops.cast(x, D.Float)
    var, mean = fd.ops.var_mean(x32, [1], correction=0, keepdim=True)
    centered = fd.ops.sub(x32, fd.ops.expand(mean, x.shape()))
    y = fd.ops.mul(fd.ops.mul(centered, fd.ops.rsqrt(fd.ops.add(var, 1e-5))), fd.ops.broadcast_in_dim(w, x.shape(), [1]))
    fd.add_output(fd.ops.cast(y, D.BFloat16))
    fd.add_output(mean)


def many_ops(fd):
    x, i = fd.define_tensor([-1, 4], contiguity=True), fd.define_tensor([-1, 4], contiguity=True, dtype=D.Int)
    c = fd.define_tensor([4], contiguity=True, dtype=D.ComplexFloat)
    fd.add_output(fd.ops.clamp(x, -1.0, 1e30))
    fd.add_output(fd.ops.lerp(x, fd.ops.sin(x), 0.3))
    fd.add_output(fd.ops.threshold(x, 0.1 + 0.2, -2.5))
    fd.add_output(fd.ops.addcmul(x, x, x, 0.5))
    fd.add_output(fd.ops.bitwise_and(i, 3))
    fd.add_output(fd.ops.where(fd.ops.lt(i, 2), i, True))
    fd.add_output(fd.ops.add(i, x))
    fd.add_output(fd.ops.mul(c, 1 + 2j))
    fd.add_output(fd.ops.real(c))
    fd.add_output(fd.ops.mul(x, fd.define_scalar(2.5, D.Float)))


def aliases(fd):
    x = [fd.define_tensor([-1], contiguity=True) for _ in range(3)]
    y = fd.ops.add(x[0], x[1])
    fd.add_output(y, x[0])
    z = fd.ops.relu(y)
    fd.add_output(z)
    fd.add_output(z, x[1])
    fd.add_output(x[2])
    fd.add_output(x[2])


def random_ops(fd):
    x, seed, offset = fd.define_tensor([-1, 1, 8], contiguity=True), fd.define_scalar(D.Int), fd.define_scalar(D.Int)
    fd.add_output(fd.ops.rand_like(x))
    fd.add_output(fd.ops.randn_like(fd.ops.cast(x, D.Half)))
    fd.add_output(fd.ops.uniform(0.0, x.size(0), x.shape(), dtype=D.BFloat16))
    fd.add_output(fd.ops.normal(0.0, 1.0, [3, x.size(2)], rng_seed=seed, rng_offset=offset, dtype=D.Double))


CASES = {
    **VARIANTS,
    "scalar arithmetic": scalar_arithmetic,
    "vectors": vectors,
    "layer norm": layer_norm,
    "many ops": many_ops,
    "aliases": aliases,
    "random ops": random_ops,
    "welford": lambda fd: rows(fd, lambda x: fd.ops.welford(x, [0])),
    "var": lambda fd: rows(fd, lambda x: [fd.ops.var(x, [0, 1], 1, True)]),
    "max of half": lambda fd: fd.add_output(fd.ops.max(fd.define_tensor([-1, 4], contiguity=True, dtype=D.Half), [1])),
    "sum of bool": lambda fd: fd.add_output(fd.ops.sum(fd.define_tensor([-1, 4], contiguity=True, dtype=D.Bool))),
    "sum of expanded": lambda fd: fd.add_output(fd.ops.sum(fd.define_tensor([-1, 4], contiguity=[True, None]), [1])),
    "sum of broadcast": lambda fd: fd.add_output(fd.ops.sum(fd.define_tensor([-1, 1], contiguity=True), [1])),
    "squeeze": lambda fd: fd.add_output(fd.ops.squeeze(fd.define_tensor([1, -1, 1], contiguity=True), [0, -1])),
    "squeeze expanded": lambda fd: fd.add_output(fd.ops.squeeze(fd.define_tensor([3, -1], contiguity=[None, True]), [0], squeeze_expanded=True)),
    "expand keeps": lambda fd: fd.add_output(fd.ops.expand(fd.define_tensor([1, -1], contiguity=True), [7, -1])),
    "rank padding": lambda fd: fd.add_output(fd.ops.add(fd.define_tensor([-1, -1, 4]), fd.define_tensor([4]))),
    "fp8": lambda fd: fd.add_output(fd.ops.set(fd.define_tensor([-1], contiguity=True, dtype=D.Float8_e4m3fn))),
    "input is output": lambda fd: fd.add_output(fd.define_tensor([-1])),
    "iota of size": lambda fd: rows(fd, lambda x: [fd.ops.iota(x.size(0), 0, 1, D.Int32)]),
}
