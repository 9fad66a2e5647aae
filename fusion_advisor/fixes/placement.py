"""Where the fused call goes, what it is given and which names it binds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fusion_advisor.fixes.dataflow import Flow, Leaf, Use
from fusion_advisor.fixes.evidence import Evidence
from fusion_advisor.fixes.liveness import Liveness
from fusion_advisor.fixes.purity import root_names
from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.source_index import SourceIndex
from fusion_advisor.records import OpGraph, TensorSpec

Key = str | tuple[str, int]


@dataclass(frozen=True)
class Argument:
    """One argument of the fused call: its text, or the temporary that holds it."""

    leaf: Leaf
    temporary: str = ""


@dataclass
class Placement:
    """A proven way to make the call just before (or inside) the region's last statement.

    ``bound`` gives, per output value, the names that must hold it afterwards; ``sites`` the
    expressions in the last statement that use it directly.
    """

    arguments: tuple[Argument, ...]
    bound: dict[str, list[str]] = field(default_factory=dict)
    sites: list[Use] = field(default_factory=list)
    temporaries: dict[int, list[Argument]] = field(default_factory=dict)  # by statement
    hoisted: bool = False  # the call, or a temporary, stands before the last statement


class Placer:
    """Decides the placement of one chain; every refusal says what stands in the way."""

    def __init__(
        self,
        index: SourceIndex,
        graph: OpGraph,
        evidence: Evidence,
        flow: Flow,
        region: Sequence[ast.stmt],
        live: Liveness,
        taken: Iterable[str],
    ) -> None:
        self.index = index
        self.evidence = evidence
        self.flow = flow
        self.region = region
        self.live = live
        self.taken = set(taken)
        self.specs = {value.id: value for value in graph.values}
        self.graph = graph
        self.last = len(region) - 1

    def place(self, inputs: Sequence[Key], outputs: Sequence[str], entry: str) -> Placement:
        bound, sites = self._outputs(outputs)
        leaves = self._one_leaf_per_input(inputs)
        self._check_delay()
        placement = Placement((), bound, sites)
        if self._can_stay_inline(leaves):
            placement.arguments = tuple(Argument(leaf) for leaf in leaves)
        else:
            placement.arguments = self._with_temporaries(leaves, entry)
            for argument in sorted(placement.arguments, key=lambda one: one.leaf.time):
                if argument.temporary:
                    placement.temporaries.setdefault(argument.leaf.statement, []).append(argument)
        if self.last in placement.temporaries:
            placement.hoisted = True
        if placement.hoisted:
            self.check_hoist()
        return placement

    def check_hoist(self) -> None:
        """Moving evaluation before the last statement must not pass anything that could matter."""
        for time, node, statement in self.flow.impure:
            if statement == self.last and time < self.flow.end:
                raise Refusal(
                    "evaluation-order",
                    f"`{self.index.short(node)}` is evaluated in the same statement before the "
                    "chain's end, and its order could matter",
                )

    # -- results -------------------------------------------------------------------------------

    def _outputs(self, outputs: Sequence[str]) -> tuple[dict[str, list[str]], list[Use]]:
        """Names and sites that need each output; refuses what the kernel does not return."""
        flow, end = self.flow, self.flow.end
        bound: dict[str, list[str]] = {value: [] for value in outputs}
        sites: list[Use] = []
        for use in flow.uses:
            if use.time < end and use.statement != self.last:
                raise Refusal(
                    "used-before",
                    f"`{self.index.short(use.place)}` is used before the chain's last op, so it "
                    "must exist earlier than one call at the end can give it",
                )
            if use.value not in bound:
                raise Refusal(
                    "escapes",
                    f"`{self.index.short(use.place)}` is also used outside the chain, but the "
                    "kernel does not return it",
                )
            if use.direct:
                sites.append(use)
            else:
                assert isinstance(use.place, ast.Name)
                if use.place.id not in bound[use.value]:
                    bound[use.value].append(use.place.id)
        for name, made in flow.names.items():
            if not self.live.live_after(name):
                continue
            if made.value not in bound:
                raise Refusal("escapes", self._escape_message(name))
            if name not in bound[made.value]:
                bound[made.value].append(name)
        self._check_try()
        return bound, sites

    def _escape_message(self, name: str) -> str:
        if isinstance(self.live.scope, ast.Module):
            return (
                f"`{name}` is a global that other cells may read, but the kernel does not "
                "return it (put the code into a function to fuse it)"
            )
        return f"`{name}` may be read after the chain, but the kernel does not return it"

    def _check_try(self) -> None:
        if self.last == 0 or not self.live.in_try():
            return
        for name in self.flow.names:
            if self.live.read_outside(name) or name in self.live.shared:
                raise Refusal(
                    "try-boundary",
                    f"`{name}` is set half way inside a `try`, where a handler could see it",
                )

    # -- operands ------------------------------------------------------------------------------

    def _one_leaf_per_input(self, inputs: Sequence[Key]) -> list[Leaf]:
        """The first evaluation of each input; all others must be provably the same."""
        grouped: dict[Key, list[Leaf]] = {}
        for leaf in self.flow.leaves:
            grouped.setdefault(leaf.key, []).append(leaf)
        extra = [key for key in grouped if key not in inputs]
        missing = [key for key in inputs if key not in grouped]
        if extra or missing:
            shown = ", ".join(
                f"`{self.index.short(grouped[key][0].operand.expression)}`" for key in extra
            )
            raise Refusal(
                "operands-differ",
                "the kernel's operands are not those of the text"
                + (f": it does not take {shown}" if extra else f": {missing} has no expression"),
            )
        return [self._same_everywhere(grouped[key]) for key in inputs]

    def _same_everywhere(self, leaves: list[Leaf]) -> Leaf:
        first, last = leaves[0], leaves[-1]
        texts = {ast.dump(leaf.operand.expression).replace("Store()", "Load()") for leaf in leaves}
        if len(texts) > 1 or any(leaf.versions != first.versions for leaf in leaves):
            shown = " and ".join(
                sorted({f"`{self.index.short(leaf.operand.expression)}`" for leaf in leaves})
            )
            raise Refusal(
                "same-tensor",
                f"{shown} were the same tensor when recorded, but another call may give two",
                tuple(leaf.operand.node for leaf in leaves),
            )
        if first is not last and not first.pure:
            raise Refusal(
                "evaluated-twice",
                f"`{self.index.short(first.operand.expression)}` is evaluated twice",
            )
        if (
            first is not last
            and not self._is_local(first)
            and self._impure_between(first, last.time)
        ):
            raise Refusal(
                "evaluation-order",
                f"`{self.index.short(first.operand.expression)}` is read before and after a call "
                "that could change it",
            )
        return first

    def _is_local(self, leaf: Leaf) -> bool:
        """A plain name that no other code can rebind."""
        expression = leaf.operand.expression
        return isinstance(expression, ast.Name) and expression.id not in self.live.shared

    def _impure_between(self, leaf: Leaf, until: int) -> bool:
        return any(leaf.time < time < until for time, _, _ in self._events())

    def _events(self) -> list[tuple[int, ast.AST, int]]:
        """Everything with possible side effects: calls in operands and elsewhere."""
        operands = [
            (leaf.time, leaf.operand.expression, leaf.statement)
            for leaf in self.flow.leaves
            if not leaf.pure
        ]
        return sorted([*self.flow.impure, *operands], key=lambda one: one[0])

    def _unchanged(self, leaf: Leaf) -> bool:
        """Whether the names an operand reads still have the same values at the call."""
        end = self.flow.end
        stores = [name for time, name in self.flow.stores if time < end]
        return all(stores.count(name) == version for name, version in leaf.versions)

    def _can_stay_inline(self, leaves: Sequence[Leaf]) -> bool:
        """Whether all operands can be evaluated in the call, in the call's order."""
        end = self.flow.end
        others = self.flow.impure
        ordered: list[Leaf] = []
        for leaf in leaves:
            if not self._unchanged(leaf):
                return False
            if self._is_local(leaf):
                continue
            if not leaf.pure and leaf.statement != self.last:
                return False
            if any(leaf.time < time < end for time, _, _ in others):
                return False
            ordered.append(leaf)
        if all(leaf.pure for leaf in ordered):
            return True
        # Calls among the operands: everything that could notice must keep its order.
        return [leaf.time for leaf in ordered] == sorted(leaf.time for leaf in ordered)

    def _with_temporaries(self, leaves: Sequence[Leaf], entry: str) -> tuple[Argument, ...]:
        arguments = []
        for number, leaf in enumerate(leaves):
            if self._is_local(leaf) and self._unchanged(leaf):
                arguments.append(Argument(leaf))
                continue
            arguments.append(Argument(leaf, self._fresh(f"{entry}_in{number}")))
        return tuple(arguments)

    def _fresh(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name

    def output_name(self, entry: str, number: int) -> str:
        return self._fresh(f"{entry}_out{number}")

    # -- later is the same ---------------------------------------------------------------------

    def _check_delay(self) -> None:
        """Ops run later than written: no call in between may write what they read."""
        end = self.flow.end
        events = [event for event in self._events() if event[0] < end]
        if not events:
            return
        for leaf in self.flow.leaves:
            value = leaf.operand.value
            if value is None:
                continue
            for time, node, _ in events:
                done = self.flow.node_times[leaf.operand.node]
                if done < time and not self._cannot_write(node, leaf):
                    raise Refusal(
                        "call-between",
                        f"`{self.index.short(node)}` runs between the chain's ops and could "
                        f"change `{self.index.short(leaf.operand.expression)}` in place",
                        (leaf.operand.node,),
                    )

    def _cannot_write(self, call: ast.AST, leaf: Leaf) -> bool:
        """Whether a call cannot reach an operand, or is a fixed function seen writing nothing."""
        expression, spec = leaf.operand.expression, self.specs.get(leaf.operand.value or "")
        if not leaf.pure:
            return self._is_fresh(expression, spec)
        if self._wrote_outside(call):
            return False  # to a tensor that may be this one in another call: f(x, x)
        if spec is not None and "parameter" in spec.flags:
            return True
        if not root_names(expression) & root_names(call):
            return True
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id not in self.live_locals()
            and self._wrote_nothing(call)
        )

    def live_locals(self) -> set[str]:
        """Names the scope binds: parameters and locals, whose callees vary from call to call."""
        scope = self.live.scope
        if isinstance(scope, ast.Module):
            return set()
        bound = {
            one.id
            for one in ast.walk(scope)
            if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)
        }
        return bound | {one.arg for one in ast.walk(scope) if isinstance(one, ast.arg)}

    def _wrote_outside(self, call: ast.AST) -> bool:
        """Whether a call was seen writing to a tensor that it had not made itself."""
        ops = self.evidence.under(call)
        made = {value for op in ops for value in op.outputs if not op.mutates}
        for op in ops:
            for value in op.mutates:
                spec = self.specs.get(value)
                if spec is None or self.evidence.first_value_of(spec.storage) not in made:
                    return True
        return False

    def _wrote_nothing(self, call: ast.AST) -> bool:
        ops = self.evidence.under(call)
        return bool(ops) and not any(op.mutates for op in ops)

    def _is_fresh(self, call: ast.AST, spec: TensorSpec | None) -> bool:
        """Whether the tensor was made by this very call, so that no earlier name holds it."""
        if spec is None:
            return False
        made = {value for op in self.evidence.under(call) for value in op.outputs}
        first = self.evidence.first_value_of(spec.storage)
        return spec.id in made and first in made
