// A program at graph level: extents have names, a dimension that broadcasts is a static 1.
// RUN: tessera opt %s | filecheck %s
func.func @mlp(%x: tensor<?x?xbf16>, %w: tensor<?x?xbf16>, %b: tensor<?xbf16>) -> tensor<?x1xi64> {
  %product = "tessera.graph.matmul"(%x, %w) {transpose_b = true, accum_dtype = "fp32", dims = ["s0", "s2"]}
    : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %biased = "tessera.graph.add"(%product, %b) {dims = ["s0", "s2"]}
    : (tensor<?x?xbf16>, tensor<?xbf16>) -> tensor<?x?xbf16>
  %active = "tessera.graph.gelu"(%biased) {dims = ["s0", "s2"]} : (tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %likely = "tessera.graph.softmax"(%active) {axis = 1} : (tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %class = "tessera.graph.argmax"(%likely) {axes = [1], keepdims = true} : (tensor<?x?xbf16>) -> tensor<?x1xi64>
  func.return %class : tensor<?x1xi64>
}
// CHECK-LABEL: func.func @mlp
// CHECK: "tessera.graph.matmul"(%x, %w) {transpose_b = true, accum_dtype = "fp32", dims = ["s0", "s2"]}
// CHECK-NEXT: "tessera.graph.add"(%product, %b) {dims = ["s0", "s2"]} : (tensor<?x?xbf16>, tensor<?xbf16>) -> tensor<?x?xbf16>
// CHECK-NEXT: "tessera.graph.gelu"(%biased)
// CHECK-NEXT: "tessera.graph.softmax"(%active) {axis = 1 : i64}
// CHECK-NEXT: "tessera.graph.argmax"(%likely) {axes = [1 : i64], keepdims = true} : (tensor<?x?xbf16>) -> tensor<?x1xi64>
