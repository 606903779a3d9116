# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# The Python package on Debian 12, from the wheels that `make wheel` leaves in dist/; `make image` does both. What runs
# here is what tests/python/image_test.py runs in a root of its own.
FROM debian:12-slim

# Further packages from PyPI: --build-arg PACKAGES="numpy torch"
ARG PACKAGES=numpy

COPY dist /tmp/tangram/dist
COPY tools/image_install.sh tools/image_check.py /tmp/tangram/
RUN /tmp/tangram/image_install.sh /tmp/tangram/dist /opt/tangram "$PACKAGES" \
  && /opt/tangram/bin/python /tmp/tangram/image_check.py

ENV PATH=/opt/tangram/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["python"]
