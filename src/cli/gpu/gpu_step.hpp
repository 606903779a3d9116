// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A step over ranks that are processes with a GPU each, which the program starts itself: `--gpus N`.
#pragma once

#include <functional>
#include <memory>

#include "cli/rank_step.hpp"

namespace tangram::cli {

/// Sets what `--gpus N` implies: N ranks, and bfloat16 unless a dtype is given. Throws InvalidArgument for a number
/// that cannot be, or a backend that does not compute on GPUs.
void apply_gpus(const StepOptions& step, DistOptions& dist);

/// Runs `verb_main`: here without a communicator, or with `--gpus` in N processes, each with its own rank's. The
/// processes are those of mpirun, torchrun or Slurm, else new ones. Returns the exit code, that of the rank that failed
/// first. Throws NotAvailable in a build without CUDA.
int run_on_ranks(const StepOptions& options, const std::function<int(Communicator*)>& verb_main);

/// Whether all ranks surely see the same files: not under a launcher, whose hosts may be several, and whose rank 0
/// writes.
bool is_one_host();

/// Throws NotAvailable in a build without CUDA.
void require_gpu_code();

/// Makes a GPU current on each rank: the one with its number among the ranks of its host, or the only one that it sees.
/// Collective. Throws the same NotAvailable on all ranks where one of them finds too few, or two of a node have one.
void choose_gpus(Communicator& control);

/// The rank of one such process, whose GPU is current. Collective.
std::unique_ptr<StepRank> make_gpu_rank(std::shared_ptr<const Plan> plan, const StepOptions& options,
                                        Communicator& control);

}  // namespace tangram::cli
