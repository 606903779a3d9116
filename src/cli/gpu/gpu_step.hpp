// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A step over ranks that are processes: with `--gpus N` they have a GPU each, and the program starts them itself unless
// a launcher has.
#pragma once

#include <functional>
#include <memory>

#include "cli/rank_step.hpp"
#include "tangram/env.hpp"

namespace tangram::cli {

/// Sets what `--gpus N` implies: N ranks, and bfloat16 unless a dtype is given. As the rank of `control` it also sets
/// the nodes that ranks are found to be on, where the options do not say. Plans know those to which rows cross once.
/// Throws InvalidArgument for a number that cannot be, or a backend that does not compute on GPUs. Collective.
void apply_gpus(StepOptions& step, DistOptions& dist, Communicator* control);

/// Whether this process is one of several ranks that a launcher has started. Under torchrun and Slurm it is where these
/// are several, under mpirun in any case.
bool has_launched_ranks();

/// Runs `verb_main`: where ranks are processes with the own rank's communicator, else without one. They are those of
/// mpirun, torchrun or Slurm, or with `--gpus N` new ones.
/// Returns the exit code, that of the rank that failed first. Throws NotAvailable for `--gpus` in a build without CUDA.
int run_on_ranks(const StepOptions& options, const std::function<int(Communicator*)>& verb_main);

/// Whether all ranks surely see the same files: not under a launcher, whose hosts may be several, and whose rank 0
/// writes.
bool is_one_host();

/// Throws NotAvailable in a build without CUDA.
void require_gpu_code();

/// The number of the GPU of a rank that sees `num_seen` of them: that of the rank. Under a launcher it is that among
/// the ranks of its host, or 0 where the launcher shows each process its GPU alone.
int gpu_of(const Env::Launch& launch, int rank, int num_seen);

/// Makes a GPU current on each rank: that of gpu_of.
/// Collective. Throws the same NotAvailable on all ranks where one of them finds too few, or two of a node have one.
void choose_gpus(Communicator& control);

/// The rank of one such process, whose GPU is current. Collective.
std::unique_ptr<StepRank> make_gpu_rank(std::shared_ptr<const Plan> plan, const StepOptions& options,
                                        Communicator& control);

}  // namespace tangram::cli
