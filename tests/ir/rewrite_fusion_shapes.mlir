// Graphs that are no chains: groups stay convex, values that others need leave their kernel, results of a bundle too.
// RUN: tessera opt --pass-pipeline=fuse-kernels %s | filecheck %s
func.func @diamond(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "tessera.graph.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "tessera.graph.abs"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %3 = "tessera.graph.add"(%1, %2) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  func.return %3 : tensor<?xf32>
}
// CHECK-LABEL: func.func @diamond
// CHECK: sym_name = "exp_neg_abs_add_0"
// CHECK-NEXT: func.return

// exp -> transpose -> add with exp again: the transpose lies outside, between two operations that may not be one kernel.
func.func @through_a_layout(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.transpose"(%0) {permutation = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.add"(%0, %1) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @through_a_layout
// CHECK: sym_name = "exp_0"
// CHECK: "tessera.graph.transpose"
// CHECK: sym_name = "add_2"

// The kernel of %a comes to need that of %c after the transpose of %a was placed; %c may then not wait for the transpose.
func.func @late_dependence(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>)
    -> (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>) {
  %a = "tessera.graph.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %at = "tessera.graph.transpose"(%a) {permutation = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %c = "tessera.graph.log"(%y) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %ct = "tessera.graph.transpose"(%c) {permutation = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %d = "tessera.graph.add"(%a, %c) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %e = "tessera.graph.mul"(%c, %at) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %d, %e, %ct : tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>
}
// CHECK-LABEL: func.func @late_dependence
// CHECK: sym_name = "log_0"
// CHECK: sym_name = "exp_add_1"
// CHECK: sym_name = "mul_4"

func.func @needed_twice(%x: tensor<?x?xf32>, %w: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %0 = "tessera.graph.relu"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.matmul"(%0, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.exp"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %1, %2 : tensor<?x?xf32>, tensor<?x?xf32>
}
// CHECK-LABEL: func.func @needed_twice
// CHECK: "tessera.schedule.yield"({{%.*, %.*}})
// CHECK-NEXT: sym_name = "relu_exp_0"
// CHECK: sym_name = "matmul_1"

func.func @results(%x: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xf32>) {
  %0 = "tessera.graph.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  func.return %0, %1, %x : tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
}
// CHECK-LABEL: func.func @results
// CHECK: %[[BOTH:.*]], %[[SECOND:.*]] = "tessera.schedule.kernel"(%x)
// CHECK: sym_name = "exp_neg_0"
// CHECK-NEXT: func.return %[[BOTH]], %[[SECOND]], %x

// A constant is written into each kernel that computes with it; what only views it needs it in memory.
func.func @constants(%x: tensor<?xf32>) -> (tensor<?xf32>, tensor<3xf32>) {
  %c = "tessera.graph.constant"() {value = 2.0} : () -> tensor<f32>
  %0 = "tessera.graph.mul"(%x, %c) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %1 = "tessera.graph.broadcast_to"(%c) : (tensor<f32>) -> tensor<3xf32>
  func.return %0, %1 : tensor<?xf32>, tensor<3xf32>
}
// CHECK-LABEL: func.func @constants
// CHECK: sym_name = "constant_0"
// CHECK: "tessera.schedule.kernel"(%x)
// CHECK: "tessera.graph.constant"() {value = 2.000000e+00 : f64
// CHECK: sym_name = "mul_1"
// CHECK: "tessera.graph.broadcast_to"
