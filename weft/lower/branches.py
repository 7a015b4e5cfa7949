"""Computes each side of a selection by position in its own branch: of a cat, only the part that contains the vector.

    load a; load b; for lanes { c = select(position < n, f(a), g(b)) }      if (position < n) { load a; for lanes { c = f(a) } } else { load b; ... g(b) }

A vector that lies in both parts goes through a third branch, as written. Whether threads of a warp go different ways is asked of the kernel's own positions:
where too many do, both ways one after the other cost more than both at once, and nothing is changed. Owns these branches; conditions are those of
`weft.lower.masks`. Read first: `branch_selections`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..expr import FALSE, TRUE, ZERO, Sym, add, conjunction, conjuncts, less, sub, terms, variables
from ..ir.enums import MemoryType
from ..ir.graph_ops import LookupOp
from ..remembered import remembered
from .contracts import lowering_pass
from .dead_code import drop_unread
from .kernel_ir import Access, Allocate, Branch, Buffer, If, Kernel, Loop, Masked, Move, Nest, Op, Repack, Statement, copied, walk
from .state import BuildState
from .warps import divided_warps

MOST_MIXED = 8
"""At most one warp in so many may diverge. An estimate: such a warp waits for memory twice."""
LEAST_SAVED = 3
"""On average at least one op in so many must be skipped. An estimate: a branch costs about as much as a few ops."""
MOST_BRANCHES = 16
"""Of one selection including nested ones: each branch is a copy of the statements."""


@lowering_pass(needs=["grouped predicates"], before=["unrolled"])
def branch_selections(kernel: Kernel, state: BuildState) -> Kernel:
    """Turn a `where` on positions into a branch, and leave the computation of the unused operand out of each side.

    Before: `taken` of a `where` says when some, and when all, lanes of a vector take its second operand.   After: where that is profitable, a Branch contains
    them and what is computed only for them.
    Here because: predicates are Ifs, so statements of one body run together, and no later pass moves ops; loops are not marked as unrolled yet.
    """
    if any(s.taken for s in walk(kernel.body) if isinstance(s, Op)):
        kernel.body = _Brancher(kernel).body(kernel.body)
    return kernel


@dataclass
class _Leaf:
    """The statements of one branch. known: conditions that hold in it. sources: for each statement, the one it is a copy of."""

    statements: list[Statement]
    known: tuple[Sym, ...]
    sources: list[Statement]


@dataclass
class _Tree:
    """Branches by their tests, outermost first."""

    test: Sym
    yes: "_Tree | _Leaf"
    no: "_Tree | _Leaf"

    def leaves(self) -> Iterator[_Leaf]:
        for side in (self.yes, self.no):
            yield from [side] if isinstance(side, _Leaf) else side.leaves()


@dataclass
class _Brancher:
    kernel: Kernel
    users: dict[Buffer, list[Statement]] = field(default_factory=dict)  # what reads or writes it
    agreed: dict[Sym, bool] = field(default_factory=dict)  # answers of `agrees`

    def __post_init__(self) -> None:
        for s in walk(self.kernel.body):
            for buffer in _read(s) | _written(s):
                self.users.setdefault(buffer, []).append(s)

    def body(self, statements: list[Statement]) -> list[Statement]:
        out: list[Statement] = []
        for s in statements:
            if isinstance(s, Loop) and _is_flat(s) and (found := self.branched(out, s)) is not None:
                out = found
                continue
            if isinstance(s, Nest) and not isinstance(s, Masked):
                s.body = self.body(s.body)
            out.append(s)
        return out

    def branched(self, before: list[Statement], loop: Loop) -> list[Statement] | None:
        """Return the statements before a loop over lanes, and the loop, as branches; None if that is not profitable."""
        if not self.tests_of([loop]):
            return None
        moved = self.movable(before, loop)
        region = [*moved, loop]
        tree = self.split(_Leaf(region, (), region), 1)
        if not isinstance(tree, _Tree):
            return None
        leaves = list(tree.leaves())
        for leaf in leaves:
            _drop_unread(leaf)
        count = _weight(region)
        if LEAST_SAVED * (count * len(leaves) - sum(_weight(leaf.statements) for leaf in leaves)) < count * len(leaves):
            return None
        everywhere = set.intersection(*({id(s) for s in leaf.sources} for leaf in leaves)) - {id(loop)}
        own = {o.buffer for s in moved if id(s) not in everywhere for o in s.outputs}
        kept = [s for s in before if id(s) in everywhere or not (s in moved or isinstance(s, Allocate) and s.buffer in own)]
        return [*kept, self.written(tree, everywhere, own)]

    def written(self, tree: _Tree, everywhere: set[int], own: set[Buffer]) -> Branch:
        def block(side: _Tree | _Leaf) -> list[Statement]:
            if isinstance(side, _Tree):
                return [self.written(side, everywhere, own)]
            out: list[Statement] = []
            for s, source in zip(side.statements, side.sources):
                if id(source) not in everywhere:
                    out += [Allocate(o.buffer) for o in s.outputs if o.buffer in own] if isinstance(s, Op) else []
                    out.append(_simplified(s, side.known))
            return out

        return Branch.of(tree.test, block(tree.yes), block(tree.no))

    def movable(self, before: list[Statement], loop: Loop) -> list[Op]:
        """Return the ops before a loop whose results only it reads, in order."""
        inside = {id(s) for s in walk([loop])}
        declared = {s.buffer for s in before if isinstance(s, Allocate)}
        changed: set[Buffer] = set()  # by statements after it that stay
        out: list[Op] = []
        for s in reversed(before):
            if isinstance(s, Allocate):
                continue
            if type(s) is not Op or s.predicate is not TRUE or any(o.buffer.memory is not MemoryType.local for o in s.outputs):
                break
            is_own = all(o.buffer in declared and all(r is s or id(r) in inside for r in self.users[o.buffer]) for o in s.outputs)
            if is_own and not s.taken and not _read(s) & (_written(s) | changed):
                out.append(s)
                inside.add(id(s))
            else:
                changed |= _written(s)
        return out[::-1]

    # -- what to ask
    def tests_of(self, statements: list[Statement]) -> list[Op]:
        return [s for s in walk(statements) if isinstance(s, Op) and s.taken and not any(part in (TRUE, FALSE) for part in s.taken[:1])]

    def split(self, leaf: _Leaf, branches: int) -> _Tree | _Leaf:
        """Return a leaf as branches by the selection that decides about the most ops, if warps mostly agree on one."""
        leaf = self.settled(leaf)
        loop = leaf.statements[-1]
        assert isinstance(loop, Loop)
        for taken in reversed(list(dict.fromkeys(choice.taken for choice in self.tests_of([loop])))):  # the last one is the outermost
            some, every = (_known(part, leaf.known) for part in taken)
            every = conjunction([some, every])
            if branches >= MOST_BRANCHES or loop.index in variables(every) or not (self.agrees(some) and self.agrees(every)):
                continue
            more = branches + (1 if every in (some, FALSE) else 2)
            no = self.split(_decided(leaf, {taken: False}, _denied(some)), more)
            if every is not some:
                no = _Tree(some, _Leaf(_copies(leaf.statements), (*leaf.known, *conjuncts(some)), leaf.sources), no)
            if every is FALSE:  # no vector has only such lanes
                return no
            return _Tree(every, self.split(_decided(leaf, {taken: True}, conjuncts(every)), branches + 1), no)
        return leaf

    def settled(self, leaf: _Leaf) -> _Leaf:
        """Decide all selections whose condition follows from what is known, at once: each decision alone would copy all statements."""
        answers: dict[tuple[Sym, ...], bool] = {}
        for taken in dict.fromkeys(choice.taken for choice in self.tests_of([leaf.statements[-1]])):
            some, every = (_known(part, leaf.known) for part in taken)
            if some is FALSE or some is TRUE and every is TRUE:
                answers[taken] = some is TRUE
        return _decided(leaf, answers, ()) if answers else leaf

    def agrees(self, test: Sym) -> bool:
        """Tell whether the threads of a warp mostly have the same answer; False if it depends on unknown sizes."""
        found = self.agreed.get(test)
        if found is None:
            divided = divided_warps(test, self.kernel.block)
            found = self.agreed[test] = divided is not None and divided * MOST_MIXED <= 1
        return found


# ---------------------------------------------------------------- leaves
def _is_flat(loop: Loop) -> bool:
    is_plain = all(type(s) is Op or isinstance(s, (Allocate, If)) for s in walk(loop.body))
    return is_plain and loop.extent.is_const and loop.start is ZERO


def _read(s: Statement) -> set[Buffer]:
    if isinstance(s, (Move, Repack)):
        return {s.source} if isinstance(s, Move) else {s.buffer}
    return {o.buffer for o in s.operands if isinstance(o, Access)} if isinstance(s, Op) else set()


def _written(s: Statement) -> set[Buffer]:
    if isinstance(s, Move):
        return {s.target}
    return {o.buffer for o in s.outputs} if isinstance(s, Op) else set()


def _copies(statements: Iterable[Statement]) -> list[Statement]:
    return [copied(s, {}) for s in statements]


def _decided(leaf: _Leaf, answers: dict[tuple[Sym, ...], bool], known: tuple[Sym, ...]) -> _Leaf:
    """Return a leaf in which selections by these conditions are replaced by their second operand, where the answer is true, or by their third."""
    statements = _copies(leaf.statements)
    for s in walk(statements):
        if isinstance(s, Op) and (is_second := answers.get(s.taken)) is not None:
            kept = s.operands[1 if is_second else 2]
            s.operands, s.taken, s.mask = [TRUE if is_second else FALSE, kept, kept], (), TRUE
    return _Leaf(statements, (*leaf.known, *known), list(leaf.sources))


def _drop_unread(leaf: _Leaf) -> None:
    """Remove from a branch what nothing in it reads."""
    inner = leaf.statements[-1]
    own = {s.buffer for s in walk([inner]) if isinstance(s, Allocate)}
    own |= {o.buffer for s in leaf.statements[:-1] if isinstance(s, Op) for o in s.outputs}
    kept = {id(s) for s in drop_unread(leaf.statements, own)}
    pairs = [(s, source) for s, source in zip(leaf.statements, leaf.sources) if id(s) in kept or s is inner]
    leaf.statements, leaf.sources = [s for s, _ in pairs], [source for _, source in pairs]


def _weight(statements: list[Statement]) -> int:
    return sum(isinstance(s, Op) for s in walk(statements))


# ---------------------------------------------------------------- what is known
def _denied(test: Sym) -> tuple[Sym, ...]:
    """The negation of a condition of one part."""
    if test.op != "lt":
        return ()
    left, right = test.args
    return (less(right, add(left, 1)),)


def _known(condition: Sym, known: Iterable[Sym]) -> Sym:
    """Return a condition without the parts that are known to hold; FALSE if one cannot hold."""
    left = []
    for atom in conjuncts(condition):
        answer = _answer(atom, known)
        if answer is False:
            return FALSE
        if answer is None:
            left.append(atom)
    return conjunction(left)


def _answer(atom: Sym, known: Iterable[Sym]) -> bool | None:
    """Whether a comparison follows from known ones that differ from it, or from its negation, only by a constant; None if it does not."""
    if atom.op != "lt":
        return None
    varying, slack = _slack(atom)
    opposite = {key: -coefficient for key, coefficient in varying.items()}
    for other in known:
        if other.op != "lt":
            continue
        given, least = _slack(other)
        if given == varying and slack >= least:
            return True
        if given == opposite and slack + least < 0:  # slack = slack + least - given, and given >= 0
            return False
    return None


@remembered
def _slack(atom: Sym) -> tuple[dict[tuple[Sym, ...], int], int]:
    """Return what is at least 0 where a comparison holds: what varies, as a polynomial, and the constant."""
    found = dict(terms(sub(sub(atom.args[1], atom.args[0]), 1)))
    constant = found.pop((), 0)
    return found, constant


def _simplified(s: Statement, known: tuple[Sym, ...]) -> Statement:
    """Remove the bounds check of lookups whose position is known to be inside the source."""
    if isinstance(s, Op) and isinstance(s.expr, LookupOp):
        found = _known(s.inside, known)
        s.inside = s.inside if found is FALSE else found
    return s


__all__ = ["branch_selections"]
