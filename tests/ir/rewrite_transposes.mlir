// Transposes fold into matrix products, merge, and go where they change nothing.
// RUN: tessera opt --pass-pipeline=algebra %s | filecheck %s
func.func @into_matmul(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.transpose"(%a) {permutation = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.matmul"(%0, %b) {accum_dtype = "fp32"} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %1 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @into_matmul
// CHECK-NEXT: %0 = "tessera.graph.matmul"(%a, %b) {accum_dtype = "fp32", transpose_a = true, transpose_b = false, dims = ["s1", "s2"]}
// CHECK-NEXT: func.return %0

// Twice is not at all.
func.func @twice(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.transpose"(%b) {permutation = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.matmul"(%a, %0) {transpose_b = true} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %1 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @twice
// CHECK-NEXT: "tessera.graph.matmul"(%a, %b) {transpose_a = false, transpose_b = false

// A transpose of batch dimensions is none that a matrix product does.
func.func @batches(%a: tensor<?x?x?xf32>, %b: tensor<?x?x?xf32>) -> tensor<?x?x?xf32> {
  %0 = "tessera.graph.transpose"(%a) {permutation = [1, 0, 2]} : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %1 = "tessera.graph.matmul"(%0, %b) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  func.return %1 : tensor<?x?x?xf32>
}
// CHECK-LABEL: func.func @batches
// CHECK-NEXT: "tessera.graph.transpose"(%a)
// CHECK-NEXT: "tessera.graph.matmul"(%0, %b) {dims

func.func @merge(%x: tensor<?x?x?xf32>) -> (tensor<?x?x?xf32>, tensor<?x?x?xf32>) {
  %0 = "tessera.graph.transpose"(%x) {permutation = [1, 2, 0]} : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %1 = "tessera.graph.transpose"(%0) {permutation = [1, 0, 2]} : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %2 = "tessera.graph.transpose"(%0) {permutation = [2, 0, 1]} : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  func.return %1, %2 : tensor<?x?x?xf32>, tensor<?x?x?xf32>
}
// CHECK-LABEL: func.func @merge
// CHECK-NEXT: %0 = "tessera.graph.transpose"(%x) {permutation = [2 : i64, 1 : i64, 0 : i64]
// CHECK-NEXT: func.return %0, %x

func.func @reshapes(%x: tensor<6x4xf32>) -> tensor<24xf32> {
  %0 = "tessera.graph.reshape"(%x) : (tensor<6x4xf32>) -> tensor<2x12xf32>
  %1 = "tessera.graph.reshape"(%0) : (tensor<2x12xf32>) -> tensor<24xf32>
  func.return %1 : tensor<24xf32>
}
// CHECK-LABEL: func.func @reshapes
// CHECK-NEXT: %0 = "tessera.graph.reshape"(%x) {{.*}} : (tensor<6x4xf32>) -> tensor<24xf32>
// CHECK-NEXT: func.return %0
