// Casts merge where the first one loses nothing.
// RUN: tessera opt --pass-pipeline=algebra %s | filecheck %s
func.func @same(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "tessera.graph.cast"(%x) {dtype = "fp32"} : (tensor<?xf32>) -> tensor<?xf32>
  func.return %0 : tensor<?xf32>
}
// CHECK-LABEL: func.func @same
// CHECK-NEXT: func.return %x

func.func @there_and_back(%x: tensor<?xbf16>) -> tensor<?xbf16> {
  %0 = "tessera.graph.cast"(%x) {dtype = "fp32"} : (tensor<?xbf16>) -> tensor<?xf32>
  %1 = "tessera.graph.cast"(%0) {dtype = "bf16"} : (tensor<?xf32>) -> tensor<?xbf16>
  func.return %1 : tensor<?xbf16>
}
// CHECK-LABEL: func.func @there_and_back
// CHECK-NEXT: func.return %x

func.func @through_wider(%x: tensor<?xf16>) -> tensor<?xi32> {
  %0 = "tessera.graph.cast"(%x) {dtype = "fp64"} : (tensor<?xf16>) -> tensor<?xf64>
  %1 = "tessera.graph.cast"(%0) {dtype = "int32"} : (tensor<?xf64>) -> tensor<?xi32>
  func.return %1 : tensor<?xi32>
}
// CHECK-LABEL: func.func @through_wider
// CHECK-NEXT: %0 = "tessera.graph.cast"(%x) {dtype = "int32", dims = ["s0"]} : (tensor<?xf16>) -> tensor<?xi32>
// CHECK-NEXT: func.return %0

// bf16 rounds fp32; fp16 and bf16 each have values that the other lacks; integers go to floats and back inexactly.
func.func @lossy(%x: tensor<?xf32>, %h: tensor<?xf16>, %i: tensor<?xi64>) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xi64>) {
  %0 = "tessera.graph.cast"(%x) {dtype = "bf16"} : (tensor<?xf32>) -> tensor<?xbf16>
  %1 = "tessera.graph.cast"(%0) {dtype = "fp32"} : (tensor<?xbf16>) -> tensor<?xf32>
  %2 = "tessera.graph.cast"(%h) {dtype = "bf16"} : (tensor<?xf16>) -> tensor<?xbf16>
  %3 = "tessera.graph.cast"(%2) {dtype = "fp32"} : (tensor<?xbf16>) -> tensor<?xf32>
  %4 = "tessera.graph.cast"(%i) {dtype = "fp32"} : (tensor<?xi64>) -> tensor<?xf32>
  %5 = "tessera.graph.cast"(%4) {dtype = "int64"} : (tensor<?xf32>) -> tensor<?xi64>
  func.return %1, %3, %5 : tensor<?xf32>, tensor<?xf32>, tensor<?xi64>
}
// CHECK-LABEL: func.func @lossy
// CHECK-COUNT-6: "tessera.graph.cast"
