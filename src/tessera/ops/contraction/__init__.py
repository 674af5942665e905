"""Matrix products: `matmul`, `gemm`, their calls and the notation of `einsum`."""
