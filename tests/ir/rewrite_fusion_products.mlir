// Around a matrix product: maps over its result are its epilogue, cheap maps over an operand its prologue.
// RUN: tessera opt --pass-pipeline=fuse-kernels %s | filecheck %s
// RUN: tessera opt --pass-pipeline=fuse-kernels{limit=2} %s | filecheck %s --check-prefix=TWO
// RUN: tessera opt --pass-pipeline=fuse-kernels{limit=1} %s | filecheck %s --check-prefix=NONE
func.func @epilogue(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>, %c: tensor<?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.matmul"(%a, %b) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.add"(%0, %c) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.gelu"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @epilogue
// CHECK-NEXT: %0 = "tessera.schedule.kernel"(%a, %b, %c) ({
// CHECK: "tessera.graph.matmul"
// CHECK-NEXT: "tessera.graph.add"
// CHECK-NEXT: %[[LAST:.*]] = "tessera.graph.gelu"
// CHECK-NEXT: "tessera.schedule.yield"(%[[LAST]])
// CHECK-NEXT: {sym_name = "matmul_add_gelu_0", family = "contraction", {{.*}}domain = ["s0", "s2"]}
// CHECK-NEXT: func.return %0
// The fusion depth decides.
// TWO-LABEL: func.func @epilogue
// TWO: sym_name = "matmul_add_0"
// TWO: sym_name = "gelu_1"
// NONE-LABEL: func.func @epilogue
// NONE: sym_name = "matmul_0"
// NONE: sym_name = "add_1"
// NONE: sym_name = "gelu_2"

// What another kernel, or the caller, needs of a product is stored: it does not stay in registers.
func.func @product_needed(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %0 = "tessera.graph.matmul"(%a, %b) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.exp"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %0, %1 : tensor<?x?xf32>, tensor<?x?xf32>
}
// CHECK-LABEL: func.func @product_needed
// CHECK: sym_name = "matmul_0"
// CHECK: sym_name = "exp_1"

func.func @prologue(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.relu"(%a) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.neg"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.matmul"(%1, %b) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @prologue
// CHECK: sym_name = "relu_neg_matmul_0", family = "contraction"
// CHECK-NEXT: func.return

// Packing reads an operand once for each block of the other: a dear function is computed once, before.
func.func @dear(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.exp"(%a) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.matmul"(%0, %b) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %1 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @dear
// CHECK: sym_name = "exp_0"
// CHECK: sym_name = "matmul_1"

// Both operands come of one value: it lies one way in A and another in B.
func.func @shared_operand(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.neg"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.relu"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.matmul"(%0, %1) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @shared_operand
// CHECK: sym_name = "neg_relu_0", family = "row"
// CHECK: sym_name = "matmul_1"

// Of two products that are added, one waits for the other and adds it in its epilogue.
func.func @sum_of_products(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "tessera.graph.matmul"(%a, %b) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "tessera.graph.matmul"(%b, %a) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "tessera.graph.add"(%0, %1) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %2 : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @sum_of_products
// CHECK: sym_name = "matmul_0"
// CHECK: sym_name = "matmul_add_1"
