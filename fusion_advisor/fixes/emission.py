"""Writes the fused call into the statements of a region, keeping all other text as it is."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fusion_advisor.fixes.callees import Callees
from fusion_advisor.fixes.conditions import Condition, conditions_of
from fusion_advisor.fixes.dataflow import Flow
from fusion_advisor.fixes.placement import Argument, Key, Placement, Placer
from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.region import Region
from fusion_advisor.fixes.source_index import SourceIndex
from fusion_advisor.fixes.text_edits import newline_of
from fusion_advisor.records import TextEdit

INDENT = "    "


class Writer:
    """Makes the edits of one region.

    ``pieces`` are, per statement, the statements that take its place (``None``: unchanged).
    """

    def __init__(
        self,
        index: SourceIndex,
        graph: object,
        region: Region,
        flow: Flow,
        placer: Placer,
        callees: Callees,
        call_name: str,
        where: str,
    ) -> None:
        self.index = index
        self.region = region
        self.statements = region.statements
        self.flow = flow
        self.placer = placer
        self.callees = callees
        self.call_name = call_name
        self.where = where
        self.newline = newline_of(index.text)
        self.condition = Condition()
        self._conditional = False

    def imports_needed(self) -> tuple[str, ...]:
        """Import lines that the call needs beside the kernel's own."""
        return self.condition.imports

    def edits(self, inputs: Sequence[Key], outputs: Sequence[str]) -> tuple[TextEdit, ...]:
        self._check_name_free()
        placement = self.placer.place(inputs, outputs, self.call_name)
        self.condition = conditions_of(
            self.index, self.callees, self.flow, self.placer, self.region, self.where
        )
        pieces = self._pieces(placement, outputs)
        if self.condition.text and not self._conditional:
            return self._guarded_block(pieces)
        edits = [
            self._replace(statement, piece)
            for statement, piece in zip(self.statements, pieces, strict=True)
            if piece is not None
        ]
        return tuple(edits)

    def _check_name_free(self) -> None:
        scope = self.region.scope
        if isinstance(scope, ast.Module):
            return
        if self.call_name.split(".")[0] in self.placer.live_locals():
            raise Refusal("name-clash", f"`{self.call_name}` is a local name of the function")

    # -- statements ----------------------------------------------------------------------------

    def _pieces(self, placement: Placement, outputs: Sequence[str]) -> list[list[str] | None]:
        pieces: list[list[str] | None] = []
        for number, statement in enumerate(self.statements[:-1]):
            if number in self._chain_statements() or number in self.flow.aliases:
                self._check_removable(statement)
                pieces.append(self._temporaries(placement, number))
            else:
                pieces.append(None)
        pieces.append(self._sink(placement, outputs))
        return pieces

    def _chain_statements(self) -> set[int]:
        places = set(self.flow.op_times)
        return {
            number
            for number, statement in enumerate(self.statements)
            if any(node in places for node in ast.walk(statement))
        }

    def _check_removable(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.AnnAssign) and isinstance(self.region.scope, ast.Module):
            raise Refusal(
                "annotated-global",
                f"`{self.index.short(statement)}` declares a global, so it cannot be removed",
            )

    def _temporaries(self, placement: Placement, number: int) -> list[str]:
        return [
            f"{one.temporary} = {self._bracketed(one)}"
            for one in placement.temporaries.get(number, [])
        ]

    def _bracketed(self, argument: Argument) -> str:
        text = self.index.segment(argument.leaf.operand.expression)
        yields = isinstance(argument.leaf.operand.expression, ast.Yield | ast.YieldFrom)
        return f"({text})" if yields or "\n" in text or "\r" in text else text

    def _call_text(self, placement: Placement) -> str:
        shown = []
        for argument in placement.arguments:
            expression = argument.leaf.operand.expression
            text = argument.temporary or self.index.segment(expression)
            is_yield = isinstance(expression, ast.Yield | ast.YieldFrom)
            shown.append(f"({text})" if is_yield and not argument.temporary else text)
        return f"{self.call_name}({', '.join(shown)})"

    def _sink(self, placement: Placement, outputs: Sequence[str]) -> list[str]:
        """The last statement, with the call in it or before it."""
        statement = self.statements[-1]
        self._conditional = False
        before = self._temporaries(placement, len(self.statements) - 1)
        call = self._call_text(placement)
        if len(outputs) == 1:
            single = self._single(statement, placement, outputs[0], call)
            if single is not None:
                return [*before, single]
        placement.hoisted = True
        self.placer.check_hoist()
        return [*before, *self._multiple(statement, placement, outputs, call)]

    def _single(
        self, statement: ast.stmt, placement: Placement, output: str, call: str
    ) -> str | None:
        """One result that the statement itself takes; ``None`` where the call must stand before."""
        names, sites = placement.bound[output], placement.sites
        assert self.flow.last is not None
        sink = self.flow.last.place
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is sink:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            own = {one.id for one in targets if isinstance(one, ast.Name)}
            if len(own) == len(targets) and not sites and set(names) <= own:
                return self._substituted(statement, {sink: self._guarded(sink, call)})
        if sites and not names and len(sites) == 1 and sites[0].place is sink:
            return self._substituted(statement, {sink: self._guarded(sink, call)})
        if statement is sink and isinstance(statement, ast.AugAssign) and not sites:
            target = statement.target
            assert isinstance(target, ast.Name)
            if set(names) <= {target.id}:
                return f"{target.id} = {call}"
        return None

    def _guarded(self, sink: ast.AST, call: str) -> str:
        """The call, or where it needs a condition and the region is one expression, both."""
        if not self.condition.text or len(self.statements) > 1:
            return call
        self._conditional = True
        return f"({call} if {self.condition.text} else {self.index.segment(sink)})"

    def _multiple(
        self, statement: ast.stmt, placement: Placement, outputs: Sequence[str], call: str
    ) -> list[str]:
        """The call as a statement of its own before what is left of the last statement."""
        targets: list[str] = []
        extra: list[str] = []
        sites: dict[ast.AST, str] = {}
        for number, value in enumerate(outputs):
            names = list(placement.bound[value])
            uses = [use for use in placement.sites if use.value == value]
            if not names:
                names = [self.placer.output_name(self.call_name, number)]
            targets.append(names[0])
            extra += [f"{name} = {names[0]}" for name in names[1:]]
            sites.update((use.place, names[0]) for use in uses)
        lines = [f"{', '.join(targets)} = {call}", *extra]
        assert self.flow.last is not None
        if self._only_binds(statement, self.flow.last.place):
            self._check_removable(statement)
            return lines
        return [*lines, self._substituted(statement, sites)]

    def _only_binds(self, statement: ast.stmt, sink: ast.AST) -> bool:
        """Whether the statement does nothing but give names to the last op's result."""
        if statement is sink:
            return True
        if isinstance(statement, ast.Assign):
            return statement.value is sink and all(
                isinstance(one, ast.Name) for one in statement.targets
            )
        if isinstance(statement, ast.AnnAssign):
            return statement.value is sink and isinstance(statement.target, ast.Name)
        return (
            isinstance(statement, ast.Expr)
            and statement.value is sink
            and self.flow.last is not None
            and self.flow.last.in_place
        )

    # -- text ----------------------------------------------------------------------------------

    def _substituted(self, statement: ast.stmt, new: dict[ast.AST, str]) -> str:
        """The statement's text with some expressions replaced."""
        start, text = self.index.start(statement), self.index.text
        end = self.index.end(statement)
        pieces, position = [], start
        for node in sorted(new, key=self.index.start):
            first, last = self._with_parentheses(start, node, end)
            replacement = new[node]
            if first > start and (text[first - 1].isalnum() or text[first - 1] == "_"):
                replacement = " " + replacement
            if last < end and (text[last].isalnum() or text[last] == "_"):
                replacement += " "
            pieces += [text[position:first], replacement]
            position = last
        pieces.append(text[position:end])
        return "".join(pieces)

    def _with_parentheses(self, start: int, node: ast.AST, end: int) -> tuple[int, int]:
        """The extent of an expression and of parentheses that only group it."""
        text = self.index.text
        first, last = self.index.start(node), self.index.end(node)
        while True:
            head, tail = text[start:first].rstrip(), text[last:end].lstrip()
            before = head[:-1].rstrip()[-1:]
            if not head.endswith("(") or not tail.startswith(")"):
                return first, last
            if before.isalnum() or before in ("_", ")", "]", '"', "'"):
                return first, last  # the parentheses of a call, or close to a keyword
            first = start + len(head) - 1
            last = end - len(tail) + 1

    def _replace(self, statement: ast.stmt, lines: list[str]) -> TextEdit:
        """The edit that puts statements in the place of one."""
        start, end = self.index.start(statement), self.index.end(statement)
        if not self._stands_alone(statement):
            return TextEdit(start=start, end=end, new="; ".join(lines) or "pass")
        if lines:
            separator = self.newline + self._indent(statement)
            return TextEdit(start=start, end=end, new=separator.join(lines))
        offsets = self.index.offsets
        first = offsets.line_start(statement.lineno)
        line_end = offsets.line_end(statement.end_lineno or statement.lineno)
        if self.index.text[end:line_end].strip():  # a comment behind it is the person's: keep it
            gap = len(self.index.text[end:line_end]) - len(self.index.text[end:line_end].lstrip())
            return TextEdit(start=start, end=end + gap, new="")
        return TextEdit(start=first, end=line_end, new="")

    def _indent(self, statement: ast.stmt) -> str:
        line = self.index.offsets.lines[statement.lineno - 1]
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    def _stands_alone(self, statement: ast.stmt) -> bool:
        """Whether no other statement shares the statement's lines."""
        offsets, text = self.index.offsets, self.index.text
        head = text[offsets.line_start(statement.lineno) : self.index.start(statement)]
        last_line = statement.end_lineno or statement.lineno
        tail = text[self.index.end(statement) : offsets.line_end(last_line)].strip()
        return not head.strip() and (not tail or tail.startswith("#"))

    def _guarded_block(self, pieces: list[list[str] | None]) -> tuple[TextEdit, ...]:
        """``if <condition>:`` the fused statements, ``else:`` the text as it was."""
        statements = self.statements
        if not all(map(self._stands_alone, statements)):
            raise Refusal("shared-line", "the chain's statements share a line with others")
        first, last = statements[0], statements[-1]
        indent = self._indent(first)
        unit = "\t" if indent.endswith("\t") else INDENT
        fused: list[str] = []
        for statement, piece in zip(statements, pieces, strict=True):
            fused += [self.index.segment(statement)] if piece is None else piece
        inner = f"{self.newline}{indent}{unit}"
        head = f"if {self.condition.text}:{inner}{inner.join(fused)}{self.newline}{indent}"
        start = self.index.start(first)
        if isinstance(last, ast.Return | ast.Raise):
            return (TextEdit(start=start, end=start, new=head),)
        edits = [TextEdit(start=start, end=start, new=f"{head}else:{inner}")]
        for statement in statements[1:]:
            place = self.index.start(statement)
            edits.append(TextEdit(start=place, end=place, new=unit))
        return tuple(edits)
