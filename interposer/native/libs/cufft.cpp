// cuFFT: plans and their execution as operations of kind "library".
//
// A plan remembers its shape. To execute it costs 5 N log2 N operations per complex transform, and half of that per
// real one, which is the convention for stating the speed of FFTs. It also costs one pass over the data per dimension.
// Workspaces have 0 bytes. For sizes with small prime factors, which transforms in practice have, the real library
// needs little or none, and it does not say how much.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <cufft.h>
#include <cufftXt.h>
#include <map>
#include <mutex>

#include "operation.h"

using namespace eidolon;

namespace {

enum class Form { kUnset, kC2C, kR2C, kC2R };

struct Plan {
  Form form = Form::kUnset;
  size_t real_bytes = 0; // of one real number: 2, 4 or 8
  int rank = 0;
  long long points = 0; // of one transform
  long long batch = 0;
  long long output_elements = 0; // extent of the output, in elements of its type
  void *stream = nullptr;
};

std::mutex mutex;
std::map<cufftHandle, Plan> plans;
cufftHandle next_plan = 1;

struct Layout { // of the output; the size of the input follows from the plan
  const long long *embed;
  long long stride, distance;
};

cufftResult make(cufftHandle handle, int rank, const long long *n, const Layout &output, Form form, size_t real_bytes,
                 long long batch, size_t *work_bytes) {
  std::lock_guard hold(mutex);
  auto found = plans.find(handle);
  if (found == plans.end())
    return CUFFT_INVALID_PLAN;
  if (rank < 1 || rank > 3 || !n || batch < 1)
    return CUFFT_INVALID_SIZE;
  long long points = 1, extent = 1;
  for (int i = 0; i < rank; i++) {
    if (n[i] < 1)
      return CUFFT_INVALID_SIZE;
    bool halved = form == Form::kR2C && i == rank - 1; // half of a real signal's spectrum is redundant
    points *= n[i];
    extent *= output.embed && i > 0 ? output.embed[i] : halved ? n[i] / 2 + 1 : n[i];
  }
  Plan &plan = found->second;
  plan.form = form;
  plan.real_bytes = real_bytes;
  plan.rank = rank;
  plan.points = points;
  plan.batch = batch;
  plan.output_elements = output.embed ? (batch - 1) * output.distance + extent * output.stride : batch * extent;
  if (work_bytes)
    *work_bytes = 0;
  return CUFFT_SUCCESS;
}

cufftResult execute(cufftHandle handle, void *output, const char *name, uint16_t call) {
  Plan plan;
  {
    std::lock_guard hold(mutex);
    auto found = plans.find(handle);
    if (found == plans.end() || found->second.form == Form::kUnset)
      return CUFFT_INVALID_PLAN;
    plan = found->second;
  }
  auto real_bytes = static_cast<long long>(plan.real_bytes);
  bool complex_only = plan.form == Form::kC2C;
  double flops = (complex_only ? 5.0 : 2.5) * static_cast<double>(plan.points * plan.batch) *
                 std::log2(static_cast<double>(std::max(plan.points, 2LL)));
  long long data_bytes = plan.points * plan.batch * real_bytes * (complex_only ? 2 : 1);
  Work work = {.bytes = 2 * data_bytes * plan.rank, .flops = static_cast<int64_t>(flops)};
  if (Status status = launch_library(name, work, plan.stream, call))
    return status == kInvalidHandle ? CUFFT_INVALID_VALUE : CUFFT_EXEC_FAILED;
  value_unknown(output, static_cast<size_t>(plan.output_elements * real_bytes * (plan.form == Form::kC2R ? 1 : 2)));
  return CUFFT_SUCCESS;
}

bool form_of(cufftType type, Form *form, size_t *real_bytes) {
  *real_bytes = type == CUFFT_D2Z || type == CUFFT_Z2D || type == CUFFT_Z2Z ? 8 : 4;
  switch (type) {
  case CUFFT_C2C:
  case CUFFT_Z2Z:
    *form = Form::kC2C;
    return true;
  case CUFFT_R2C:
  case CUFFT_D2Z:
    *form = Form::kR2C;
    return true;
  case CUFFT_C2R:
  case CUFFT_Z2D:
    *form = Form::kC2R;
    return true;
  default:
    return false;
  }
}

bool complex_type(cudaDataType type) {
  return type == CUDA_C_16F || type == CUDA_C_16BF || type == CUDA_C_32F || type == CUDA_C_64F;
}
size_t real_bytes_of(cudaDataType type) {
  switch (type) {
  case CUDA_R_16F:
  case CUDA_C_16F:
  case CUDA_R_16BF:
  case CUDA_C_16BF:
    return 2;
  case CUDA_R_32F:
  case CUDA_C_32F:
    return 4;
  case CUDA_R_64F:
  case CUDA_C_64F:
    return 8;
  default:
    return 0;
  }
}

template <class Integer>
cufftResult make_typed(cufftHandle handle, int rank, const Integer *n, const Integer *onembed, Integer ostride,
                       Integer odist, cufftType type, Integer batch, size_t *work_bytes) {
  long long sizes[3] = {}, embed[3] = {};
  if (rank < 1 || rank > 3 || !n)
    return CUFFT_INVALID_SIZE;
  for (int i = 0; i < rank; i++) {
    sizes[i] = n[i];
    embed[i] = onembed ? onembed[i] : 0;
  }
  Form form;
  size_t real_bytes;
  if (!form_of(type, &form, &real_bytes))
    return CUFFT_INVALID_TYPE;
  return make(handle, rank, sizes, {onembed ? embed : nullptr, ostride, odist}, form, real_bytes, batch, work_bytes);
}

// cufftPlan* does cufftCreate and cufftMakePlan* in one call.
template <class F> cufftResult create_and(cufftHandle *out, F make_plan) {
  if (cufftResult status = cufftCreate(out))
    return status;
  cufftResult status = make_plan(*out);
  if (status)
    cufftDestroy(*out);
  return status;
}

} // namespace

extern "C" {

// ---- plans -------------------------------------------------------------------------------------------------------

EID_API cufftResult cufftGetVersion(int *version) {
  if (!version)
    return CUFFT_INVALID_VALUE;
  *version = CUFFT_VERSION;
  return CUFFT_SUCCESS;
}
EID_API cufftResult cufftGetProperty(libraryPropertyType type, int *value) {
  if (!value)
    return CUFFT_INVALID_VALUE;
  *value = type == MAJOR_VERSION ? CUFFT_VER_MAJOR : type == MINOR_VERSION ? CUFFT_VER_MINOR : CUFFT_VER_PATCH;
  return CUFFT_SUCCESS;
}
EID_API cufftResult cufftCreate(cufftHandle *out) {
  if (!out)
    return CUFFT_INVALID_VALUE;
  if (!config().active)
    return CUFFT_SETUP_FAILED;
  std::lock_guard hold(mutex);
  *out = next_plan++;
  plans.emplace(*out, Plan{});
  return CUFFT_SUCCESS;
}
EID_API cufftResult cufftDestroy(cufftHandle handle) {
  std::lock_guard hold(mutex);
  return plans.erase(handle) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}
EID_API cufftResult cufftSetStream(cufftHandle handle, cudaStream_t stream) {
  std::lock_guard hold(mutex);
  auto found = plans.find(handle);
  if (found == plans.end())
    return CUFFT_INVALID_PLAN;
  found->second.stream = stream;
  return CUFFT_SUCCESS;
}
// The workspace has 0 bytes, so nobody has to allocate it, and any address will do.
EID_API cufftResult cufftSetAutoAllocation(cufftHandle handle, int) {
  std::lock_guard hold(mutex);
  return plans.contains(handle) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}
EID_API cufftResult cufftSetWorkArea(cufftHandle handle, void *) {
  std::lock_guard hold(mutex);
  return plans.contains(handle) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}
EID_API cufftResult cufftGetSize(cufftHandle handle, size_t *work_bytes) {
  std::lock_guard hold(mutex);
  if (!work_bytes)
    return CUFFT_INVALID_VALUE;
  *work_bytes = 0;
  return plans.contains(handle) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}

EID_API cufftResult cufftMakePlanMany(cufftHandle handle, int rank, int *n, int *, int, int, int *onembed, int ostride,
                                      int odist, cufftType type, int batch, size_t *work_bytes) {
  return make_typed<int>(handle, rank, n, onembed, ostride, odist, type, batch, work_bytes);
}
EID_API cufftResult cufftMakePlanMany64(cufftHandle handle, int rank, long long *n, long long *, long long, long long,
                                        long long *onembed, long long ostride, long long odist, cufftType type,
                                        long long batch, size_t *work_bytes) {
  return make_typed<long long>(handle, rank, n, onembed, ostride, odist, type, batch, work_bytes);
}
EID_API cufftResult cufftXtMakePlanMany(cufftHandle handle, int rank, long long *n, long long *, long long, long long,
                                        cudaDataType input, long long *onembed, long long ostride, long long odist,
                                        cudaDataType output, long long batch, size_t *work_bytes, cudaDataType) {
  size_t real_bytes = real_bytes_of(output);
  if (real_bytes == 0 || real_bytes != real_bytes_of(input) || (!complex_type(input) && !complex_type(output)))
    return CUFFT_INVALID_TYPE;
  Form form = !complex_type(input) ? Form::kR2C : complex_type(output) ? Form::kC2C : Form::kC2R;
  return make(handle, rank, n, {onembed, ostride, odist}, form, real_bytes, batch, work_bytes);
}
EID_API cufftResult cufftMakePlan1d(cufftHandle handle, int nx, cufftType type, int batch, size_t *work_bytes) {
  return make_typed<int>(handle, 1, &nx, nullptr, 1, nx, type, batch, work_bytes);
}
EID_API cufftResult cufftMakePlan2d(cufftHandle handle, int nx, int ny, cufftType type, size_t *work_bytes) {
  const int n[] = {nx, ny};
  return make_typed<int>(handle, 2, n, nullptr, 1, 0, type, 1, work_bytes);
}
EID_API cufftResult cufftMakePlan3d(cufftHandle handle, int nx, int ny, int nz, cufftType type, size_t *work_bytes) {
  const int n[] = {nx, ny, nz};
  return make_typed<int>(handle, 3, n, nullptr, 1, 0, type, 1, work_bytes);
}
EID_API cufftResult cufftPlan1d(cufftHandle *out, int nx, cufftType type, int batch) {
  return create_and(out, [&](cufftHandle plan) { return cufftMakePlan1d(plan, nx, type, batch, nullptr); });
}
EID_API cufftResult cufftPlan2d(cufftHandle *out, int nx, int ny, cufftType type) {
  return create_and(out, [&](cufftHandle plan) { return cufftMakePlan2d(plan, nx, ny, type, nullptr); });
}
EID_API cufftResult cufftPlan3d(cufftHandle *out, int nx, int ny, int nz, cufftType type) {
  return create_and(out, [&](cufftHandle plan) { return cufftMakePlan3d(plan, nx, ny, nz, type, nullptr); });
}
EID_API cufftResult cufftPlanMany(cufftHandle *out, int rank, int *n, int *, int, int, int *onembed, int ostride,
                                  int odist, cufftType type, int batch) {
  return create_and(out, [&](cufftHandle plan) {
    return make_typed<int>(plan, rank, n, onembed, ostride, odist, type, batch, nullptr);
  });
}

// ---- execution ---------------------------------------------------------------------------------------------------

EID_API cufftResult cufftXtExec(cufftHandle handle, void *, void *output, int) {
  return execute(handle, output, "cufft:cufftXtExec", EID_CALL("cufftXtExec"));
}
EID_API cufftResult cufftExecC2C(cufftHandle handle, cufftComplex *, cufftComplex *output, int) {
  return execute(handle, output, "cufft:cufftExecC2C", EID_CALL("cufftExecC2C"));
}
EID_API cufftResult cufftExecR2C(cufftHandle handle, cufftReal *, cufftComplex *output) {
  return execute(handle, output, "cufft:cufftExecR2C", EID_CALL("cufftExecR2C"));
}
EID_API cufftResult cufftExecC2R(cufftHandle handle, cufftComplex *, cufftReal *output) {
  return execute(handle, output, "cufft:cufftExecC2R", EID_CALL("cufftExecC2R"));
}
EID_API cufftResult cufftExecZ2Z(cufftHandle handle, cufftDoubleComplex *, cufftDoubleComplex *output, int) {
  return execute(handle, output, "cufft:cufftExecZ2Z", EID_CALL("cufftExecZ2Z"));
}
EID_API cufftResult cufftExecD2Z(cufftHandle handle, cufftDoubleReal *, cufftDoubleComplex *output) {
  return execute(handle, output, "cufft:cufftExecD2Z", EID_CALL("cufftExecD2Z"));
}
EID_API cufftResult cufftExecZ2D(cufftHandle handle, cufftDoubleComplex *, cufftDoubleReal *output) {
  return execute(handle, output, "cufft:cufftExecZ2D", EID_CALL("cufftExecZ2D"));
}
} // extern "C"
