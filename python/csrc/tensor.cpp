// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tensor.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <unordered_map>

#include "core/require.hpp"

namespace tangram::python {

namespace {

// torch.float32 and so on, told by the package when torch is there. Never freed: it is used until the process ends.
std::unordered_map<PyObject*, DType>& torch_dtypes() {
  static auto* table = new std::unordered_map<PyObject*, DType>;
  return *table;
}

/// The table of functions by which DLPack 1.3 lets C read tensors of a library without calling Python: a tenth of the
/// time of torch's methods.
struct ExchangeApi {
  uint32_t major, minor;
  const ExchangeApi* earlier;
  void *allocate, *managed_from_object, *managed_to_object;
  /// Shape and strides are the tensor's own memory. 0, or -1 with a Python error.
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* out);
  void* current_work_stream;
};
std::atomic<const ExchangeApi*> torch_exchange = nullptr;
// The type of the last torch tensor: most are of one, and asking a type for its methods takes time. Only of a tensor
// may the functions of the table be asked.
std::atomic<PyTypeObject*> torch_type = nullptr;

struct Names {
  nb::object data_ptr = nb::module_::import_("sys").attr("intern")("data_ptr");
  nb::object shape = nb::module_::import_("sys").attr("intern")("shape");
  nb::object stride = nb::module_::import_("sys").attr("intern")("stride");
  nb::object dtype = nb::module_::import_("sys").attr("intern")("dtype");
  nb::object is_cuda = nb::module_::import_("sys").attr("intern")("is_cuda");
};
const Names& names() {
  static const auto* interned = new Names;
  return *interned;
}

nb::object get(nb::handle object, const nb::object& name) {
  return nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()) ?: throw nb::python_error());
}
nb::object call(nb::handle object, const nb::object& name) {
  PyObject* self = object.ptr();
  return nb::steal(PyObject_VectorcallMethod(name.ptr(), &self, 1, nullptr) ?: throw nb::python_error());
}

void read_sizes(Array& array, nb::handle shape, nb::handle strides, const char* function, const char* name) {
  // Both are tuples of torch's own making.
  const Py_ssize_t ndim = PyTuple_Size(shape.ptr());
  if (ndim < 0) throw nb::python_error();
  require(1 <= ndim && ndim <= 3, "{}: {} must have one to three dimensions (got {})", function, name, ndim);
  array.ndim = static_cast<int>(ndim);
  for (Py_ssize_t i = 0; i < ndim; ++i) {
    array.shape[static_cast<size_t>(i)] = PyLong_AsLongLong(PyTuple_GetItem(shape.ptr(), i));
    array.strides[static_cast<size_t>(i)] = PyLong_AsLongLong(PyTuple_GetItem(strides.ptr(), i));
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

/// Strides that lead nowhere, because there is no second row or head, become those of dense rows.
void straighten(Array& array) {
  bool is_empty = false;
  for (int i = 0; i < array.ndim; ++i) is_empty = is_empty || array.shape[static_cast<size_t>(i)] == 0;
  int64_t dense = 1;
  for (int i = array.ndim - 1; i >= 0; --i) {
    const size_t d = static_cast<size_t>(i);
    if (array.shape[d] == 1 || is_empty) array.strides[d] = dense;
    dense = array.strides[d] * array.shape[d];
  }
}

std::optional<DType> dtype_of(const nb::dlpack::dtype& type) {
  constexpr uint8_t kFloat = 2, kBFloat = 4;
  if (type.lanes != 1) return std::nullopt;
  if (type.code == kFloat && type.bits == 32) return DType::kFloat32;
  if (type.code == kFloat && type.bits == 16) return DType::kFloat16;
  if (type.code == kBFloat && type.bits == 16) return DType::kBFloat16;
  return std::nullopt;
}

/// Array of a torch tensor. Nothing if torch lacks the functions, or if the tensor is to be refused by name.
std::optional<Array> exchanged_array(nb::handle object) {
  const ExchangeApi* api = torch_exchange;
  if (api == nullptr) return std::nullopt;
  nb::dlpack::dltensor tensor{};
  if (api->tensor_from_object(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  const bool on_gpu = tensor.device.device_type == nb::device::cuda::value;
  if (!dtype || tensor.ndim < 1 || tensor.ndim > 3 || tensor.strides == nullptr ||
      (!on_gpu && tensor.device.device_type != nb::device::cpu::value)) {
    return std::nullopt;
  }
  Array array;
  array.dtype = *dtype;
  array.on_gpu = on_gpu;
  array.ndim = tensor.ndim;
  std::copy_n(tensor.shape, tensor.ndim, array.shape.begin());
  std::copy_n(tensor.strides, tensor.ndim, array.strides.begin());
  straighten(array);
  array.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  return array;
}

/// Whether kernels can read the tensor as it lies: the last dimension dense, no rows or heads on top of each other, and
/// in GPU memory the addresses that TMA reads.
bool is_readable(const nb::dlpack::dltensor& tensor) {
  const int64_t *shape = tensor.shape, *strides = tensor.strides;
  int64_t dense = 1;
  bool is_contiguous = true;
  for (int i = 2; i >= 0; --i) {
    is_contiguous = is_contiguous && (shape[i] == 1 || strides[i] == dense);
    dense *= shape[i];
  }
  const bool on_gpu = tensor.device.device_type == nb::device::cuda::value;
  constexpr int64_t kAlignment = 16;
  const auto address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  if (on_gpu && address % kAlignment != 0) return false;
  if (is_contiguous) return true;
  const int64_t unit = on_gpu ? kAlignment * 8 / tensor.dtype.bits : 1;
  return strides[2] == 1 && strides[1] >= shape[2] && strides[0] >= shape[2] && strides[0] % unit == 0 &&
         strides[1] % unit == 0;
}

bool are_plain(nb::handle q, nb::handle k, nb::handle v) {
  const ExchangeApi* api = torch_exchange;
  if (api == nullptr) return false;
  nb::dlpack::dltensor tensors[3] = {};
  int i = 0;
  for (const nb::handle object : {q, k, v}) {
    if (Py_TYPE(object.ptr()) != torch_type) return false;
    nb::dlpack::dltensor& tensor = tensors[i++];
    if (api->tensor_from_object(object.ptr(), &tensor) != 0) {
      PyErr_Clear();
      return false;
    }
    const bool is_alike = tensor.dtype == tensors[0].dtype &&
                          tensor.device.device_type == tensors[0].device.device_type &&
                          tensor.device.device_id == tensors[0].device.device_id;
    if (tensor.ndim != 3 || tensor.strides == nullptr || !is_alike || !dtype_of(tensor.dtype) || !is_readable(tensor))
      return false;
  }
  const int64_t *of_q = tensors[0].shape, *of_k = tensors[1].shape, *of_v = tensors[2].shape;
  return of_k[0] == of_v[0] && of_k[1] == of_v[1] && of_q[2] == of_k[2] && of_k[1] != 0 && of_q[1] % of_k[1] == 0;
}

Array torch_array(nb::handle object, nb::handle dtype, const char* function, const char* name) {
  const Names& n = names();
  Array array;
  // If the extension itself is called before any function of the package over torch, no dtype is registered yet.
  if (torch_dtypes().empty()) nb::module_::import_("tangram._torch_pass");
  const auto found = torch_dtypes().find(dtype.ptr());
  require(found != torch_dtypes().end(), "{}: {} must be float32, bfloat16 or float16 (got {})", function, name,
          nb::repr(dtype).c_str());
  array.dtype = found->second;
  array.on_gpu = get(object, n.is_cuda).is(Py_True);
  read_sizes(array, get(object, n.shape), call(object, n.stride), function, name);
  straighten(array);
  array.data = PyLong_AsVoidPtr(call(object, n.data_ptr).ptr());
  if (array.data == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  return array;
}

Array dlpack_array(nb::handle object, const char* function, const char* name) {
  Array array;
  require(nb::try_cast(object, array.owner), "{}: {} must be an array (got {})", function, name,
          nb::type_name(object.type()).c_str());
  const nb::dlpack::dtype type = array.owner.dtype();
  if (type == nb::dtype<float>()) {
    array.dtype = DType::kFloat32;
  } else if (type == nb::dtype<uint16_t>() || (type.code == 4 && type.bits == 16)) {
    array.dtype = DType::kBFloat16;
  } else {
    require(type.code == 2 && type.bits == 16,
            "{}: {} must be float32, bfloat16 or float16 (got type code={}, bits={})", function, name,
            static_cast<int>(type.code), static_cast<int>(type.bits));
    array.dtype = DType::kFloat16;
  }
  require(array.owner.device_type() == nb::device::cpu::value || array.owner.device_type() == nb::device::cuda::value,
          "{}: {} must lie in host or CUDA memory (got DLPack device={})", function, name, array.owner.device_type());
  array.on_gpu = array.owner.device_type() == nb::device::cuda::value;
  require(1 <= array.owner.ndim() && array.owner.ndim() <= 3, "{}: {} must have one to three dimensions (got {})",
          function, name, array.owner.ndim());
  array.ndim = static_cast<int>(array.owner.ndim());
  for (size_t i = 0; i < array.owner.ndim(); ++i) {
    array.shape[i] = static_cast<int64_t>(array.owner.shape(i));
    array.strides[i] = array.owner.stride(i);
  }
  straighten(array);
  array.data = const_cast<void*>(array.owner.data());
  return array;
}

}  // namespace

Array array_of(nb::handle object, const char* function, const char* name) {
  if (Py_TYPE(object.ptr()) == torch_type || PyObject_HasAttr(object.ptr(), names().data_ptr.ptr()) != 0) {
    torch_type = Py_TYPE(object.ptr());
    if (std::optional<Array> array = exchanged_array(object)) return *std::move(array);
    return torch_array(object, get(object, names().dtype), function, name);
  }
  return dlpack_array(object, function, name);
}

Array Arguments::checked(nb::handle object, const char* name) {
  Array array = array_of(object, function_, name);
  require(array.on_gpu == on_gpu_, "{}: {} must lie in {} memory, where the backend computes (got {} memory)",
          function_, name, on_gpu_ ? "CUDA" : "host", array.on_gpu ? "CUDA" : "host");
  if (array.owner.is_valid()) owners_.push_back(array.owner);
  return array;
}

TensorView Arguments::output(nb::handle object, const char* name) {
  const Array a = checked(object, name);
  require(a.ndim == 3, "{}: {} must have shape [rows, heads, dim] (got dimensions={})", function_, name, a.ndim);
  require(a.shape[2] <= 1 || a.strides[2] == 1, "{}: the last dimension of {} must be contiguous (got stride={})",
          function_, name, a.strides[2]);
  return {{a.data, a.dtype, a.shape[0], static_cast<int>(a.shape[1]), static_cast<int>(a.shape[2]), a.strides[0],
           a.strides[1]}};
}

ConstTensorView Arguments::input(nb::handle object, const char* name) { return output(object, name); }

float* Arguments::floats(nb::handle object, const char* name, std::initializer_list<int64_t> shape) {
  if (object.is_none()) return nullptr;
  const Array a = checked(object, name);
  bool fits = a.dtype == DType::kFloat32 && a.ndim == static_cast<int>(shape.size());
  int64_t dense = 1;
  for (int i = a.ndim - 1; i >= 0 && fits; --i) {
    const int64_t size = shape.begin()[i];
    fits = (size < 0 || size == a.shape[i]) && (a.shape[i] <= 1 || a.strides[i] == dense);
    dense *= a.shape[i];
  }
  if (!fits) {
    std::vector<std::string> wanted;
    for (const int64_t size : shape) wanted.push_back(size < 0 ? "n" : std::to_string(size));
    throw InvalidArgument(fmt::format("{}: {} must be contiguous float32 of shape [{}] (got {}[{}])", function_, name,
                                      fmt::join(wanted, ", "), to_string(a.dtype),
                                      fmt::join(a.shape.begin(), a.shape.begin() + a.ndim, ", ")));
  }
  return static_cast<float*>(a.data);
}

Sink Arguments::sink(nb::handle object, const std::string& layout, int64_t seqlen_q, int num_heads_q) {
  require(layout == "sh" || layout == "ssh", "{}: sink_layout must be 'sh' or 'ssh' (got '{}')", function_, layout);
  if (object.is_none()) return {};
  const bool per_row = layout == "ssh";
  const float* data =
      per_row ? floats(object, "sink", {seqlen_q, -1, num_heads_q}) : floats(object, "sink", {-1, num_heads_q});
  const Array a = array_of(object, function_, "sink");
  return {data, a.shape[per_row ? 1 : 0], per_row ? SinkLayout::kSsh : SinkLayout::kSh};
}

void bind_tensor(nb::module_& m) {
  m.def(
      "register_torch_dtype",
      [](nb::object dtype, const std::string& name) {
        torch_dtypes()[dtype.ptr()] = parse_dtype(name);
        dtype.release();  // the table keeps it
      },
      "dtype"_a, "name"_a, "Tells the extension, which does not know torch, what a torch dtype is called.");
  m.def("are_plain", &are_plain, "q"_a.none(), "k"_a.none(), "v"_a.none(),
        "Whether these are torch tensors that a call takes as they are: of one dtype and device, shapes that fit, rows "
        "that kernels can read. False says nothing: it takes a tenth of the time of asking torch.");
  m.def(
      "register_torch_exchange",
      [](nb::handle capsule) {
        if (capsule.is_none()) {
          torch_exchange = nullptr;
          return;
        }
        const void* api = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
        if (api == nullptr) throw nb::python_error();
        const auto* exchange = static_cast<const ExchangeApi*>(api);
        if (exchange->major == 1 && exchange->tensor_from_object != nullptr) torch_exchange = exchange;
      },
      "capsule"_a.none(),
      "Gives the extension torch's table of functions of DLPack, if torch has one (None: has not).");
}

}  // namespace tangram::python
