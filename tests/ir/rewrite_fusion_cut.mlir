// Long chains are cut where a kernel has as much code as it may have.
// RUN: tessera opt --pass-pipeline=fuse-kernels{depth=120} %s | filecheck %s
func.func @chain(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "tessera.graph.tanh"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.tanh"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "tessera.graph.tanh"(%1) : (tensor<?xf32>) -> tensor<?xf32>
  %3 = "tessera.graph.neg"(%2) : (tensor<?xf32>) -> tensor<?xf32>
  func.return %3 : tensor<?xf32>
}
// CHECK-LABEL: func.func @chain
// CHECK: sym_name = "tanh_tanh_0"
// CHECK: sym_name = "tanh_neg_1"
