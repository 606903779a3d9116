// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/socket_group.hpp"

#include <cmath>

#include "comm/progress_communicator.hpp"
#include "comm/socket/connect.hpp"
#include "comm/socket/socket_transport.hpp"
#include "core/require.hpp"
#include "tangram/env.hpp"

namespace tangram {

namespace {

SocketGroupConfig checked(SocketGroupConfig config) {
  require(config.size >= 1 && config.rank >= 0 && config.rank < config.size,
          "SocketGroup: rank must lie in [0, size) (got rank={}, size={})", config.rank, config.size);
  require(std::isfinite(config.timeout_s) && config.timeout_s >= 0,
          "SocketGroup: timeout_s must be finite and not negative (got {})", config.timeout_s);
  require(std::isfinite(config.setup_timeout_s) && config.setup_timeout_s >= 0,
          "SocketGroup: setup_timeout_s must be finite and not negative (got {})", config.setup_timeout_s);
  if (config.secret.empty()) config.secret = Env::get().secret;
  require(!config.address.starts_with("tcp:") || config.size == 1 || !config.secret.empty(),
          "SocketGroup: ranks that meet by TCP need a secret of their job: SocketGroupConfig::secret or TANGRAM_SECRET "
          "(got none)");
  require(config.secret.empty() || config.secret.size() >= Env::kMinSecretBytes,
          "SocketGroup: secret must be at least {} characters, drawn at random (got {})", Env::kMinSecretBytes,
          config.secret.size());
  if (config.timeout_s == 0) config.timeout_s = Env::get().timeout_s;
  if (config.setup_timeout_s == 0) config.setup_timeout_s = config.timeout_s;
  return config;
}

}  // namespace

class SocketGroup::Impl {
 public:
  explicit Impl(const SocketGroupConfig& config)
      : communicator(std::make_unique<comm::SocketTransport>(comm::Caller{config.rank, config.size},
                                                             comm::connect_ranks(config), config.timeout_s)) {}

  const MadeHere made_here;
  comm::ProgressCommunicator communicator;
};

SocketGroup::SocketGroup(const SocketGroupConfig& config) : impl_(std::make_unique<Impl>(checked(config))) {}
SocketGroup::~SocketGroup() { leave_to_parent(impl_); }  // NOTE [after a fork]
SocketGroup::SocketGroup(SocketGroup&&) noexcept = default;
SocketGroup& SocketGroup::operator=(SocketGroup&&) noexcept = default;

Communicator& SocketGroup::communicator() { return impl_->communicator; }

}  // namespace tangram
