// nvJitLink: only its version is modelled; to link is not, and the generated stubs say so. No framework reaches it
// here, since the libraries that would call it (cuSPARSE, cuSOLVER) are the shim's own.
#include "core.h"

#define NVJITLINK_NO_INLINE // the header would define the exported names as inline wrappers
#include <nvJitLink.h>

extern "C" EID_API nvJitLinkResult nvJitLinkVersion(unsigned *major, unsigned *minor) {
  if (!major || !minor)
    return NVJITLINK_ERROR_NULL_INPUT;
  *major = EIDOLON_CUDA;
  *minor = EIDOLON_CUDA == 12 ? 8 : 0;
  return NVJITLINK_SUCCESS;
}
