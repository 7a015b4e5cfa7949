"""The text of tensors, axes and definitions is nvFuser's: counters for sizes, one line per domain, operators where C++ has them."""

from __future__ import annotations

import pytest
import torch

from weft import DataType as D
from weft import FusionDefinition, ParallelType


def lines_of(define) -> list[str]:
    """Return what stands in the braces of `print_math`, one string per op, without its outputs and indentation."""
    with FusionDefinition() as fd:
        fd.add_output(define(fd, fd.define_tensor([-1, -1], contiguity=True)))
    text = fd.fusion.print_math()
    body = text[text.index("%kernel_math {\n") + 15 : text.index("} // %kernel_math")]
    return [op.split("\n   = ", 1)[1] for op in body.split(";\n")[:-1]]


def test_values_alone():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4, 1], contiguity=True)
        h = fd.define_tensor([-1, 2], contiguity=True, dtype=D.Half)
        s = fd.define_scalar(D.Double)
        y = fd.ops.sum(x, [1])
        z = fd.ops.reshape(fd.define_tensor([4, 6]), [24])
    assert str(x) == "T0_g_float[iS0{i0}, iS1{4}, bS2{1}]" and str(x.domain()) == "[iS0{i0}, iS1{4}, bS2{1}]"
    assert str(h) == "T1_g___half[iS3{i4}, iS4{2}]" and str(s) == "d6"
    assert str(x.axis(0)) == "iS0{i0}" and str(x.axis(0).extent()) == "i0" and str(x.axis(1).extent()) == "4"
    assert str(x.size(0)) == "i0" and str(x.size(1)) == "4"
    assert str(y) == "T2_l_float[iS5{i0}, rS6{4}, bS7{1}]"
    assert str(z.domain()) == "[iS12{24}rf]" and str(z.axis(0).definition()) == "Merge: iS10{4} and iS11{6} -> iS12{24}rf"


def test_scheduled_axes():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.relu(x)
        fd.add_output(y)
        y.merge(0, 1)
        y.split(0, 128)
        y.axis(1).parallelize(ParallelType.block_x)
    assert str(y) == "T1_g_float[iS5{( ceilDiv(( i0 * i1 ), 128) )}, ithreadIdx.x6{128}]"
    assert str(y.axis(0).definition()) == "Split: iS4{( i0 * i1 )} by factor 128 -> iS5{( ceilDiv(( i0 * i1 ), 128) )}, ithreadIdx.x6{128}"


T0 = "T0_g_float[iS0{i0}, iS1{i1}]"


@pytest.mark.parametrize(
    "define, text",
    [
        (lambda fd, x: fd.ops.relu(x), f"relu({T0})"),
        (lambda fd, x: fd.ops.exp(x), f"expf({T0})"),
        (lambda fd, x: fd.ops.neg(x), f"-{T0}"),
        (lambda fd, x: fd.ops.add(x, x), f"{T0}\n   + {T0}"),
        (lambda fd, x: fd.ops.mul(x, 2.0), f"{T0}\n   * double(2)"),
        (lambda fd, x: fd.ops.gt(x, 0.5), f"{T0}\n   > double(0.5)"),
        (lambda fd, x: fd.ops.pow(x, x), f"pow({T0}\n  , {T0})"),
        (lambda fd, x: fd.ops.cast(x, D.Half), f"__float2half({T0})"),
        (lambda fd, x: fd.ops.cast(x, D.Double), f"(double)({T0})"),
        (lambda fd, x: fd.ops.sum(x, [1]), f"reduction( {T0}, op = add, initial value = float(0), allreduce = false )"),
        (lambda fd, x: fd.ops.max(x, [0]), f"reduction( {T0}, op = fmax, initial value = float(-inf), allreduce = false )"),
        (lambda fd, x: fd.ops.broadcast(x, [False, True, False]), f"broadcast( {T0}, flags = {{false, true, false}} )"),
        (lambda fd, x: fd.ops.permute(x, [1, 0]), f"Set.Permute( {T0}, cache_op=Unspecified )"),
        (lambda fd, x: fd.ops.set(x), f"Set( {T0}, cache_op=Unspecified )"),
        (lambda fd, x: fd.ops.full([3, 4], 1.0, D.Float), "full({3, 4}, double(1))"),
    ],
)
def test_one_op(define, text):
    assert lines_of(define) == [text]


def test_a_whole_definition():
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([2, 3], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.where(fd.ops.lt(a, b), a, b))
    assert fd.fusion.print_math() == (
        "Inputs:\n  T0_g_float[iS0{2}, iS1{3}]\n  T1_g_float[iS2{2}, iS3{3}]\nOutputs:\n  T3_g_float[iS6{2}, iS7{3}]\n\n%kernel_math {\n"
        "T2_l_bool[iS4{2}, iS5{3}]\n   = T0_g_float[iS0{2}, iS1{3}]\n   < T1_g_float[iS2{2}, iS3{3}];\n"
        "T3_g_float[iS6{2}, iS7{3}]\n   = where(T2_l_bool[iS4{2}, iS5{3}]\n  , T0_g_float[iS0{2}, iS1{3}]\n  , T1_g_float[iS2{2}, iS3{3}]);\n"
        "} // %kernel_math \n\n"
    )


def test_no_scheduler_names_the_line():
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([4, 4]) for _ in range(2))
        fd.add_output(fd.ops.matmul(a, b))  # the line
    with pytest.raises(RuntimeError, match="Can not find a scheduler to schedule fusion segment(.|\n)* matmul is at .*# the line"):
        fd.execute([torch.zeros(4, 4)] * 2, _enable_options=["fuse_matmul"], _disable_options=["matmul_expr_eval"])


def test_a_scheduled_fusion_and_its_transforms():
    x = torch.randn(4, 6)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.from_pytorch(x)))
    fd.execute([x])
    plain, full = (fd.fec.get_scheduled_ir([x], tensor_transforms=flag) for flag in (False, True))
    assert plain.startswith("Inputs:\n  T0_g_float[") and "\n%kernel {\n" in plain and plain.endswith("} // %kernel\n") and "TransformPrinter" not in plain
    head, transforms = full.split("\nTransformPrinter : \n")
    assert plain == head + "} // %kernel\n" and fd.fec.get_most_recent_scheduled_ir(tensor_transforms=True) == full
    output = transforms[transforms.index("T1_g_float[") :]
    assert " logical domain : (iS2{i0}, iS3{i1})\n contiguity: t t\n  Merge: iS2{i0} and iS3{i1} -> " in output and "\n loop domain : (iblockIdx.x" in output
