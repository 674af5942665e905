// What is equal is computed once; constants that only look equal stay apart.
// RUN: tessera opt --pass-pipeline=merge-equal %s | filecheck %s
func.func @equal(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "tessera.graph.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "tessera.graph.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %3 = "tessera.graph.neg"(%2) : (tensor<?xf32>) -> tensor<?xf32>
  %4 = "tessera.graph.add"(%1, %3) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  func.return %4 : tensor<?xf32>
}
// CHECK-LABEL: func.func @equal
// CHECK-NEXT: %0 = "tessera.graph.exp"(%x)
// CHECK-NEXT: %1 = "tessera.graph.neg"(%0)
// CHECK-NEXT: %2 = "tessera.graph.add"(%1, %1)

func.func @zeros(%x: tensor<?xf32>) -> tensor<?xf32> {
  %plus = "tessera.graph.constant"() {value = 0.0} : () -> tensor<f32>
  %minus = "tessera.graph.constant"() {value = -0.0} : () -> tensor<f32>
  %0 = "tessera.graph.div"(%x, %plus) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %1 = "tessera.graph.div"(%0, %minus) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  func.return %1 : tensor<?xf32>
}
// CHECK-LABEL: func.func @zeros
// CHECK: "tessera.graph.div"(%x, %plus)
// CHECK-NEXT: "tessera.graph.div"(%0, %minus)

func.func @attributes(%x: tensor<?x?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "tessera.graph.sum"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.sum"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  func.return %0, %1 : tensor<?xf32>, tensor<?xf32>
}
// CHECK-LABEL: func.func @attributes
// CHECK-COUNT-2: "tessera.graph.sum"
