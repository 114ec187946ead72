// cuSPARSELt (2:4 structured sparsity): handles can be opened and closed. Its products are not modelled, and their
// generated stubs say so by name. So frameworks report an error at the call that needs them, and not at start-up.
#include <cstring>
#include <cusparseLt.h>

#include "core.h"

using namespace eidolon;

extern "C" {

EID_API cusparseStatus_t cusparseLtInit(cusparseLtHandle_t *handle) {
  if (!config().active)
    return CUSPARSE_STATUS_NOT_INITIALIZED;
  if (!handle)
    return CUSPARSE_STATUS_INVALID_VALUE;
  std::memset(static_cast<void *>(handle), 0, sizeof *handle);
  return CUSPARSE_STATUS_SUCCESS;
}
EID_API cusparseStatus_t cusparseLtDestroy(const cusparseLtHandle_t *handle) {
  return handle ? CUSPARSE_STATUS_SUCCESS : CUSPARSE_STATUS_INVALID_VALUE;
}
EID_API cusparseStatus_t cusparseLtGetVersion(const cusparseLtHandle_t *, int *version) {
  if (!version)
    return CUSPARSE_STATUS_INVALID_VALUE;
  *version = CUSPARSELT_VERSION;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_API cusparseStatus_t cusparseLtGetProperty(libraryPropertyType type, int *value) {
  if (!value)
    return CUSPARSE_STATUS_INVALID_VALUE;
  *value = type == MAJOR_VERSION   ? CUSPARSELT_VER_MAJOR
           : type == MINOR_VERSION ? CUSPARSELT_VER_MINOR
                                   : CUSPARSELT_VER_PATCH;
  return CUSPARSE_STATUS_SUCCESS;
}
} // extern "C"
