// cuSOLVER: handles, parameter objects and versions.
#include "cusolver.h"

using namespace eidolon;

// Parameter objects only carry settings for iterations, which never run here.
struct syevjInfo {
  int unused;
};
struct gesvdjInfo {
  int unused;
};
struct cusolverDnParams {
  int unused;
};

namespace {

template <class T> cusolverStatus_t create(T **out) {
  if (!config().active)
    return CUSOLVER_STATUS_NOT_INITIALIZED;
  if (!out)
    return CUSOLVER_STATUS_INVALID_VALUE;
  *out = new T{};
  return CUSOLVER_STATUS_SUCCESS;
}
template <class T> cusolverStatus_t destroy(T *object) {
  if (!object)
    return CUSOLVER_STATUS_NOT_INITIALIZED;
  delete object;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t set(const void *object) { return object ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE; }
template <class T> cusolverStatus_t get(const void *object, T *out, T value) {
  if (!object || !out)
    return CUSOLVER_STATUS_INVALID_VALUE;
  *out = value;
  return CUSOLVER_STATUS_SUCCESS;
}

} // namespace

EID_SOLVER cusolverGetVersion(int *version) { return get(version, version, CUSOLVER_VERSION); }
EID_SOLVER cusolverGetProperty(libraryPropertyType type, int *value) {
  int number = type == MAJOR_VERSION   ? CUSOLVER_VER_MAJOR
               : type == MINOR_VERSION ? CUSOLVER_VER_MINOR
                                       : CUSOLVER_VER_PATCH;
  return get(value, value, number);
}

EID_SOLVER cusolverDnCreate(cusolverDnHandle_t *out) {
  if (config().active && ensure_context(current_device()) != kSuccess)
    return CUSOLVER_STATUS_NOT_INITIALIZED;
  return create(out);
}
EID_SOLVER cusolverDnDestroy(cusolverDnHandle_t handle) { return destroy(handle); }
EID_SOLVER cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  if (!handle)
    return CUSOLVER_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
EID_SOLVER cusolverDnGetStream(cusolverDnHandle_t handle, cudaStream_t *out) {
  return handle ? get(handle, out, handle->stream) : CUSOLVER_STATUS_NOT_INITIALIZED;
}
EID_SOLVER cusolverDnSetDeterministicMode(cusolverDnHandle_t handle, cusolverDeterministicMode_t mode) {
  if (!handle)
    return CUSOLVER_STATUS_NOT_INITIALIZED;
  handle->deterministic = mode;
  return CUSOLVER_STATUS_SUCCESS;
}
EID_SOLVER cusolverDnGetDeterministicMode(cusolverDnHandle_t handle, cusolverDeterministicMode_t *out) {
  return handle ? get(handle, out, handle->deterministic) : CUSOLVER_STATUS_NOT_INITIALIZED;
}

EID_SOLVER cusolverDnCreateParams(cusolverDnParams_t *out) { return create(out); }
EID_SOLVER cusolverDnDestroyParams(cusolverDnParams_t params) { return destroy(params); }
EID_SOLVER cusolverDnSetAdvOptions(cusolverDnParams_t params, cusolverDnFunction_t, cusolverAlgMode_t) {
  return set(params);
}

// The Jacobi solvers report no sweeps and no residual, since no iteration runs.
EID_SOLVER cusolverDnCreateSyevjInfo(syevjInfo_t *out) { return create(out); }
EID_SOLVER cusolverDnDestroySyevjInfo(syevjInfo_t info) { return destroy(info); }
EID_SOLVER cusolverDnXsyevjSetTolerance(syevjInfo_t info, double) { return set(info); }
EID_SOLVER cusolverDnXsyevjSetMaxSweeps(syevjInfo_t info, int) { return set(info); }
EID_SOLVER cusolverDnXsyevjSetSortEig(syevjInfo_t info, int) { return set(info); }
EID_SOLVER cusolverDnXsyevjGetResidual(cusolverDnHandle_t, syevjInfo_t info, double *out) {
  return get(info, out, 0.0);
}
EID_SOLVER cusolverDnXsyevjGetSweeps(cusolverDnHandle_t, syevjInfo_t info, int *out) { return get(info, out, 0); }
EID_SOLVER cusolverDnCreateGesvdjInfo(gesvdjInfo_t *out) { return create(out); }
EID_SOLVER cusolverDnDestroyGesvdjInfo(gesvdjInfo_t info) { return destroy(info); }
EID_SOLVER cusolverDnXgesvdjSetTolerance(gesvdjInfo_t info, double) { return set(info); }
EID_SOLVER cusolverDnXgesvdjSetMaxSweeps(gesvdjInfo_t info, int) { return set(info); }
EID_SOLVER cusolverDnXgesvdjSetSortEig(gesvdjInfo_t info, int) { return set(info); }
EID_SOLVER cusolverDnXgesvdjGetResidual(cusolverDnHandle_t, gesvdjInfo_t info, double *out) {
  return get(info, out, 0.0);
}
EID_SOLVER cusolverDnXgesvdjGetSweeps(cusolverDnHandle_t, gesvdjInfo_t info, int *out) { return get(info, out, 0); }
