// All kernels: what `cargo xtask cuda` compiles.
#include "scatter.cu"
#include "select.cu"
