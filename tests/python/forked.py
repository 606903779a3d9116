# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that run in a child of a fork."""

import contextlib
import os
import re
import signal
import traceback


def assert_passes_in_child(check):
    """A child that hangs is ended after a minute."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def refused(kind, text):
    """Like pytest.raises, where there is no pytest."""
    try:
        yield
    except kind as error:
        assert re.search(text, str(error)), error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
