# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Tangram inside other libraries. Each module needs the library that it is named after."""
