// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the executors of a plan, on the host and on GPUs, read out of it in the same way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/program/emit.hpp"
#include "tangram/attention.hpp"
#include "tangram/communicator.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Fingerprint of the facts of a plan, and of a pass over it, that must be equal on all ranks.
CallFingerprint fingerprint_of(const Plan& plan);
CallFingerprint fingerprint_of(const CallFingerprint& of_plan, const Plan& plan, const DistForwardArgs& args);
CallFingerprint fingerprint_of(const CallFingerprint& of_plan, const Plan& plan, const DistBackwardArgs& args);

/// The operations of its life, or the epochs that are opened, belong to a call of these facts, those after it to none.
template <class Ranks>  // Communicator or DeviceCommunicator
class SharedFingerprint {
 public:
  SharedFingerprint(Ranks& communicator, const CallFingerprint& fingerprint) : communicator_(communicator) {
    communicator.set_call_fingerprint(fingerprint);
  }
  ~SharedFingerprint() { communicator_.set_call_fingerprint({}); }
  SharedFingerprint(const SharedFingerprint&) = delete;
  SharedFingerprint& operator=(const SharedFingerprint&) = delete;

 private:
  Ranks& communicator_;
};

/// Collective: throws InvalidArgument on every rank, naming what differs, unless all pass the same.
void agree_on_plan(Communicator& communicator, const CallFingerprint& plan);
void agree_on_call(Communicator& communicator, const CallFingerprint& call);

/// Hash of the options that must be equal on all ranks of GPUs beside the plan, without those that agree_on_heads
/// compares.
uint64_t hash_of_options(const DistAttentionOptions& options, const AttnBackend& backend);

/// Throws InvalidArgument unless the plan is for `size` ranks; asserts that stages of K/V are consistent.
void check_plan(const Plan& plan, int size);

}  // namespace tangram
