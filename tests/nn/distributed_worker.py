"""What each process of tests/nn/test_distributed.py runs: `python distributed_worker.py PART RANK WORLD FILE [DEVICE]`. It ends with an error where results differ.

Read first: `PARTS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import weft.nn
from weft.nn import functional as W

EXACT = {"atol": 1e-11, "rtol": 1e-9}
SIZE, HEADS, TOKENS = 16, 4, 8


class Block(nn.Module):
    """A Llama block without positions: RMSNorm, causal attention, RMSNorm, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = weft.nn.RMSNorm(SIZE, eps=1e-6), weft.nn.RMSNorm(SIZE, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(SIZE, 4 * SIZE, bias=False), nn.Linear(SIZE, 4 * SIZE, bias=False), nn.Linear(4 * SIZE, SIZE, bias=False)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, SIZE // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out((W.scaled_causal_softmax(q @ k.mT, 0.5) @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(W.swiglu(self.gate(y), self.up(y)))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = weft.nn.RMSNorm(SIZE, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)  # type: ignore[no-any-return]


def a_model(device: str) -> Model:
    torch.manual_seed(2)
    return Model().to(device, torch.float64)


def batch(device: str, rows: int) -> torch.Tensor:
    return torch.randn(rows, TOKENS, SIZE, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(device)


def gradients_of_one(device: str, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model = a_model(device)
    model(x).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def same_gradients(model: nn.Module, wanted: dict[str, torch.Tensor]) -> None:
    found = {name: p.grad for name, p in model.named_parameters()}
    assert set(found) == set(wanted)
    for name, grad in wanted.items():
        torch.testing.assert_close(whole(found[name]), grad, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


# ---------------------------------------------------------------- parts
def fsdp(mesh: DeviceMesh, device: str) -> None:
    """FSDP2: each process has half of the batch and half of the parameters."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = batch(device, 2 * world)
    model = a_model(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    y = model(x.chunk(world)[rank])
    torch.testing.assert_close(y, a_model(device)(x).chunk(world)[rank], **EXACT)
    y.square().mean().backward()
    same_gradients(model, gradients_of_one(device, x))


def data_parallel(mesh: DeviceMesh, device: str) -> None:
    """DDP: gradients are those of the whole batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = batch(device, 2 * world)
    model = nn.parallel.DistributedDataParallel(a_model(device), device_ids=[rank] if device.startswith("cuda") else None)
    model(x.chunk(world)[rank]).square().mean().backward()
    same_gradients(model.module, gradients_of_one(device, x))


def tensor_parallel(mesh: DeviceMesh, device: str) -> None:
    """Heads and columns of the MLP are split; norms work on a part of the tokens each."""
    x = batch(device, 2)
    model = a_model(device)
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "norm1": SequenceParallel(use_local_output=False), "norm2": SequenceParallel(use_local_output=False),
            **{name: ColwiseParallel(input_layouts=Shard(1)) for name in ("q", "k", "v", "gate", "up")},
            **{name: RowwiseParallel(output_layouts=Shard(1), use_local_output=False) for name in ("out", "down")},
        })  # fmt: skip
    parallelize_module(model, mesh, {"norm": SequenceParallel(use_local_output=False)})
    y = model(distribute_tensor(x, mesh, [Shard(1)]))
    torch.testing.assert_close(whole(y), a_model(device)(x), **EXACT)
    y.square().mean().backward()
    same_gradients(model, gradients_of_one(device, x))


ON_CPUS = ("softmax of columns", "scaled_causal_softmax", "add_rms_norm", "group_norm", "swiglu packed", "rope", "cross_entropy")
"""What the emulator has time for; GPUs take all."""


def functions(mesh: DeviceMesh, device: str) -> None:
    """Each function over tensors cut along each axis in turn, and over whole ones: results and gradients of plain tensors."""
    from nn_functions import CASES, SMALL, flat, floats, with_gradients

    for name, case in CASES.items():
        if device == "cpu" and name not in ON_CPUS or name.startswith("embedding"):  # these are looked up by torch, which has rules of its own
            continue
        inputs = case.make({**SMALL, "m": 5}, device=device)
        want = with_gradients(case.theirs, inputs)
        joined = name in ("cross_entropy of images", "group_norm")  # their axes are reshaped by torch, which refuses cut ones
        for dim in (None, 0) if joined else (None, *range(inputs[0].dim())):
            given = [distribute_tensor(t.detach(), mesh, [Replicate() if i or dim is None else Shard(dim)]).requires_grad_(t.requires_grad) for i, t in enumerate(inputs)]
            outputs = flat(case.ours(*given))
            g = torch.Generator().manual_seed(3)
            grads = [distribute_tensor(torch.randn(o.shape, generator=g, dtype=torch.float64).to(device), mesh, o.placements) for o in outputs]
            got = torch.autograd.grad(outputs, floats(given), grads, allow_unused=True)
            for a, b in zip([*outputs, *got], [*want[0], *want[1]]):
                assert (a is None) == (b is None), (name, dim)
                if a is not None and b is not None:
                    torch.testing.assert_close(whole(a), b, **EXACT, msg=lambda text, name=name, dim=dim: f"{name} cut along {dim}: {text}")
            if name in ("add_rms_norm", "swiglu packed", "gelu", "rope", "layer_norm") and dim == 0:
                assert outputs[0].placements == (Shard(0),), name


def operators(mesh: DeviceMesh, device: str) -> None:
    """An operator made from a definition, and what is refused."""
    with weft.FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1], dtype=torch.float64), fd.define_tensor([-1], dtype=torch.float64)
        fd.add_output(fd.ops.softmax(x, -1) * w)
    op = weft.op("sharded_test::weighed", fd)
    x, w = torch.randn(6, 4, dtype=torch.float64, device=device), torch.rand(4, dtype=torch.float64, device=device)
    dist.broadcast(x, 0), dist.broadcast(w, 0)
    cut, all_of = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_(), distribute_tensor(w, mesh, [Replicate()]).requires_grad_()
    y = op(cut, all_of)
    assert y.placements == (Shard(0),)
    y.square().sum().backward()
    xg, wg = x.clone().requires_grad_(), w.clone().requires_grad_()
    (torch.softmax(xg, -1) * wg).square().sum().backward()
    for a, b in ((y, torch.softmax(x, -1) * w), (cut.grad, xg.grad), (all_of.grad, wg.grad)):
        torch.testing.assert_close(whole(a), b, **EXACT)
    for call, words in (
        (lambda: W.rms_norm(cut, (4,), w), "W156"), (lambda: W.dropout_add_layer_norm(cut, cut, all_of, None, 0.5), "random numbers"),
        (lambda: fd.execute([cut, all_of]), "W147"),
    ):  # fmt: skip
        try:
            call()
        except weft.UserError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)


def compiled(mesh: DeviceMesh, device: str) -> None:
    """torch.compile(fullgraph=True) over DTensors: functions, and the tensor-parallel model, equal one process."""

    def loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y, total = W.rms_norm(x, (SIZE,), w, 1e-6, residual=x * 2)
        return W.cross_entropy(W.softmax(y, -1) * total, target, reduction="sum")

    plain = [batch(device, 2).flatten(0, 1), torch.rand(SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)]
    target = torch.arange(2 * TOKENS, device=device) % SIZE
    leaves = [t.clone().requires_grad_() for t in plain]
    want = loss(*leaves, target)
    for dim in (0, 1):
        given = [distribute_tensor(t, mesh, [Replicate() if i else Shard(dim)]).requires_grad_() for i, t in enumerate(plain)]
        got = torch.compile(loss, fullgraph=True, backend="aot_eager")(*given, distribute_tensor(target, mesh, [Shard(0)]))
        pairs = zip([got, *torch.autograd.grad(whole(got), given)], [want, *torch.autograd.grad(want, leaves, retain_graph=True)])
        for a, b in pairs:
            torch.testing.assert_close(whole(a), b, **EXACT, msg=lambda text, dim=dim: f"cut along {dim}: {text}")


def uneven(mesh: DeviceMesh, device: str) -> None:
    """Shards of different sizes, in eager torch and in graphs; gradients come from collectives that are waited for. Each process has a graph of its own, also
    where they share torch's caches. Sizes that Dynamo leaves open are refused: it has no guard for them."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return W.softmax(W.rms_norm(x, (SIZE,), w, 1e-6) * 2, -1) * torch.tanh(x)

    options = {"emulate": True, "strict": True}
    for rows in (5, 7, 8):
        torch.compiler.reset()  # torch has no guard for the size of a whole tensor: rank 0 has 4 rows of 7 and of 8
        x, w = (torch.randn(size, generator=torch.Generator().manual_seed(4)).to(device) for size in ((rows, SIZE), (SIZE,)))
        leaves = [t.double().requires_grad_() for t in (x, w)]
        want = f(*leaves)
        want.square().sum().backward()
        for call in (f, torch.compile(f, backend="weft", options=options, fullgraph=True)):
            given = [distribute_tensor(x, mesh, [Shard(0)]).requires_grad_(), distribute_tensor(w, mesh, [Replicate()]).requires_grad_()]
            y = call(*given)
            y.square().sum().backward()
            for a, b in ((y, want), *((t.grad, leaf.grad) for t, leaf in zip(given, leaves))):
                torch.testing.assert_close(whole(a).double(), b, atol=1e-5, rtol=1e-5)


    torch.compiler.reset()
    given = [(distribute_tensor(torch.randn(rows, SIZE), mesh, [Shard(0)]), distribute_tensor(torch.randn(SIZE), mesh, [Replicate()])) for rows in (5, 7)]
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    assert compiled(*given[0]).shape == (5, SIZE)
    try:
        compiled(*given[1])
    except Exception as error:  # noqa: BLE001  (Dynamo wraps it)
        assert "W156" in str(error) and "open size" in str(error), error
    else:
        raise AssertionError("an open size")


def collectives(mesh: DeviceMesh, device: str) -> None:
    """What a collective gives before it has ended is waited for: by functions, as a gradient, and by definitions."""
    group = mesh.get_group()
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(5)).to(device)
    want = (x * 2).double().softmax(-1)
    with weft.FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1, -1], contiguity=True)))
    for _ in range(3):  # warm calls, too
        torch.testing.assert_close(W.softmax(all_reduce(x, "sum", group), -1).double(), want, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(fd.execute([all_reduce(x, "sum", group)])[0].double(), (x * 2).double().exp(), atol=1e-6, rtol=1e-5)
        leaf, exact = (t.requires_grad_() for t in (x.clone(), x.double()))
        W.softmax(leaf, -1).backward(all_reduce(x, "sum", group))
        exact.softmax(-1).backward(2 * x.double())
        torch.testing.assert_close(leaf.grad.double(), exact.grad, atol=1e-6, rtol=1e-5)  # type: ignore[union-attr]


PARTS: dict[str, Callable[[DeviceMesh, str], None]] = {f.__name__: f for f in (fsdp, data_parallel, tensor_parallel, functions, operators, compiled, uneven, collectives)}


def main(parts: str, rank: int, world: int, file: str, device: str = "cpu") -> None:
    torch.set_num_threads(1)
    backend, name = ("nccl", f"cuda:{rank}") if device == "cuda" else ("gloo", "cpu")
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=world)
    mesh = init_device_mesh(device, (world,))
    for part in parts.split(","):
        PARTS[part](mesh, name)
        print(f"{part}: process {rank} of {world} agrees", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
