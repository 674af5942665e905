// Maps and reductions over the same rows are one kernel.
// RUN: tessera opt --pass-pipeline=fuse-kernels %s | filecheck %s
func.func @softmax(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.max"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %1 = "tessera.graph.sub"(%x, %0) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.exp"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "tessera.graph.sum"(%2) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %4 = "tessera.graph.div"(%2, %3) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  func.return %4 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @softmax
// CHECK: "tessera.schedule.kernel"(%x)
// CHECK: sym_name = "max_sub_exp_2_more_0", family = "row", {{.*}}domain = ["s0", "s1"], reduced = [1 : i64, 2 : i64]}
// CHECK-NEXT: func.return

func.func @two_reductions(%x: tensor<?x?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "tessera.graph.mul"(%x, %x) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.sum"(%0) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %2 = "tessera.graph.max"(%0) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  func.return %1, %2 : tensor<?xf32>, tensor<?xf32>
}
// CHECK-LABEL: func.func @two_reductions
// CHECK: "tessera.schedule.yield"({{%.*, %.*}}) : (tensor<?xf32>, tensor<?xf32>)
// CHECK-NEXT: sym_name = "mul_sum_max_0"

// Rows and columns are one walk.
func.func @rows_and_columns(%x: tensor<?x?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "tessera.graph.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.sum"(%0) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %2 = "tessera.graph.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  func.return %1, %2 : tensor<?xf32>, tensor<?xf32>
}
// CHECK-LABEL: func.func @rows_and_columns
// CHECK: sym_name = "exp_sum_sum_0", family = "rows_and_columns"

// Row sums added to the rows of a square matrix walk its columns: they go through memory.
func.func @square(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.sum"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.add"(%x, %0) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  func.return %1 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @square
// CHECK: sym_name = "sum_0"
// CHECK: sym_name = "add_1"

func.func @column_means(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.mean"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %1 = "tessera.graph.sub"(%x, %0) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  func.return %1 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @column_means
// CHECK: sym_name = "mean_sub_0", family = "column"
// CHECK-NEXT: func.return

func.func @norm(%x: tensor<?x?xf32>, %r: tensor<?x?xf32>, %w: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.add"(%x, %r) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.layer_norm"(%0, %w, %b) {eps = 1.0e-5} : (tensor<?x?xf32>, tensor<?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.gelu"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @norm
// CHECK: sym_name = "add_layer_norm_gelu_0", family = "row"
// CHECK-NEXT: func.return
