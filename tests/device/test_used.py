"""Leaving out of the library what a kernel does not use: nothing that is needed goes, and the machine code stays the same."""

from __future__ import annotations

import struct

import pytest

from weft import DataType, FusionDefinition, compiler
from weft.arch import H200
from weft.device.library import _primitives, registry, translation_unit
from weft.device.used import UnbalancedLibrary, declarations, only_used
from weft.runtime import nvrtc

BLOCKS = ["primitives", *registry()]

needs_nvrtc = pytest.mark.skipif(not nvrtc.candidates(), reason="no NVRTC")


def text_of(block: str) -> str:
    return _primitives() if block == "primitives" else registry()[block].text


@pytest.mark.parametrize("block", BLOCKS)
def test_the_declarations_of_a_block_are_its_text(block: str) -> None:
    found = declarations(text_of(block))
    assert "".join(d.text for d in found) == text_of(block)
    assert len(found) > 3  # it has been cut: a namespace's two ends and what is between


LIBRARY = """
#define TWICE(NAME) int NAME(int x) { return helper(x) * 2; }
namespace weft {
// Mentions unused() and "unused" in a comment.
struct Pair { int a, b; };
WEFT_DEVICE int helper(int x) { return x; }
WEFT_DEVICE int unused(Pair p) { if (p.a) { return p.b; } return '}'; }
TWICE(doubled)
template <class T> WEFT_DEVICE T first(T (&values)[2]) { const char* text = "unused"; return values[0]; }
template <> WEFT_DEVICE int first<int>(int (&values)[2]) { return unused(Pair{1, 2}); }
WEFT_DEVICE Pair operator+(Pair x, Pair y) { return x; }
}  // namespace weft
"""


def kept(text: str) -> set[str]:
    (short,) = only_used([LIBRARY], text)
    marks = {
        "helper": "int helper(",
        "unused": "int unused(",
        "doubled": "TWICE(doubled)",
        "first": "T first(",
        "first<int>": "first<int>(",
        "Pair": "struct Pair",
    }
    return {name for name, mark in marks.items() if mark in short}


def test_what_a_kernel_mentions_stays_with_all_that_it_needs() -> None:
    always = {"Pair"}  # what the operator needs, which no name calls
    assert kept("") == always
    assert kept("weft::doubled(1)") == always | {"doubled", "helper"}  # by way of the macro
    assert kept("weft::helper(1)") == always | {"doubled", "helper"}  # the macro could declare it: more than is needed
    assert kept("weft::first(v)") == always | {"first", "first<int>", "unused"}  # all overloads and specializations
    assert kept("// helper") == always


def test_lines_of_the_preprocessor_and_namespaces_stay() -> None:
    (short,) = only_used([LIBRARY], "")
    assert "#define TWICE" in short and short.count("namespace weft {") == 1 and short.rstrip().endswith("}  // namespace weft")


def test_a_line_of_the_preprocessor_ends_where_it_ended() -> None:
    """What follows a macro's definition is not drawn into it when the declarations between them go."""
    (short,) = only_used(["#define ONE(NAME) int NAME;\nONE(first) ONE(second)\nONE(third)\n"], "second third")
    assert short.split() == ["#define", "ONE(NAME)", "int", "NAME;", "ONE(second)", "ONE(third)"] and short.startswith("#define ONE(NAME) int NAME;\n")


def test_a_text_that_ends_inside_a_declaration_is_refused() -> None:
    with pytest.raises(UnbalancedLibrary, match="W432: the device library's text ends inside a declaration that begins with 'int f"):
        declarations("int f() { if (x) { return 1; }\n")


@needs_nvrtc
@pytest.mark.parametrize("block", BLOCKS)
def test_each_name_compiles_with_what_is_kept_for_it(block: str) -> None:
    """Every function of the library by itself: its text and what it needs is a text that compiles."""
    library = nvrtc.load("").library
    names = sorted({name for d in declarations(text_of(block)) if len(d.names) == 1 and not d.is_line for name in d.names})
    assert names or block == "repack"
    for start in range(0, len(names), 8):
        some = names[start : start + 8]
        unit = translation_unit(
            f'/**/ extern "C" __global__ void k() {{}}\n#define KEEP {" ".join(some)}', [] if block == "primitives" else [block], shortened=True
        )
        status, log, _, _ = nvrtc._run(library, unit, "k", [*nvrtc.command_line("sm_90a", max_registers=None), "-minimal"], False)
        assert status == 0, f"{some}: {log}"


def kernels() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Texts and blocks of a few kernels with most of the library in them."""
    found = {}
    for name in ("softmax", "dropout", "column sums", "complex"):
        with FusionDefinition() as fd:
            dtype = DataType.ComplexFloat if name == "complex" else DataType.BFloat16
            x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
            if name == "complex":
                y = fd.ops.exp(fd.ops.mul(x, x))
            elif name == "softmax":
                e = fd.ops.exp(fd.ops.sub(fd.ops.cast(x, DataType.Float), fd.ops.max(fd.ops.cast(x, DataType.Float), dims=[1], keepdim=True)))
                y = fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True))
            elif name == "dropout":
                y = fd.ops.mul(fd.ops.uniform(0.0, 1.0, shape=x.shape(), dtype=DataType.Float), fd.ops.tanh(fd.ops.cast(x, DataType.Float)))
            else:
                y = fd.ops.sum(fd.ops.cast(x, DataType.Float), dims=[0])
            fd.add_output(y)
        sizes = {axis.sym: extent for axis, extent in zip(fd.fusion.inputs()[0].get_logical_domain(), (16384, 4096))}
        proposal = compiler.propose(fd.fusion, sizes, {}, H200)
        program = compiler.compile_program(fd.fusion, proposal, DataType.Int32, name="k")
        found[name] = (program.text, tuple(program.blocks))
    return found


def code(cubin: bytes) -> bytes:
    """The instructions of the kernel: section .text.k (what surrounds them differs by tables that nothing uses)."""
    table, entry_bytes, count, names_index = struct.unpack_from("<Q", cubin, 40)[0], *struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<II4Q", cubin, table + entry_bytes * n) for n in range(count)]  # name, type, flags, address, offset, size
    names = sections[names_index][4]
    found = [cubin[s[4] : s[4] + s[5]] for s in sections if cubin[names + s[0] :].split(b"\0", 1)[0] == b".text.k"]
    assert len(found) == 1 and len(found[0]) > 256
    return found[0]


def opcodes(instructions: bytes) -> bytes:
    """The first 12 bits of each instruction of 16 bytes, which say what it does."""
    return b"".join(bytes([instructions[n], instructions[n + 1] & 0xF]) for n in range(0, len(instructions), 16))


@needs_nvrtc
def test_the_machine_code_stays_the_same() -> None:
    for name, (text, blocks) in kernels().items():
        full, short = translation_unit(text, blocks), translation_unit(text, blocks, shortened=True)
        assert len(short) < 0.8 * len(full), name
        of_short, of_full = (code(nvrtc.compile_cubin(unit, "k", "sm_90a").cubin) for unit in (short, full))
        if nvrtc.load().version < (13, 5):  # older ones keep tables that nothing uses, so that others have other addresses
            of_short, of_full = opcodes(of_short), opcodes(of_full)
        assert of_short == of_full, name
