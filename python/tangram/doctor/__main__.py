# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments of `tangram doctor`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Sequence

from ..errors import Error, InvalidArgument, NotAvailable
from . import _machine

OK, FAILED, USAGE, NOT_AVAILABLE = 0, 1, 2, 3
"""Exit statuses, those of the program that is built from sources."""


def _fail(status: int, text: str) -> int:
    print(f"tangram: {text}", file=sys.stderr)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """`tangram doctor`; returns the exit status."""
    parser = argparse.ArgumentParser("tangram doctor", description="Show what this machine has and what will be used")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--run", action="store_true", help="check attention against float64 and measure it, two minutes"
    )
    parser.add_argument("--report", metavar="FILE", help="with --run: write what was found as JSON")
    parser.add_argument("--backend", metavar="NAME", help="with --run: the backend to check (default: the best here)")
    parser.add_argument("--no-ranks", action="store_true", help="with --run: start no second process")
    options = parser.parse_args(arguments)
    for name, value in (("--report", options.report), ("--backend", options.backend), ("--no-ranks", options.no_ranks)):
        if value and not options.run:
            return _fail(USAGE, f"{name}: goes with --run")
    if not options.run:
        print(json.dumps(_machine.as_json(), indent=2) if options.json else _machine.text(), end="")
        return OK
    if options.json:
        return _fail(USAGE, "--json: with --run, pass --report FILE instead")
    if options.report and not os.access(os.path.dirname(os.path.abspath(options.report)), os.W_OK):
        return _fail(USAGE, f"--report: its folder must be writable (got '{options.report}')")
    if importlib.util.find_spec("torch") is None:
        return _fail(NOT_AVAILABLE, "doctor --run: needs torch, which is not installed (pip install torch)")
    from . import _run

    try:
        return _run.run(options.backend, options.report, not options.no_ranks)
    except NotAvailable as error:
        return _fail(NOT_AVAILABLE, str(error))
    except InvalidArgument as error:
        return _fail(USAGE, str(error))
    except Error as error:
        return _fail(FAILED, str(error))


def program() -> int:
    """The program `tangram` of the package."""
    verb, *rest = sys.argv[1:] or ["--help"]
    if verb == "doctor":
        return main(rest)
    text = "the package has the verb doctor alone; plan, run, bench and the others come with the program of the sources"
    if verb in ("--help", "-h", "help"):
        print(f"usage: tangram doctor [--run [--report FILE] [--backend NAME]]\n{text}")
        return OK
    return _fail(USAGE, f"{text} (got '{verb}')")


if __name__ == "__main__":
    sys.exit(main())
