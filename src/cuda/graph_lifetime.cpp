// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/graph_lifetime.hpp"

#include <atomic>
#include <mutex>
#include <vector>

#include "cuda/check.hpp"

namespace tangram::cuda {

namespace {

/// Objects whose graphs have ended. CUDA tells so on a thread of its own, where none of its functions may be called.
struct Ended {
  std::mutex mutex;
  std::vector<std::shared_ptr<const void>> objects;
  std::atomic<bool> any = false;
};

Ended& ended() {
  static Ended* const instance = new Ended;  // never destroyed: CUDA may still call when the process ends
  return *instance;
}

void CUDART_CB graph_has_ended(void* kept) {
  auto* const object = static_cast<std::shared_ptr<const void>*>(kept);
  Ended& all = ended();
  const std::lock_guard lock(all.mutex);
  all.objects.push_back(std::move(*object));
  all.any = true;
  delete object;
}

}  // namespace

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error == cudaErrorStreamCaptureImplicit) {  // the legacy stream may not be asked while another one is captured
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(error, "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void keep_while_graph_lives(cudaStream_t stream, std::shared_ptr<const void> object) {
  release_objects_of_ended_graphs();
  if (!is_captured(stream)) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  unsigned long long id = 0;
  check(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, nullptr, nullptr, nullptr), "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive) return;  // an invalid capture gives no graph
  auto kept = std::make_unique<std::shared_ptr<const void>>(std::move(object));
  cudaUserObject_t user_object = nullptr;
  check(cudaUserObjectCreate(&user_object, kept.get(), graph_has_ended, 1, cudaUserObjectNoDestructorSync),
        "cudaUserObjectCreate");
  static_cast<void>(kept.release());  // the user object's from here on
  const cudaError_t retained = cudaGraphRetainUserObject(graph, user_object, 1, cudaGraphUserObjectMove);
  if (retained != cudaSuccess) static_cast<void>(cudaUserObjectRelease(user_object, 1));
  check(retained, "cudaGraphRetainUserObject");
}

void release_objects_of_ended_graphs() {
  Ended& all = ended();
  if (!all.any) return;
  std::vector<std::shared_ptr<const void>> objects;
  {
    const std::lock_guard lock(all.mutex);
    objects.swap(all.objects);
    all.any = false;
  }
  const AllowAllocationDuringCapture allow;
  objects.clear();
}

// Does not throw, since destructors free memory too: where it fails, so does what follows.
AllowAllocationDuringCapture::AllowAllocationDuringCapture() {
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_));
}

AllowAllocationDuringCapture::~AllowAllocationDuringCapture() {
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_));
}

}  // namespace tangram::cuda
