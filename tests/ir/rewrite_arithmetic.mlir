// Algebra that is exact in floating point, and none that is not.
// RUN: tessera opt --pass-pipeline=algebra %s | filecheck %s
func.func @neutral(%x: tensor<?xf32>) -> tensor<?xf32> {
  %one = "tessera.graph.constant"() {value = 1.0} : () -> tensor<f32>
  %zero = "tessera.graph.constant"() {value = 0.0} : () -> tensor<f32>
  %0 = "tessera.graph.mul"(%one, %x) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.div"(%0, %one) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %2 = "tessera.graph.sub"(%1, %zero) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %3 = "tessera.graph.pow"(%2, %one) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  func.return %3 : tensor<?xf32>
}
// CHECK-LABEL: func.func @neutral
// CHECK-NEXT: func.return %x

// -0.0 + 0.0 is 0.0: adding zero changes floats. Integers have no -0.
func.func @zero(%x: tensor<?xf32>, %i: tensor<?xi64>) -> (tensor<?xf32>, tensor<?xi64>) {
  %zero = "tessera.graph.constant"() {value = 0.0} : () -> tensor<f32>
  %none = "tessera.graph.constant"() {value = 0} : () -> tensor<i64>
  %0 = "tessera.graph.add"(%x, %zero) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %1 = "tessera.graph.add"(%i, %none) : (tensor<?xi64>, tensor<i64>) -> tensor<?xi64>
  func.return %0, %1 : tensor<?xf32>, tensor<?xi64>
}
// CHECK-LABEL: func.func @zero
// CHECK: %0 = "tessera.graph.add"(%x, %zero)
// CHECK-NEXT: func.return %0, %i

// One that broadcasts is not neutral.
func.func @broadcasting(%x: tensor<?xf32>) -> tensor<?x?xf32> {
  %one = "tessera.graph.constant"() {value = 1.0} : () -> tensor<?x1xf32>
  %0 = "tessera.graph.mul"(%x, %one) : (tensor<?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  func.return %0 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @broadcasting
// CHECK: "tessera.graph.mul"

func.func @powers(%x: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %two = "tessera.graph.constant"() {value = 2.0} : () -> tensor<f32>
  %inverse = "tessera.graph.constant"() {value = -1.0} : () -> tensor<f32>
  %0 = "tessera.graph.pow"(%x, %two) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %1 = "tessera.graph.pow"(%x, %inverse) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  func.return %0, %1 : tensor<?xf32>, tensor<?xf32>
}
// CHECK-LABEL: func.func @powers
// CHECK: "tessera.graph.mul"(%x, %x)
// CHECK: %[[ONE:.*]] = "tessera.graph.constant"() {value = 1.000000e+00 : f64
// CHECK-NEXT: "tessera.graph.div"(%[[ONE]], %x)

func.func @repeated(%x: tensor<?xf32>, %b: tensor<?xi1>) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xi1>) {
  %0 = "tessera.graph.neg"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "tessera.graph.relu"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %3 = "tessera.graph.relu"(%2) : (tensor<?xf32>) -> tensor<?xf32>
  %4 = "tessera.graph.logical_not"(%b) : (tensor<?xi1>) -> tensor<?xi1>
  %5 = "tessera.graph.logical_not"(%4) : (tensor<?xi1>) -> tensor<?xi1>
  func.return %1, %3, %5 : tensor<?xf32>, tensor<?xf32>, tensor<?xi1>
}
// CHECK-LABEL: func.func @repeated
// CHECK-NEXT: %0 = "tessera.graph.relu"(%x)
// CHECK-NEXT: func.return %x, %0, %b

func.func @choice(%c: tensor<?xi1>, %x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "tessera.graph.where"(%c, %x, %x) : (tensor<?xi1>, tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  func.return %0 : tensor<?xf32>
}
// CHECK-LABEL: func.func @choice
// CHECK-NEXT: func.return %x

// Folded as kernels compute: each step in the dtype of its operands.
func.func @constants(%x: tensor<?xf32>) -> tensor<?xf32> {
  %a = "tessera.graph.constant"() {value = 0.1} : () -> tensor<f32>
  %b = "tessera.graph.constant"() {value = 2.0} : () -> tensor<f32>
  %0 = "tessera.graph.mul"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = "tessera.graph.sqrt"(%0) : (tensor<f32>) -> tensor<f32>
  %2 = "tessera.graph.mul"(%x, %1) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  func.return %2 : tensor<?xf32>
}
// CHECK-LABEL: func.func @constants
// CHECK-NEXT: %[[ROOT:.*]] = "tessera.graph.constant"() {value = 0.44721359{{[0-9]*}} : f64, dims = []} : () -> tensor<f32>
// CHECK-NEXT: "tessera.graph.mul"(%x, %[[ROOT]])

func.func @broadcast(%x: tensor<?x?xf32>, %y: tensor<?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.broadcast_to"(%y) : (tensor<?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.mul"(%x, %0) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %1 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @broadcast
// CHECK-NEXT: "tessera.graph.mul"(%x, %y)

func.func @dead(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "tessera.graph.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.log"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  func.return %x : tensor<?xf32>
}
// CHECK-LABEL: func.func @dead
// CHECK-NEXT: func.return %x
