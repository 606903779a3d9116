// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/kernel_catalog.hpp"

#include "attn/sm90/kernel_list.hpp"

namespace tangram {

int num_kernels(const KernelFamily& family, KernelSet held) {
  if (held == KernelSet::kNone) return 0;
  return held == KernelSet::kSample ? family.num_in_sample : family.num_kernels;
}

std::vector<KernelCatalog> kernel_catalogs() { return {sm90::kernel_catalog()}; }

const KernelCatalog* find_catalog(std::span<const KernelCatalog> catalogs, std::string_view backend) {
  for (const KernelCatalog& catalog : catalogs) {
    if (catalog.backend == backend) return &catalog;
  }
  return nullptr;
}

}  // namespace tangram
