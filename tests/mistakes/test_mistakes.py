"""Mistakes of users: each has a code, the user's line, and a remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft import DataType, FusionDefinition, WeftError

# (what is written, code); fd is a definition with the inputs x, y [-1, -1], i of integers, w [3, 5]; other belongs to another definition
MISTAKES = [
    ('fd.define_tensor([2.5])', 'W101'),
    ('fd.define_tensor(shape=[-2])', 'W103'),
    ('fd.define_tensor(shape=[2, 3], contiguity=[True])', 'W104'),
    ('fd.define_tensor(shape=[1], contiguity=[True])', 'W105'),
    ('fd.define_tensor(shape=[2], dtype="float")', 'W101'),
    ('fd.define_tensor(shape=[2, 2], contiguity=True, stride_order=[0, 0])', 'W106'),
    ('fd.define_tensor(sizes=[2], strides=[-1])', 'W107'),
    ('fd.define_tensor(sizes=[2, 3], strides=[1])', 'W108'),
    ('fd.define_tensor()', 'W101'),
    ('fd.define_scalar("a")', 'W101'),
    ('fd.define_scalar(2 + 1j, torch.float32)', 'W109'),
    ('fd.ops.add(x)', 'W101'),
    ('fd.ops.add(x, y, x)', 'W101'),
    ('fd.ops.add(x, "1")', 'W304'),
    ('fd.ops.add(x, None)', 'W304'),
    ('fd.ops.add(x, [1, 2])', 'W304'),
    ('fd.ops.where(x, y)', 'W101'),
    ('fd.ops.sum(x, [5])', 'W321'),
    ('fd.ops.sum(x, ["a"])', 'W304'),
    ('fd.ops.sum(x, [0], keepdim=1)', 'W304'),
    ('fd.ops.max(x, [0], dtype=torch.float32)', 'W330'),
    ('fd.ops.var(x, 0, correction="a")', 'W304'),
    ('fd.ops.permute(x, [0, 0])', 'W326'),
    ('fd.ops.permute(x, [0])', 'W320'),
    ('fd.ops.permute(x, [0, 2])', 'W326'),
    ('fd.ops.squeeze(x, [0])', 'W324'),
    ('fd.ops.broadcast(x, [True])', 'W320'),
    ('fd.ops.broadcast(x, [1, 0, 0])', 'W304'),
    ('fd.ops.expand(x, [2])', 'W320'),
    ('fd.ops.expand(w, [2, 5])', 'W323'),
    ('fd.ops.broadcast_in_dim(x, [2, 3], [0])', 'W320'),
    ('fd.ops.stride_order(x, [0, 0])', 'W326'),
    ('fd.ops.cast(x, 3)', 'W304'),
    ('fd.ops.cast(x)', 'W101'),
    ('fd.ops.full([2], "a", torch.float32)', 'W304'),
    ('fd.ops.full([-2], 1.0, torch.float32)', 'W325'),
    ('fd.ops.iota(-1)', 'W325'),
    ('fd.ops.uniform(0.0, 1.0, [2], rng_seed=1)', 'W340'),
    ('fd.ops.uniform(0.0, 1.0, [2], dtype=torch.int64)', 'W303'),
    ('fd.ops.normal(0.0, 1.0, [2.5])', 'W304'),
    ('fd.ops.bitwise_and(x, y)', 'W303'),
    ('fd.ops.bitwise_not(x)', 'W303'),
    ('fd.ops.complex(x, 1.0)', 'W304'),
    ('fd.ops.reshape(x, [-1, -1])', 'W361'),
    ('fd.ops.slice(x, [0], [1])', 'W367'),
    ('fd.ops.slice(x, [0, 0], [1, 1], [2, 2])', 'W367'),
    ('fd.ops.pad(x, [1])', 'W368'),
    ('fd.ops.cat([])', 'W371'),
    ('fd.ops.cat(x, 0)', 'W304'),
    ('fd.ops.softmax(x, 7)', 'W321'),
    ('fd.ops.softmax(i, -1)', 'W303'),
    ('fd.ops.layer_norm(x, [3, 3, 3])', 'W327'),
    ('fd.ops.rms_norm(i, [-1])', 'W303'),
    ('fd.ops.gelu(x, "fast")', 'W328'),
    ('fd.ops.dropout(x, 1.5)', 'W328'),
    ('fd.ops.norm(x, -2)', 'W328'),
    ('fd.ops.mse_loss(x, y, "average")', 'W328'),
    ('fd.ops.argmax', 'W120'),
    ('fd.ops.einsum', 'W120'),
    ('fd.ops.bmm', 'W120'),
    ('fd.ops.layernorm', 'W120'),
    ('fd.ops.stack', 'W120'),
    ('fd.ops.chunk', 'W120'),
    ('fd.ops.clone', 'W120'),
    ('fd.ops.conv2d', 'W120'),
    ('x.backward', 'W120'),
    ('x.cuda', 'W120'),
    ('x.item', 'W120'),
    ('x.numpy', 'W120'),
    ('x.requires_grad_', 'W120'),
    ('x.sort', 'W120'),
    ('x + torch.ones(2)', 'W304'),
    ('torch.ones(2) @ x if False else x @ torch.ones(2)', 'W304'),
    ('x[torch.tensor(1)]', 'W134'),
    ('x[0, 1, 2]', 'W134'),
    ('x[1.5]', 'W134'),
    ('x["a"]', 'W134'),
    ('x[..., ...]', 'W134'),
    ('bool(x)', 'W132'),
    ('list(x)', 'W133'),
    ('x or y', 'W132'),
    ('x.to("cuda")', 'W304'),
    ('x.to(torch.device("cpu"))', 'W304'),
    ('x.permute(0)', 'W320'),
    ('x.squeeze(0)', 'W324'),
    ('x.sum(3)', 'W321'),
    ('fd.add_output(3)', 'W101'),
    ('fd.add_output(other)', 'W125'),
    ('fd.add_output(x, alias_input=2)', 'W101'),
    ('fd.add_output(x * 2.0, alias_input=y * 1.0)', 'W126'),
    ('fd.add_output(x.half(), alias_input=y)', 'W127'),
    ('fd.ops.mul(x, other)', 'W311'),
    ('fd.execute([])', 'W121'),
    ('weft.op("noname", fd)', 'W145'),
    ('weft.compute_tensor_descriptor([2], [1, 1])', 'W108'),
    ('weft.LRUCache(0)', 'W130'),
    ('weft.LRUCache("a")', 'W101'),
    ("x.mean(dim=4)", "W304"),
    ("x.layer_norm()", "W304"),
]


def names() -> dict[str, Any]:
    """Return what the texts name."""
    with FusionDefinition() as elsewhere:
        other = elsewhere.define_tensor([2])
        elsewhere.add_output(other)
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        i, w = fd.define_tensor([-1, -1], contiguity=True, dtype=torch.int64), fd.define_tensor([3, 5], contiguity=True)
    return {"fd": fd, "x": x, "y": y, "i": i, "w": w, "other": other, "torch": torch, "weft": weft, "DataType": DataType}


@pytest.mark.parametrize(("text", "code"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_a_mistake_has_a_code_a_line_and_a_remedy(text: str, code: str) -> None:
    with pytest.raises(WeftError) as caught:
        eval(text, names())
    message = str(caught.value)
    assert message.startswith(code + ": "), message
    fix = message.partition("\n  fix: ")[2]
    assert "\n  at   " in message and len(fix) > 8, message
