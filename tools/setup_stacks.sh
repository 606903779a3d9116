#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Puts the packages of training stacks, pinned, into a folder each below build/stacks, beside the torch of .venv: they do
# not get along with one another's pins. For `make test-long`; the tests of a stack that is not there are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${TANGRAM_STACKS:-build/stacks}

put() { # NAME PACKAGE...
  local name=$1 stamp
  shift
  stamp=$folder/$name/.$(printf '%s\n' "$@" | cksum | cut -d' ' -f1)
  [[ ! -e $stamp ]] || return 0
  echo "setup: installing $* into $folder/$name"
  rm -rf "${folder:?}/$name"
  if .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/$name" "$@"; then
    touch "$stamp"
  else
    rm -rf "${folder:?}/$name"
    echo "setup: $name could not be installed; its tests will be skipped" >&2
  fi
}

put megatron-core megatron-core==0.16.1
put deepspeed deepspeed==0.19.8 einops==0.8.2 hjson==3.1.0 msgpack==1.2.4 ninja==1.13.2 py-cpuinfo==9.0.0
put diffusers diffusers==0.42.1 pillow==13.0.0 importlib_metadata==10.2.0 zipp==4.1.2
put ring_flash_attn ring_flash_attn==0.1.8
put torchtitan torchtitan==0.2.2 torchdata==0.11.0 tyro==1.0.17 einops==0.8.2 docstring_parser==0.18.0 typeguard==4.6.1
