// Transposes of images go below what follows a convolution.
// RUN: tessera opt --pass-pipeline=algebra %s | filecheck %s
func.func @epilogue(%x: tensor<?x?x?x?xf32>, %w: tensor<?x?x?x?xf32>, %b: tensor<1x?x1x1xf32>) -> tensor<?x?x?x?xf32> {
  %0 = "tessera.graph.transpose"(%x) {permutation = [0, 2, 3, 1]} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %1 = "tessera.graph.conv2d"(%0, %w) {stride = [1, 1], padding = [0, 0, 0, 0], dilation = [1, 1], groups = 1} : (tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %2 = "tessera.graph.transpose"(%1) {permutation = [0, 3, 1, 2]} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %3 = "tessera.graph.add"(%2, %b) : (tensor<?x?x?x?xf32>, tensor<1x?x1x1xf32>) -> tensor<?x?x?x?xf32>
  %4 = "tessera.graph.relu"(%3) : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %5 = "tessera.graph.max_pool2d"(%4) {kernel = [2, 2], stride = [2, 2], padding = [0, 0, 0, 0], dilation = [1, 1], layout = "NCHW"} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  func.return %5 : tensor<?x?x?x?xf32>
}
// CHECK-LABEL: func.func @epilogue
// CHECK-DAG: [[IMAGE:%[0-9]+]] = "tessera.graph.conv2d"
// CHECK-DAG: [[BIAS:%[0-9]+]] = "tessera.graph.transpose"(%b) {permutation = [0 : i64, 2 : i64, 3 : i64, 1 : i64]
// CHECK: [[SUM:%[0-9]+]] = "tessera.graph.add"([[IMAGE]], [[BIAS]])
// CHECK-NEXT: [[MAP:%[0-9]+]] = "tessera.graph.relu"([[SUM]])
// CHECK-NEXT: [[POOL:%[0-9]+]] = "tessera.graph.max_pool2d"([[MAP]]) {{.*}}layout = "NHWC"
// CHECK-NEXT: "tessera.graph.transpose"([[POOL]]) {permutation = [0 : i64, 3 : i64, 1 : i64, 2 : i64]

func.func @mean(%x: tensor<?x?x?x?xf32>, %w: tensor<?x?x?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.conv2d"(%x, %w) {stride = [1, 1], padding = [0, 0, 0, 0], dilation = [1, 1], groups = 1} : (tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %1 = "tessera.graph.transpose"(%0) {permutation = [0, 3, 1, 2]} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %2 = "tessera.graph.mean"(%1) {axes = [2, 3]} : (tensor<?x?x?x?xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @mean
// CHECK: "tessera.graph.mean"(%{{[0-9]+}}) {axes = [1 : i64, 2 : i64]

// What no convolution made stays as it is written, and so does what follows an operand that cannot turn with it.
func.func @others(%x: tensor<?x?x?x?xf32>, %y: tensor<?xf32>) -> tensor<?x?x?x?xf32> {
  %0 = "tessera.graph.transpose"(%x) {permutation = [0, 3, 1, 2]} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %1 = "tessera.graph.add"(%0, %y) : (tensor<?x?x?x?xf32>, tensor<?xf32>) -> tensor<?x?x?x?xf32>
  func.return %1 : tensor<?x?x?x?xf32>
}
// CHECK-LABEL: func.func @others
// CHECK: "tessera.graph.transpose"(%x)
// CHECK-NEXT: "tessera.graph.add"

// Of one image in two orders neither is the right one: what reads both stays, and rewriting ends.
func.func @orders(%x: tensor<?x?x?x?xf32>, %w: tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32> {
  %0 = "tessera.graph.conv2d"(%x, %w) {stride = [1, 1], padding = [0, 0, 0, 0], dilation = [1, 1], groups = 1} : (tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %1 = "tessera.graph.transpose"(%0) {permutation = [0, 3, 1, 2]} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %2 = "tessera.graph.transpose"(%1) {permutation = [0, 1, 3, 2]} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %3 = "tessera.graph.add"(%1, %2) : (tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %4 = "tessera.graph.relu"(%3) : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  func.return %4 : tensor<?x?x?x?xf32>
}
// CHECK-LABEL: func.func @orders
// CHECK: [[IMAGE:%[0-9]+]] = "tessera.graph.conv2d"
// CHECK: [[TURNED:%[0-9]+]] = "tessera.graph.transpose"([[IMAGE]]) {permutation = [0 : i64, 2 : i64, 1 : i64, 3 : i64]
// CHECK: [[SUM:%[0-9]+]] = "tessera.graph.add"([[IMAGE]], [[TURNED]])
// CHECK: [[MAP:%[0-9]+]] = "tessera.graph.relu"([[SUM]])
// CHECK: "tessera.graph.transpose"([[MAP]]) {permutation = [0 : i64, 3 : i64, 1 : i64, 2 : i64]

// Images that are joined, by their channels, are joined as they lie.
func.func @joined(%x: tensor<?x?x?x?xf32>, %y: tensor<?x?x?x?xf32>, %w: tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32> {
  %0 = "tessera.graph.conv2d"(%x, %w) {stride = [1, 1], padding = [0, 0, 0, 0], dilation = [1, 1], groups = 1} : (tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %1 = "tessera.graph.transpose"(%0) {permutation = [0, 3, 1, 2]} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %2 = "tessera.graph.transpose"(%y) {permutation = [0, 3, 1, 2]} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %3 = "tessera.graph.concat"(%1, %2) {axis = 1} : (tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  %4 = "tessera.graph.relu"(%3) : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  func.return %4 : tensor<?x?x?x?xf32>
}
// CHECK-LABEL: func.func @joined
// CHECK: [[IMAGE:%[0-9]+]] = "tessera.graph.conv2d"
// CHECK: [[JOINED:%[0-9]+]] = "tessera.graph.concat"([[IMAGE]], %y) {axis = 3 : i64
// CHECK: [[MAP:%[0-9]+]] = "tessera.graph.relu"([[JOINED]])
// CHECK: "tessera.graph.transpose"([[MAP]]) {permutation = [0 : i64, 3 : i64, 1 : i64, 2 : i64]
