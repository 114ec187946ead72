// Chooses what fits the image that the workload runs in.
#pragma once
#include <limits.h>

// Chooses the directory in `root` with the libraries for the CUDA that the image's framework was built for, and writes
// DIR/image. Ends the process if nothing here can run in this image.
void choose_libraries(char out[PATH_MAX], const char *root, char **command);

// Ends the process unless the image's C library can load what is in `lib`.
void check_c_library(const char *lib, const char *command);
