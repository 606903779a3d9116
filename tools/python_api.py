#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/api/python.md, the reference of the Python package, from signatures and docstrings. Imports nothing.

usage: python_api.py [--check]    (--check only says whether the page is what would be written)
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "tangram"
PAGE = ROOT / "docs" / "api" / "python.md"
GROUPS = {
    "Attention on one device": "flex_flash_attn_func AttnForwardMeta token_attn_func check_token_errors",
    "Masks": "MaskBuffer from_dense from_block_mask masks_from_block_indices",
    "Runtime keys": "mask_key mask_key_async magi_attn_flex_key magi_attn_varlen_key flex_key varlen_key "
    "make_mask_key_after_dispatch make_flex_key_for_new_mask_after_dispatch "
    "make_varlen_key_for_new_mask_after_dispatch get_most_recent_key DistAttnRuntimeKey",
    "Context parallelism": "dispatch undispatch dispatch_labels roll get_position_ids get_loss_mask calc_attn "
    "DistMaskBuffer check_errors",
    "Plans": "plan plan_async",
    "Checkpointing": "checkpoint_policy keep_attention",
    "Settings, memory and times": "configure configuration Configuration TransportConfig memory_use set_cache_bytes "
    "MemoryRow meter Meter MeterReport",
    "Errors": "Error InvalidArgument NotAvailable CommError Timeout CudaError InternalError",
}
Definition = ast.FunctionDef | ast.ClassDef


def definitions() -> dict[str, Definition]:
    """Functions and classes of the package by name; of several of a name the one with a docstring."""
    found: dict[str, Definition] = {}
    for path in sorted(PACKAGE.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, Definition) and (node.name not in found or ast.get_docstring(node)):
                found[node.name] = node
    return found


def exported() -> list[str]:
    for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    raise ValueError("python_api: python/tangram/__init__.py has no __all__")


def core_classes() -> dict[str, str]:
    """Docstrings of the classes of python/csrc."""
    classes = {}
    for path in sorted((ROOT / "python" / "csrc").glob("*.cpp")):
        text = path.read_text(encoding="utf-8")
        for name, literals in re.findall(r'\(\s*m, "(\w+)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text):
            classes[name] = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')
    return classes


def wrapped(text: str, first: str = "", then: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()), 120, initial_indent=first, subsequent_indent=then, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def entries(lines: list[str]) -> Iterator[str]:
    """Items of an Args or Raises section, each `names: meaning`."""
    item = ""
    for line in lines:
        if item and re.match(r"\w+(, \*{0,2}\w+)*: ", line.strip()) and item[-1] in ".:":
            yield item
            item = ""
        item = f"{item} {line.strip()}".strip()
    if item:
        yield item


def single(lines: list[str]) -> Iterator[str]:
    """Items, with arguments that share a line apart."""
    for entry in entries(lines):
        yield from re.split(r"(?<=[.;]) (?=[a-z_]+(?:, [a-z_]+)*: )", entry)


def described(docstring: str) -> list[str]:
    """A docstring as Markdown: paragraphs, then a list for each section."""
    out: list[str] = []
    for paragraph in docstring.split("\n\n"):
        lines = paragraph.split("\n")
        title = lines[0].strip()
        if title in ("Args:", "Returns:", "Raises:"):
            out.append({"Args:": "Arguments:", "Raises:": "Raises:", "Returns:": "Returns:"}[title])
            items = []
            for entry in single(lines[1:]):
                names, colon, meaning = entry.partition(": ")
                known = colon and re.fullmatch(r"\w+(, \*{0,2}\w+)*", names)
                items.append(wrapped(f"`{names}`: {meaning}" if known else entry, "- ", "  "))
            out.append("\n".join(items))
        elif all(line.startswith("    ") for line in lines):
            out.append("```\n" + textwrap.dedent(paragraph) + "\n```")
        else:
            out.append(wrapped(paragraph))
    return out


def signature(node: ast.FunctionDef, name: str) -> str:
    node.args.posonlyargs = [a for a in node.args.posonlyargs if a.arg != "self"]
    node.args.args = [a for a in node.args.args if a.arg != "self"]
    for argument in [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]:
        argument.annotation = None
    text = f"{name}({ast.unparse(node.args)})"
    return "```\n" + wrapped(text, "", " " * (len(name) + 1)) + "\n```"


def section(node: Definition) -> list[str]:
    out = [f"### `{node.name}`"]
    if isinstance(node, ast.FunctionDef):
        return [*out, signature(node, node.name), *described(ast.get_docstring(node) or "")]
    out += described(ast.get_docstring(node) or "")
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and (text := ast.get_docstring(method)):
            if method.name == "__init__":
                out += [signature(method, node.name), *described(text)]
            elif not method.name.startswith("_"):
                is_property = any(getattr(each, "id", "") == "property" for each in method.decorator_list)
                name = f"{node.name}.{method.name}"
                out += [f"`{name}`:" if is_property else signature(method, name), *described(text)]
    return out


def page() -> str:
    names, found, core = exported(), definitions(), core_classes()
    grouped = [name for group in GROUPS.values() for name in group.split()]
    rest = [name for name in names if name not in grouped]
    unknown = sorted(set(grouped) - set(names))
    missing = sorted(name for name in rest if name in found and name not in core)
    if unknown or missing:
        raise ValueError(f"python_api: GROUPS has no place for {missing}, and names {unknown}, which are not exported")
    out = [
        "# Python reference",
        wrapped(
            "Made from docstrings by `tools/python_api.py`; do not edit. Tutorials: [1](../tutorials/01_masks.md), "
            "[2](../tutorials/02_context_parallel.md). Other packages: [trees](../guide/trees.md), "
            "[Transformers](../tutorials/05_transformers_fsdp_tp.md), [MagiAttention's "
            "names](../migration/magi_names.md), [FlashAttention's](../migration/from_flash_attention.md)."
        ),
    ]
    for title, group in GROUPS.items():
        out.append(f"## {title}")
        for name in group.split():
            out += section(found[name]) if name in found else [f"### `{name}`", wrapped(core.get(name, ""))]
    out += ["## The core", "Classes have the fields of the C++ classes of the same names ([C++](cpp.md))."]
    out.append(
        "\n".join(wrapped(f"`{name}`: {core[name]}" if core.get(name) else f"`{name}`", "- ", "  ") for name in rest)
    )
    return "\n\n".join(part for part in out if part) + "\n"


def main() -> int:
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("docs/api/python.md is not what docstrings say: run tools/python_api.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
