// All kernels: what `cargo xtask cuda` compiles.
#include "fit.cu"
#include "scatter.cu"
#include "select.cu"
