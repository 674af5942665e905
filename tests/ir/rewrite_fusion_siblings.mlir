// Two products of one operand whose results meet in a map are one kernel, if nothing else needs one of them.
// RUN: tessera opt --pass-pipeline=fuse-kernels %s | filecheck %s
// RUN: tessera opt --pass-pipeline=fuse-kernels{products=1} %s | filecheck %s --check-prefix=APART
func.func @gated(%x: tensor<?x?xf32>, %w: tensor<?x?xf32>, %v: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.matmul"(%x, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.silu"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.matmul"(%x, %v) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "tessera.graph.mul"(%1, %2) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %3 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @gated
// CHECK-NEXT: "tessera.schedule.kernel"(%x, %w, %v) ({
// CHECK: sym_name = "matmul_silu_matmul_mul_0", family = "contraction"
// CHECK-NEXT: func.return
// APART-LABEL: func.func @gated
// APART: sym_name = "matmul_0"
// APART: sym_name = "matmul_silu_mul_1"

// A third product reads the result of the first two from memory.
func.func @three(%x: tensor<?x?xf32>, %w: tensor<?x?xf32>, %v: tensor<?x?xf32>, %u: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.matmul"(%x, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.matmul"(%x, %v) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.mul"(%0, %1) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "tessera.graph.matmul"(%x, %u) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %4 = "tessera.graph.mul"(%2, %3) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %4 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @three
// CHECK: sym_name = "matmul_0"
// CHECK: sym_name = "matmul_matmul_mul_mul_1"

// What the caller needs, too, is stored.
func.func @needed(%x: tensor<?x?xf32>, %w: tensor<?x?xf32>, %v: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %0 = "tessera.graph.matmul"(%x, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.matmul"(%x, %v) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.mul"(%0, %1) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %1, %2 : tensor<?x?xf32>, tensor<?x?xf32>
}
// CHECK-LABEL: func.func @needed
// CHECK: sym_name = "matmul_{{[01]}}"
// CHECK: sym_name = "matmul_mul_{{[01]}}"

// Another first operand, another kernel.
func.func @strangers(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>, %w: tensor<?x?xf32>, %v: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.matmul"(%x, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.matmul"(%y, %v) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.add"(%0, %1) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @strangers
// CHECK: sym_name = "matmul_{{[01]}}"
// CHECK: sym_name = "matmul_add_{{[01]}}"
