// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/heap/symmetric_heap.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "comm/all_gather.hpp"
#include "comm/heap/process_identity.hpp"
#include "cuda/check.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

/// Where a rank is. Devices of several processes are told apart by their identity, since each process may count its
/// own.
struct Whereabouts {
  ProcessIdentity process;
  int32_t device = 0;
  char pci[32] = {};
};

Whereabouts find_whereabouts(int device) {
  Whereabouts here;
  here.process = ProcessIdentity::own();
  here.device = device;
  cuda::check(cudaDeviceGetPCIBusId(here.pci, sizeof(here.pci), device), "cudaDeviceGetPCIBusId");
  return here;
}

/// Why this rank cannot write to `there`, empty when it can. A device that is hidden from this process cannot be asked
/// about: mapping its memory will tell.
std::string obstacle(const Whereabouts& here, const Whereabouts& there) {
  if (!here.process.is_same_host(there.process)) return fmt::format("is on another host ({})", there.process.host);
  int peer_device = 0, can_access = 1;
  if (std::strcmp(here.pci, there.pci) != 0 && cudaDeviceGetByPCIBusId(&peer_device, there.pci) == cudaSuccess) {
    cuda::check(cudaDeviceCanAccessPeer(&can_access, here.device, peer_device), "cudaDeviceCanAccessPeer");
  }
  static_cast<void>(cudaGetLastError());
  return can_access ? "" : fmt::format("has GPU {}, which cannot be reached", there.pci);
}

}  // namespace

SymmetricHeap::SymmetricHeap(Communicator& control, double timeout_s) : control_(control) {
  cuda::check(cudaGetDevice(&device_), "cudaGetDevice");
  cuda::check(cudaFree(nullptr), "cudaFree");  // makes the context
  const Whereabouts here = find_whereabouts(device_);
  const std::vector<Whereabouts> ranks = all_gather(control, here, "symmetric heap");
  std::string problem;
  bool same_process = true, other_process = true;
  for (int rank = 0; rank < control.size(); ++rank) {
    const Whereabouts& there = ranks[static_cast<size_t>(rank)];
    const std::string reason = obstacle(here, there);
    if (!reason.empty()) problem = fmt::format("rank {} {}", rank, reason);
    if (rank == control.rank()) continue;
    const bool is_same = there.process.is_same_process(here.process);
    same_process = same_process && is_same;
    other_process = other_process && !is_same;
  }
  if (!same_process && !other_process) problem = "some ranks share a process with this one, others do not";
  for (int rank = 0; rank < control.size(); ++rank) {
    if (same_process) devices_.push_back(ranks[static_cast<size_t>(rank)].device);
  }
  std::set<std::string> gpus;
  for (const Whereabouts& there : ranks) gpus.insert(there.pci);
  shares_gpus_ = std::ssize(gpus) < control.size();
  devices_.push_back(device_);
  std::sort(devices_.begin(), devices_.end());
  devices_.erase(std::unique(devices_.begin(), devices_.end()), devices_.end());
  float has_problem = problem.empty() ? 0 : 1;
  control.all_reduce({&has_problem, 1}, ReduceOp::kMax, "symmetric heap");
  if (has_problem != 0) {
    throw NotAvailable(fmt::format("SymmetricHeap: every rank must reach the memory of all others (got: {})",
                                   problem.empty() ? "another rank cannot" : problem));
  }
  if (!same_process) fds_.emplace(control, timeout_s);
}

std::unique_ptr<SymmetricBlock> SymmetricHeap::allocate(size_t bytes, std::string_view label) {
  std::shared_ptr<Mapping> own;
  std::string problem;
  try {
    own = std::make_shared<Mapping>(Mapping::create(bytes, device_, devices_));
  } catch (const Error& error) {
    problem = error.what();
  }
  float has_problem = problem.empty() ? 0 : 1;
  control_.all_reduce({&has_problem, 1}, ReduceOp::kMax, label);
  if (has_problem != 0) {
    throw NotAvailable(fmt::format("SymmetricHeap: {} bytes for '{}' must be there on every rank (got: {})", bytes,
                                   label, problem.empty() ? "another rank has not enough" : problem));
  }
  auto mappings = in_process() ? share_in_process(std::move(own)) : share_by_descriptor(std::move(own));
  return std::make_unique<SymmetricBlock>(control_.rank(), std::move(mappings));
}

std::vector<std::shared_ptr<Mapping>> SymmetricHeap::share_in_process(std::shared_ptr<Mapping> own) {
  const auto addresses = all_gather(control_, reinterpret_cast<uintptr_t>(&own), "symmetric heap: addresses");
  std::vector<std::shared_ptr<Mapping>> mappings;
  for (const uintptr_t address : addresses) {
    mappings.push_back(*reinterpret_cast<const std::shared_ptr<Mapping>*>(address));
  }
  control_.barrier("symmetric heap: addresses read");
  return mappings;
}

std::vector<std::shared_ptr<Mapping>> SymmetricHeap::share_by_descriptor(std::shared_ptr<Mapping> own) {
  const auto sizes = all_gather(control_, static_cast<uint64_t>(own->bytes()), "symmetric heap: sizes");
  const UniqueFd fd = own->share();
  const std::vector<UniqueFd> fds = fds_->exchange(fd.get());
  std::vector<std::shared_ptr<Mapping>> mappings;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    mappings.push_back(static_cast<int>(rank) == control_.rank()
                           ? own
                           : std::make_shared<Mapping>(Mapping::import(fds[rank].get(), sizes[rank], devices_)));
  }
  control_.barrier("symmetric heap: imported");
  return mappings;
}

}  // namespace tangram::comm
