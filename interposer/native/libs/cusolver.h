// cuSOLVER's dense part: the handle, and what every solver does.
//
// A solver is one operation of kind "library" with the textbook's count of floating-point operations (times 4 for
// complex numbers). What it writes becomes unknown; its `info` becomes a known 0, "solved", since the values that would
// say otherwise do not exist. Workspace sizes are ours, small and never 0: the real ones depend on algorithms that the
// library chooses and does not state.
#pragma once
#include <algorithm>
#include <cusolverDn.h>
#include <type_traits>

#include "operation.h"

struct cusolverDnContext {
  cudaStream_t stream = nullptr;
  cusolverDeterministicMode_t deterministic = CUSOLVER_DETERMINISTIC_RESULTS;
};

#define EID_SOLVER extern "C" EID_API cusolverStatus_t

// Expands a macro once per data type, with its prefix, its element, the real number of the same precision, and its
// words for "symmetric", "form Q" and "apply Q".
#define EID_SOLVER_TYPES(F)                                                                                            \
  F(S, float, float, sy, orgqr, ormqr)                                                                                 \
  F(D, double, double, sy, orgqr, ormqr)                                                                               \
  F(C, cuComplex, float, he, ungqr, unmqr)                                                                             \
  F(Z, cuDoubleComplex, double, he, ungqr, unmqr)

namespace eidolon::solver {

inline constexpr int64_t kBlock = 32; // columns that a blocked algorithm has in hand

struct Size {
  size_t element_bytes;
  bool complex;
};
template <class T> inline constexpr Size kSize{sizeof(T), !std::is_floating_point_v<T>};

// The size of a workspace for matrices with this number of rows, in elements.
inline int workspace(int64_t rows) { return static_cast<int>(std::max<int64_t>(rows, 1) * kBlock); }

// A column-major matrix that an operation writes.
struct Written {
  void *data;
  int64_t rows, columns, leading, batch_stride = 0;
};

struct Solve {
  const char *name; // "cusolver:" and the function
  uint16_t call;
  double flops;     // of one problem, in real arithmetic
  int64_t elements; // of the matrices of one problem
  Size size;
  int *info = nullptr; // one per problem, on the device
  int64_t batch = 1;
};

inline void written(const Written &matrix, size_t element_bytes, int64_t batch = 1) {
  if (!matrix.data || matrix.rows <= 0 || matrix.columns <= 0)
    return;
  int64_t one = matrix.leading * (matrix.columns - 1) + matrix.rows;
  int64_t all = (batch - 1) * (matrix.batch_stride ? matrix.batch_stride : matrix.leading * matrix.columns) + one;
  value_unknown(matrix.data, static_cast<size_t>(all) * element_bytes);
}

inline cusolverStatus_t solve(cusolverDnHandle_t handle, const Solve &what, std::initializer_list<Written> outputs) {
  if (!handle)
    return CUSOLVER_STATUS_NOT_INITIALIZED;
  if (what.elements < 0 || what.batch < 0)
    return CUSOLVER_STATUS_INVALID_VALUE;
  auto batch = static_cast<double>(what.batch);
  Work work = {.bytes = 2 * what.elements * what.batch * static_cast<int64_t>(what.size.element_bytes),
               .flops = static_cast<int64_t>(what.flops * batch * (what.size.complex ? 4 : 1))};
  if (Status status = launch_library(what.name, work, handle->stream, what.call))
    return status == kOutOfMemory ? CUSOLVER_STATUS_ALLOC_FAILED : CUSOLVER_STATUS_EXECUTION_FAILED;
  for (const Written &matrix : outputs)
    written(matrix, what.size.element_bytes, what.batch);
  constexpr int kSolved[256] = {};
  for (int64_t done = 0; what.info && done < what.batch; done += 256)
    value_write(what.info + done, static_cast<size_t>(std::min<int64_t>(what.batch - done, 256)) * sizeof(int),
                kSolved);
  return CUSOLVER_STATUS_SUCCESS;
}

// Numbers of floating-point operations. They are LAPACK's counts; those for eigenvalues and singular values, with
// vectors, are by Golub and Van Loan.
inline double cube(double n) { return n * n * n; }
inline double lu_flops(double m, double n) { return m * n * n - cube(n) / 3; }
inline double cholesky_flops(double n) { return cube(n) / 3; }
inline double qr_flops(double m, double n) { return 2 * m * n * n - 2 * cube(n) / 3; }
inline double triangular_flops(double n, double columns) { return 2 * n * n * columns; } // two triangular solves
inline double reflect_flops(double m, double n, double k) {
  return 4 * m * n * k - 2 * (m + n) * k * k + 4 * cube(k) / 3;
}
inline double svd_flops(double m, double n) { return m < n ? svd_flops(n, m) : 4 * m * m * n + 22 * cube(n); }
inline double symmetric_eigen_flops(double n) { return 9 * cube(n); }
inline double general_eigen_flops(double n) { return 25 * cube(n); }

} // namespace eidolon::solver
