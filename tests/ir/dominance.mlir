// A value is used before it is defined: the error names the value, the use and the definition.
// RUN: not tessera opt %s 2>&1 | filecheck %s
func.func @late(%x: tensor<?xf32>) -> tensor<?xf32> {
  %twice = "tessera.graph.add"(%x, %more) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %more = "tessera.graph.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  func.return %twice : tensor<?xf32>
}
// CHECK: E_IR: {{.*}}dominance.mlir:4:3: %more is operand 1 of tessera.graph.add, but tessera.graph.exp defines it later (line 5)
// CHECK-NEXT: %twice = "tessera.graph.add"
// CHECK-NEXT: ^^^^^^
