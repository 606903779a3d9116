// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NOTE [lists ahead] of program_attention.hpp, over a runtime in host memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "runtime/device/counted_ranks.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using counted::Ranks;
using counted::Tensors;
using ::testing::HasSubstr;

/// The Hopper backend; calls `before_backward` before it makes the lists of a backward pass, `before_forward` before
/// those of a forward pass.
class ToldBackend final : public AttnBackend {
 public:
  explicit ToldBackend(
      std::function<void()> before_backward, std::function<void()> before_forward = [] {})
      : before_backward_(std::move(before_backward)), before_forward_(std::move(before_forward)) {}

  AttnCaps caps() const override { return of_.caps(); }
  void check(const AttnShape& shape) const override { of_.check(shape); }
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override {
    (request.parts.has(MaskPart::kForward) ? before_forward_ : before_backward_)();
    return of_.build(request);
  }
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity) const override {
    return of_.make_slot(shape, capacity);
  }
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const override {
    of_.install(slot, std::move(metadata), stream);
  }
  int64_t workspace_bytes(const MaskSlot& slot, AttnPass pass) const override {
    return of_.workspace_bytes(slot, pass);
  }
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream) const override {
    of_.forward(slot, args, stream);
  }
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream) const override {
    of_.backward(slot, args, stream);
  }

 private:
  const Sm90Backend of_;
  const std::function<void()> before_backward_, before_forward_;
};

TEST(ListsAhead, NoForwardPassWaitsForThoseOfTheBackwardPass) {
  Ranks(2).run([](Ranks::Rank& rank) {
    std::atomic<bool> is_forward_done = false, waited_in_vain = false;
    const ToldBackend backend([&] {
      const auto begin = std::chrono::steady_clock::now();
      while (!is_forward_done && !waited_in_vain) {
        waited_in_vain = std::chrono::steady_clock::now() - begin > std::chrono::seconds(15);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
    DistAttention key(counted::make_pack_plan(1, 2, 4096, 4), rank.communicator, backend);
    Tensors forward(key, false);
    key.forward(forward.forward());
    is_forward_done = true;
    Tensors both(key);
    key.backward(both.backward());
    EXPECT_FALSE(waited_in_vain);
  });
}

TEST(ListsAhead, ThoseOfTheForwardPassAreMadeBesideTheRestOfAKey) {
  Ranks(2).run([](Ranks::Rank& rank) {
    const auto maker = std::this_thread::get_id();
    std::atomic<int> num_made = 0, num_elsewhere = 0;
    const ToldBackend backend([] {},
                              [&] {
                                ++num_made;
                                if (std::this_thread::get_id() != maker) ++num_elsewhere;
                              });
    constexpr unsigned kKeys = 40;
    for (unsigned seed = 1; seed <= kKeys; ++seed) {
      const DistAttention key(counted::make_pack_plan(seed, 2, 4096, 4), rank.communicator, backend);
      EXPECT_EQ(num_made, static_cast<int>(seed)) << "a key is there with the lists of its forward pass";
    }
    EXPECT_GT(num_elsewhere, 0) << "the first thread makes them";
  });
}

TEST(ListsAhead, AKeyMayEndWithoutItsBackwardPass) {
  Ranks(2).run([](Ranks::Rank& rank) {
    std::atomic<int> num_begun = 0;
    const ToldBackend backend([&] { ++num_begun; });
    for (unsigned seed = 1; seed <= 20; ++seed) {
      DistAttention key(counted::make_pack_plan(seed, 2, 4096, 4), rank.communicator, backend);
      Tensors forward(key, false);
      key.forward(forward.forward());
    }
    EXPECT_LE(num_begun, 20);
  });
}

// Peers may have begun the pass, and would wait for this rank.
TEST(ListsAhead, WhereTheyFailTheBackwardPassFailsOnAllRanks) {
  Ranks(2).run([](Ranks::Rank& rank) {
    const bool fails = rank.control.rank() == 0;
    const ToldBackend backend([fails] {
      if (fails) throw NotAvailable("no memory for lists");
    });
    DistAttention key(counted::make_pack_plan(1, 2, 4096, 4), rank.communicator, backend);
    Tensors forward(key, false);
    key.forward(forward.forward());
    rank.control.barrier("forward passes");
    std::string text = "no error";
    try {
      Tensors both(key);
      for (int i = 0; i < 5000; ++i) {
        rank.communicator.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_THAT(text, HasSubstr("no memory for lists"));
  });
}

}  // namespace
}  // namespace tangram
