"""Source pages for sphinx.ext.viewcode that know methods added to a class of another module with `@patch`."""

import ast
import importlib
import inspect

from nbdev.doclinks import patch_name

Tag = tuple[str, int, int]


def find_source(app, module: str) -> tuple[str, dict[str, Tag]] | None:
    """The source of `module`, and for each definition its kind, first and last line."""
    try:
        source = inspect.getsource(importlib.import_module(module))
    except (ImportError, OSError, TypeError):
        return None
    tags: dict[str, Tag] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = patch_name(node)
            tags |= {name: _tag("def", node) for name in ([names] if isinstance(names, str) else names)}
        elif isinstance(node, ast.ClassDef):
            tags[node.name] = _tag("class", node)
            methods = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            tags |= {f"{node.name}.{method.name}": _tag("def", method) for method in methods}
    return source, tags


def _tag(kind: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Tag:
    return kind, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.end_lineno


def setup(app) -> dict[str, bool]:
    app.connect("viewcode-find-source", find_source)
    return {"parallel_read_safe": True}
