"""The imports of a program: its own modules are followed, others are libraries."""

import ast

from gpuyard.insight.needs.comprehensions import Comprehensions
from gpuyard.insight.needs.scopes import public_names
from gpuyard.insight.needs.values import UNKNOWN, External, Scope, Value


class Imports(Comprehensions):
    """Follows `import` statements."""

    def follow_import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            path = self.sources.module(alias.name, scope.module.path)
            first = alias.name.partition(".")[0]
            name = alias.asname or first
            if path is None:
                scope.names[name] = External(alias.name if alias.asname else first)
            elif alias.asname or "." not in alias.name:
                scope.names[name] = self.imported(path)
            else:
                scope.names[name] = self._package(alias.name, path)

    def _package(self, name: str, path: str) -> Scope:
        """`import a.b.c` of the program's modules: `a`, from which `a.b.c` is found."""
        scope = self.imported(path)
        for part in reversed(name.split(".")[1:]):
            scope = Scope(path, {part: scope})
        return scope

    def follow_import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        importer = scope.module.path
        name = node.module or ""
        path = self.sources.module(name, importer, node.level)
        for alias in node.names:
            value = self._imported_name(name, path, alias.name, importer, node.level)
            if alias.name != "*":
                scope.names[alias.asname or alias.name] = value
            elif path is not None:
                scope.names.update(public_names(self.imported(path)))
            else:
                scope.stars.append(name)

    def _imported_name(
        self, module: str, path: str | None, name: str, importer: str, level: int
    ) -> Value:
        if path is not None and name in (names := self.imported(path).names):
            return names[name]
        inner = f"{module}.{name}" if module else name
        submodule = self.sources.module(inner, importer, level)
        if submodule is not None:
            return self.imported(submodule)
        if path is not None or level:
            return UNKNOWN
        return self.library_attribute(inner)
