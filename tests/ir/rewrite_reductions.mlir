// A kernel reduces one run of neighbouring dimensions: other reductions come apart, narrow floats in fp32.
// RUN: tessera opt --pass-pipeline=split-reductions %s | filecheck %s
func.func @apart(%x: tensor<?x?x?xf32>) -> tensor<?xf32> {
  %0 = "tessera.graph.sum"(%x) {axes = [0, 2]} : (tensor<?x?x?xf32>) -> tensor<?xf32>
  func.return %0 : tensor<?xf32>
}
// CHECK-LABEL: func.func @apart
// CHECK: %0 = "tessera.graph.sum"(%x) {axes = [2 : i64], keepdims = false, dims = ["s0", "s1"]} : (tensor<?x?x?xf32>) -> tensor<?x?xf32>
// CHECK-NEXT: %1 = "tessera.graph.sum"(%0) {axes = [0 : i64], keepdims = false, dims = ["s1"]} : (tensor<?x?xf32>) -> tensor<?xf32>
// CHECK-NEXT: func.return %1

func.func @narrow(%x: tensor<?x?x?xbf16>) -> tensor<1x?x1xbf16> {
  %0 = "tessera.graph.mean"(%x) {axes = [0, 2], keepdims = true} : (tensor<?x?x?xbf16>) -> tensor<1x?x1xbf16>
  func.return %0 : tensor<1x?x1xbf16>
}
// CHECK-LABEL: func.func @narrow
// CHECK: "tessera.graph.cast"(%x) {dtype = "fp32"
// CHECK-NEXT: "tessera.graph.mean"({{.*}}) {axes = [2 : i64], keepdims = true, dims = ["s0", "s1", "1"]} : (tensor<?x?x?xf32>) -> tensor<?x?x1xf32>
// CHECK-NEXT: "tessera.graph.mean"({{.*}}) {axes = [0 : i64], keepdims = true, dims = ["1", "s1", "1"]} : (tensor<?x?x1xf32>) -> tensor<1x?x1xf32>
// CHECK-NEXT: "tessera.graph.cast"({{.*}}) {dtype = "bf16", dims = ["1", "s1", "1"]} : (tensor<1x?x1xf32>) -> tensor<1x?x1xbf16>

// Integers add up in i64.
func.func @integers(%x: tensor<?x?x?xi32>) -> tensor<?xi64> {
  %0 = "tessera.graph.sum"(%x) {axes = [0, 2]} : (tensor<?x?x?xi32>) -> tensor<?xi64>
  func.return %0 : tensor<?xi64>
}
// CHECK-LABEL: func.func @integers
// CHECK: "tessera.graph.sum"(%x) {{.*}} : (tensor<?x?x?xi32>) -> tensor<?x?xi64>
// CHECK-NEXT: "tessera.graph.sum"({{.*}}) {{.*}} : (tensor<?x?xi64>) -> tensor<?xi64>

// Neighbours stay together; no dimensions are no reduction.
func.func @together(%x: tensor<?x?x?xf32>) -> (tensor<?xf32>, tensor<?x?x?xf32>) {
  %0 = "tessera.graph.max"(%x) {axes = [1, 2]} : (tensor<?x?x?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.max"(%x) {axes = []} : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  func.return %0, %1 : tensor<?xf32>, tensor<?x?x?xf32>
}
// CHECK-LABEL: func.func @together
// CHECK: %0 = "tessera.graph.max"(%x) {axes = [1 : i64, 2 : i64]
// CHECK-NEXT: func.return %0, %x
