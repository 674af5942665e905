// Attention that was written out becomes one operator.
// RUN: tessera opt --pass-pipeline=idioms %s | filecheck %s
func.func @scaled(%q: tensor<?x?x?xf32>, %k: tensor<?x?x?xf32>, %v: tensor<?x?x?xf32>, %c: tensor<f32>)
    -> tensor<?x?x?xf32> {
  %0 = "tessera.graph.matmul"(%q, %k) {transpose_b = true} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %1 = "tessera.graph.mul"(%0, %c) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %2 = "tessera.graph.softmax"(%1) {axis = 2} : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %3 = "tessera.graph.matmul"(%2, %v) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  func.return %3 : tensor<?x?x?xf32>
}
// CHECK-LABEL: func.func @scaled
// CHECK-NEXT: [[Q:%.*]] = "tessera.graph.mul"(%q, %c)
// CHECK-NEXT: [[ONE:%.*]] = "tessera.graph.constant"() {value = 1.000000e+00 : f64
// CHECK-NEXT: [[R:%.*]] = "tessera.graph.flash_attention"([[Q]], %k, %v, [[ONE]]) {causal = false
// CHECK-NEXT: func.return [[R]]

// Keys given as they are multiplied, a mask of booleans after a scale on the keys, and casts.
func.func @masked(%q: tensor<?x?xbf16>, %k: tensor<?x?xbf16>, %v: tensor<?x?xbf16>, %c: tensor<bf16>,
                  %m: tensor<?x?xi1>) -> tensor<?x?xbf16> {
  %lowest = "tessera.graph.constant"() {value = 0xFFF0000000000000 : f64} : () -> tensor<f32>
  %0 = "tessera.graph.mul"(%k, %c) : (tensor<?x?xbf16>, tensor<bf16>) -> tensor<?x?xbf16>
  %1 = "tessera.graph.matmul"(%q, %0) : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %2 = "tessera.graph.cast"(%1) : (tensor<?x?xbf16>) -> tensor<?x?xf32>
  %3 = "tessera.graph.where"(%m, %2, %lowest) : (tensor<?x?xi1>, tensor<?x?xf32>, tensor<f32>) -> tensor<?x?xf32>
  %4 = "tessera.graph.softmax"(%3) {axis = 1} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %5 = "tessera.graph.cast"(%4) : (tensor<?x?xf32>) -> tensor<?x?xbf16>
  %6 = "tessera.graph.matmul"(%5, %v) : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  func.return %6 : tensor<?x?xbf16>
}
// CHECK-LABEL: func.func @masked
// CHECK-DAG: [[K:%.*]] = "tessera.graph.transpose"(%k)
// CHECK-DAG: [[Q:%.*]] = "tessera.graph.mul"(%q, %c)
// CHECK: "tessera.graph.flash_attention"([[Q]], [[K]], %v, {{%.*}}, %m) {causal = false

// What else is done to scores, element by element, becomes steps: here c * tanh(q k^T / c), and a bias for each key.
func.func @capped(%q: tensor<?x?xf32>, %k: tensor<?x?xf32>, %v: tensor<?x?xf32>, %c: tensor<f32>, %b: tensor<?xf32>)
    -> tensor<?x?xf32> {
  %0 = "tessera.graph.matmul"(%q, %k) {transpose_b = true} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.div"(%0, %c) : (tensor<?x?xf32>, tensor<f32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.tanh"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "tessera.graph.mul"(%2, %c) : (tensor<?x?xf32>, tensor<f32>) -> tensor<?x?xf32>
  %4 = "tessera.graph.add"(%3, %b) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %5 = "tessera.graph.softmax"(%4) {axis = 1} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %6 = "tessera.graph.matmul"(%5, %v) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %6 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @capped
// CHECK-NOT: softmax
// CHECK: "tessera.graph.scored_attention"(%q, %k, %v, {{%.*}}, %b, %c)
// CHECK-NOT: softmax

// A score that is wanted itself has to be made.
func.func @shown(%q: tensor<?x?xf32>, %k: tensor<?x?xf32>, %v: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %0 = "tessera.graph.matmul"(%q, %k) {transpose_b = true} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.tanh"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.softmax"(%1) {axis = 1} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "tessera.graph.matmul"(%2, %v) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %1, %3 : tensor<?x?xf32>, tensor<?x?xf32>
}
// CHECK-LABEL: func.func @shown
// CHECK-NOT: attention

// Weights that are wanted themselves have to be made; so does a softmax along another axis.
func.func @wanted(%q: tensor<?x?xf32>, %k: tensor<?x?xf32>, %v: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %0 = "tessera.graph.matmul"(%q, %k) {transpose_b = true} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.softmax"(%0) {axis = 1} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.matmul"(%1, %v) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %1, %2 : tensor<?x?xf32>, tensor<?x?xf32>
}
// CHECK-LABEL: func.func @wanted
// CHECK-NOT: flash_attention

func.func @columns(%q: tensor<?x?xf32>, %k: tensor<?x?xf32>, %v: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.matmul"(%q, %k) {transpose_b = true} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.softmax"(%0) {axis = 0} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.matmul"(%1, %v) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @columns
// CHECK-NOT: flash_attention

// Heads of keys and values that were repeated are read where they are, if the extents are those of a repetition.
func.func @repeated(%q: tensor<?x?x?xf32>, %k: tensor<?x1x?x?xf32>, %v: tensor<?x1x?x?xf32>, %c: tensor<f32>)
    -> tensor<?x?x?xf32> {
  %0 = "tessera.graph.broadcast_to"(%k) : (tensor<?x1x?x?xf32>) -> tensor<?x?x?x?xf32>
  %1 = "tessera.graph.reshape"(%0) : (tensor<?x?x?x?xf32>) -> tensor<?x?x?xf32>
  %2 = "tessera.graph.broadcast_to"(%v) : (tensor<?x1x?x?xf32>) -> tensor<?x?x?x?xf32>
  %3 = "tessera.graph.reshape"(%2) : (tensor<?x?x?x?xf32>) -> tensor<?x?x?xf32>
  %4 = "tessera.graph.flash_attention"(%q, %1, %3, %c) {causal = true}
    : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  func.return %4 : tensor<?x?x?xf32>
}
// CHECK-LABEL: func.func @repeated
// CHECK-SAME: guards = {{\[}}
// CHECK: [[K:%.*]] = "tessera.graph.broadcast_to"(%k)
// CHECK: [[V:%.*]] = "tessera.graph.broadcast_to"(%v)
// CHECK: [[Q:%.*]] = "tessera.graph.reshape"(%q)
// CHECK: [[A:%.*]] = "tessera.graph.flash_attention"([[Q]], [[K]], [[V]], %c) {causal = true
// CHECK-NEXT: "tessera.graph.reshape"([[A]])

// A softmax that was written out, too.
func.func @softmax(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.max"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %1 = "tessera.graph.sub"(%x, %0) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.exp"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "tessera.graph.sum"(%2) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %4 = "tessera.graph.div"(%2, %3) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  func.return %4 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @softmax
// CHECK-NEXT: %0 = "tessera.graph.softmax"(%x) {axis = 1
// CHECK-NEXT: func.return %0

// A mask that compares positions hides the future, if there are as many queries as keys.
func.func @future(%q: tensor<?x?xf32>, %k: tensor<?x?xf32>, %v: tensor<?x?xf32>, %c: tensor<f32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.iota"() : () -> tensor<?x1xi64>
  %1 = "tessera.graph.iota"() : () -> tensor<?xi64>
  %2 = "tessera.graph.ge"(%0, %1) : (tensor<?x1xi64>, tensor<?xi64>) -> tensor<?x?xi1>
  %3 = "tessera.graph.flash_attention"(%q, %k, %v, %c, %2) {causal = false}
    : (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<f32>, tensor<?x?xi1>) -> tensor<?x?xf32>
  func.return %3 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @future
// CHECK-SAME: guards = {{\[}}
// CHECK-NEXT: "tessera.graph.flash_attention"(%q, %k, %v, %c) {causal = true
