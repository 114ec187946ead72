// The names that CUDA 12 has for functions of the runtime whose form CUDA 13 changed. CUDA 13 exports such a function
// in its later form only, under the plain name. CUDA 12 exports the earlier form under the plain name, and the later
// one as _v2 (_v3). The library is written in the names of CUDA 13, and this header turns them into those of CUDA 12.
// The earlier forms are in cudart_v12.cpp.
#pragma once

#if EIDOLON_CUDA == 12
#undef cudaStreamGetCaptureInfo
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v3
#define cudaStreamGetCaptureInfo_ptsz cudaStreamGetCaptureInfo_v3_ptsz
#define cudaStreamUpdateCaptureDependencies cudaStreamUpdateCaptureDependencies_v2
#define cudaStreamUpdateCaptureDependencies_ptsz cudaStreamUpdateCaptureDependencies_v2_ptsz
#define cudaGraphGetEdges cudaGraphGetEdges_v2
#define cudaGraphNodeGetDependencies cudaGraphNodeGetDependencies_v2
#define cudaGraphAddNode cudaGraphAddNode_v2
#define cudaMemAdvise cudaMemAdvise_v2
#define cudaMemPrefetchAsync cudaMemPrefetchAsync_v2
#define cudaMemPrefetchAsync_ptsz cudaMemPrefetchAsync_v2_ptsz
#endif
