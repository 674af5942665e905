// Extents of a graph written by hand get names: one for dimensions that an operator needs to be equal, "1" for a static 1.
// RUN: tessera opt --pass-pipeline=name-extents %s | filecheck %s
func.func @product(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>, %c: tensor<?xf32>, %d: tensor<?x1xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.matmul"(%a, %b) {transpose_b = true} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.add"(%0, %c) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.mul"(%1, %d) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK: argument_dims = {{\[}}["s0", "s1"], ["s2", "s1"], ["s2"], ["s0", "1"]]
// CHECK: "tessera.graph.matmul"(%a, %b) {transpose_b = true, dims = ["s0", "s2"]}
// CHECK-NEXT: "tessera.graph.add"(%0, %c) {dims = ["s0", "s2"]}
// CHECK-NEXT: "tessera.graph.mul"(%1, %d) {dims = ["s0", "s2"]}

// Names that are given stay, also of what must equal them.
func.func @given(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.add"(%x, %y) {dims = ["rows", "columns"]} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.sum"(%0) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %2 = "tessera.graph.transpose"(%0) {permutation = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "tessera.graph.concat"(%2, %2) {axis = 0} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %3 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @given
// CHECK-SAME: argument_dims = {{\[}}["rows", "columns"], ["rows", "columns"]]
// CHECK: "tessera.graph.sum"(%0) {axes = [1 : i64], keepdims = true, dims = ["rows", "1"]}
// CHECK-NEXT: "tessera.graph.transpose"(%0) {permutation = [1 : i64, 0 : i64], dims = ["columns", "rows"]}
// CHECK-NEXT: "tessera.graph.concat"(%2, %2) {axis = 0 : i64, dims = ["s0", "rows"]}
