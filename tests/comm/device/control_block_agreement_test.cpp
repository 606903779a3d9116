// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/control_block_agreement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "core/options_word.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"

namespace tangram::comm {
namespace {

using ::testing::HasSubstr;

CallFingerprint fingerprint_of(uint64_t mask) {
  CallFingerprint fingerprint;
  fingerprint.set(CallFingerprint::kMask, mask);
  return fingerprint;
}

void on_control_blocks(int size,
                       const std::function<void(Communicator&, HostControlBlock&, ControlBlockAgreement&)>& body,
                       double timeout_s = 20) {
  run_local_ranks(
      size,
      [&](Communicator& control) {
        HostControlBlock control_block(control, timeout_s);
        ControlBlockAgreement agreement(control_block, control.rank(), timeout_s, {}, [] {});
        body(control, control_block, agreement);
        control.barrier("end");
      },
      timeout_s + 10);
}

/// Looks until something is wrong.
std::string error_of(ControlBlockAgreement& agreement, const std::function<void()>& call) {
  try {
    call();
    for (int i = 0; i < 20000; ++i) {
      agreement.look();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(ControlBlockAgreement, RanksThatSayTheSameGoOnWithoutEachOther) {
  on_control_blocks(3, [](Communicator& control, HostControlBlock& control_block, ControlBlockAgreement& agreement) {
    for (uint64_t i = 0; i < 40; ++i) agreement.agree(fingerprint_of(i), 7);  // though others may not have begun
    EXPECT_NO_THROW(agreement.meet());
    for (uint64_t i = 0; i < 1000; ++i) agreement.agree(fingerprint_of(i), i);
    agreement.meet();
    EXPECT_NO_THROW(agreement.look());
    EXPECT_EQ(control_block.num_statements((control.rank() + 1) % 3), 1040u);
    control.barrier("looked");
  });
}

TEST(ControlBlockAgreement, OneThatIsFarAheadWaits) {
  on_control_blocks(
      2,
      [](Communicator& control, HostControlBlock&, ControlBlockAgreement& agreement) {
        if (control.rank() == 0) {
          for (uint64_t i = 0; i < HostControlBlock::kStatements - 1; ++i) agreement.agree(fingerprint_of(i), 0);
          try {
            agreement.agree(fingerprint_of(0), 0);
            ADD_FAILURE() << "wrote over what rank 1 has not read";
          } catch (const Timeout& error) {
            EXPECT_THAT(error.what(), HasSubstr("rank 1 must come to the same call within 1 s (waited on rank 0)"));
          }
        }
        control.barrier("waited");
      },
      1);
}

TEST(ControlBlockAgreement, DifferencesAreReportedOnAllRanksInEitherOrder) {
  for (const int late : {0, 1}) {
    on_control_blocks(2, [late](Communicator& control, HostControlBlock&, ControlBlockAgreement& agreement) {
      agreement.agree(fingerprint_of(1), 0);
      if (control.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      const auto call = [&] { agreement.agree(fingerprint_of(static_cast<uint64_t>(control.rank())), 0); };
      EXPECT_THAT(error_of(agreement, call), HasSubstr("masks differ (rank 0: 0000000000000000; rank 1: "));
      EXPECT_THROW(agreement.look(), InvalidArgument) << "repeated";
      EXPECT_THROW(agreement.agree(fingerprint_of(5), 0), InvalidArgument);
    });
  }
}

TEST(ControlBlockAgreement, OptionsAndRefusals) {
  on_control_blocks(2, [](Communicator& control, HostControlBlock&, ControlBlockAgreement& agreement) {
    const auto rank = static_cast<uint64_t>(control.rank());
    EXPECT_THAT(error_of(agreement, [&] { agreement.agree(fingerprint_of(1), rank + 10); }),
                HasSubstr("options and backends must be alike on every rank (got rank 0: a; rank 1: b)"));
  });
  on_control_blocks(2, [](Communicator& control, HostControlBlock&, ControlBlockAgreement& agreement) {
    const char* backend = control.rank() == 0 ? "sm90" : "sm80";
    EXPECT_THAT(error_of(agreement, [&] { agreement.agree(fingerprint_of(1), options_word(backend, 7)); }),
                HasSubstr("must use the same backend, pass one that all GPUs of the group have (got rank 0: sm90; rank "
                          "1: sm80)"));
  });
  on_control_blocks(2, [](Communicator& control, HostControlBlock&, ControlBlockAgreement& agreement) {
    const auto call = [&] {
      if (control.rank() == 0) return agreement.refuse("has no plan");
      agreement.agree(fingerprint_of(1), 0);
    };
    EXPECT_THAT(error_of(agreement, call), HasSubstr("rank 0 refused its part: has no plan"));
  });
}

TEST(ControlBlockAgreement, MeetingWaitsForTheLast) {
  on_control_blocks(2, [](Communicator& control, HostControlBlock& control_block, ControlBlockAgreement& agreement) {
    if (control.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    agreement.agree(fingerprint_of(1), 0);
    agreement.meet();
    EXPECT_EQ(control_block.num_statements(1 - control.rank()), 1u);
  });
}

}  // namespace
}  // namespace tangram::comm
