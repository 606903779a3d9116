// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Everything public.
#pragma once

#include "tangram/attention.hpp"
#include "tangram/backends.hpp"
#include "tangram/communicator.hpp"
#include "tangram/config.hpp"
#include "tangram/device_arrivals.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/dtype.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tangram/exchange.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/head_masks.hpp"
#include "tangram/local_group.hpp"
#include "tangram/mask.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/mpi_group.hpp"
#include "tangram/plan.hpp"
#include "tangram/range.hpp"
#include "tangram/simulate.hpp"
#include "tangram/slice.hpp"
#include "tangram/socket_group.hpp"
#include "tangram/tensor.hpp"
#include "tangram/version.hpp"
