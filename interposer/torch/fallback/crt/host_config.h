// In place of CUDA's header of this name: it checks the version of the host compiler of nvcc, which is not used here.
#pragma once
