# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""How the package is written: no modules import each other, and calls show how many arguments they pass."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "tangram"
SOURCES = sorted(PACKAGE.rglob("*.py"))


def module_of(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in SOURCES}


def imported(name, path):
    """The modules of the package that a module imports, wherever in it; of a package itself only its submodules."""
    base = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        parent = ".".join(base.split(".")[: len(base.split(".")) - node.level + 1])
        source = f"{parent}.{node.module}" if node.module else parent
        found |= {source} & MODULES.keys()
        found |= {f"{source}.{alias.name}" for alias in node.names} & MODULES.keys()
    return found - {"tangram", name}


def test_no_modules_import_each_other():
    graph = {name: imported(name, path) for name, path in MODULES.items()}
    assert "tangram._torch_flex" in graph["tangram.flex"]  # also what is imported late
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_calls_show_their_arguments(path):
    """`f(*(a, b, c))`, and `f(*x)` where x is such a tuple: how many are passed cannot be seen, nor checked by mypy."""
    hidden = []
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.Module):
            continue
        tuples = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(function, ast.FunctionDef)
        }
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            for argument in (a.value for a in call.args if isinstance(a, ast.Starred)):
                if isinstance(argument, ast.Tuple) or (isinstance(argument, ast.Name) and argument.id in tuples):
                    hidden.append(f"{path.name}:{call.lineno}: {ast.unparse(argument)}")
    assert sorted(set(hidden)) == []
