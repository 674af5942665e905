// Maps over the same tensor that do not need each other are one kernel, which reads it once.
// RUN: tessera opt --pass-pipeline=fuse-kernels %s | filecheck %s
func.func @siblings(%x: tensor<?x?xf32>, %a: tensor<?xf32>, %b: tensor<?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %0 = "tessera.graph.add"(%x, %a) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.mul"(%x, %b) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  func.return %0, %1 : tensor<?x?xf32>, tensor<?x?xf32>
}
// CHECK-LABEL: func.func @siblings
// CHECK: sym_name = "add_mul_{{[01]}}"
// CHECK-NOT: sym_name

func.func @reductions(%x: tensor<?x?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "tessera.graph.sum"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.max"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  func.return %0, %1 : tensor<?xf32>, tensor<?xf32>
}
// CHECK-LABEL: func.func @reductions
// CHECK: sym_name = "sum_max_{{[01]}}"
// CHECK-NOT: sym_name

// A product between them decides the order: two kernels.
func.func @apart(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.matmul"(%0, %0) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.softmax"(%1) {axis = 1} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "tessera.graph.mul"(%x, %2) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %3 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @apart
// CHECK: sym_name = "exp_
// CHECK: sym_name = "matmul_
// CHECK: sym_name = "softmax_mul_
