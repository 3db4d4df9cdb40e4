// All kernels: what `cargo xtask cuda` compiles.
#include "dense.cu"
#include "scatter.cu"
#include "select.cu"
