"""Whether anything after a chain may still read a name that the chain bound."""

from __future__ import annotations

import ast

from fusion_advisor.fixes.source_index import SCOPES, SourceIndex

_DYNAMIC = frozenset("locals eval exec vars globals dir".split())
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def dynamic_access(scope: ast.AST) -> ast.Call | None:
    """A call such as ``locals()`` that can read names without spelling them."""
    for node in ast.walk(scope):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _DYNAMIC
        ):
            return node
    return None


def shared_names(scope: ast.AST) -> set[str]:
    """Names of a function that code outside it, or a function inside it, can also see."""
    if isinstance(scope, ast.Module):
        return {one.id for one in ast.walk(scope) if isinstance(one, ast.Name)}
    shared: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Global | ast.Nonlocal):
            shared.update(node.names)
        if node is not scope and isinstance(node, SCOPES):
            shared |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return shared


def mentions(node: ast.AST, name: str) -> bool:
    """Whether a name occurs in a piece of code, read or written."""
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))


class Liveness:
    """Liveness of names after a region of one suite."""

    def __init__(self, index: SourceIndex, scope: ast.AST, region: list[ast.stmt]) -> None:
        self.index = index
        self.scope = scope
        self.region = region
        self.shared = shared_names(scope)
        self._inside = {id(node) for one in region for node in ast.walk(one)}

    def in_loop(self) -> bool:
        return any(isinstance(one, _LOOPS) for one in self._owners())

    def in_try(self) -> bool:
        """Whether a handler could see the names half way."""
        return any(isinstance(one, ast.Try | ast.TryStar) for one in self._owners())

    def read_outside(self, name: str) -> bool:
        """Whether the scope mentions the name anywhere but in the region."""
        return any(
            isinstance(one, ast.Name)
            and one.id == name
            and id(one) not in self._inside
            and (isinstance(one.ctx, ast.Load | ast.Del) or self._is_augmented(one))
            for one in ast.walk(self.scope)
        )

    def live_after(self, name: str) -> bool:
        """Whether the value a name has at the end of the region may be read later."""
        if name in self.shared:
            return True
        if not self.read_outside(name):
            return False
        statement: ast.stmt = self.region[-1]
        if isinstance(statement, ast.Return | ast.Raise):
            return self.in_try()
        while True:
            suite = self.index.suite(statement)
            position = next(n for n, one in enumerate(suite) if one is statement)
            for later in suite[position + 1 :]:
                if mentions(later, name):
                    return not self._overwrites(later, name)
                if isinstance(later, ast.Return | ast.Raise):
                    return self.in_try()
            owner = self.index.parent[statement]
            if owner is self.scope:
                return False
            if not isinstance(owner, ast.If | ast.With | ast.AsyncWith):
                return True  # a loop comes round again, a handler may read it
            statement = owner

    def _overwrites(self, statement: ast.stmt, name: str) -> bool:
        return (
            isinstance(statement, ast.Assign)
            and all(isinstance(one, ast.Name) for one in statement.targets)
            and any(isinstance(one, ast.Name) and one.id == name for one in statement.targets)
            and not mentions(statement.value, name)
        )

    def _is_augmented(self, name: ast.Name) -> bool:
        return isinstance(self.index.parent.get(name), ast.AugAssign)

    def _owners(self) -> list[ast.AST]:
        """Compound statements of the scope that hold the region."""
        found = []
        for ancestor in self.index.ancestors(self.region[0]):
            if ancestor is self.scope:
                break
            found.append(ancestor)
        return found
