// One kernel: a region of graph operations with the schedule in its attributes and on its anchor.
// RUN: tessera opt %s --pass-pipeline verify | filecheck %s
func.func @fused(%x: tensor<?x?xf32>, %w: tensor<?x?xf32>, %b: tensor<?xf32>) -> tensor<?x?xf32> {
  %y = "tessera.schedule.kernel"(%x, %w, %b) ({
  ^bb0(%a0: tensor<?x?xf32>, %a1: tensor<?x?xf32>, %a2: tensor<?xf32>):
    %tiled = "tessera.schedule.tile"(%a0, %a1) {m = 12, n = 32, k = 256} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
    %biased = "tessera.graph.add"(%tiled, %a2) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
    "tessera.schedule.yield"(%biased) : (tensor<?x?xf32>) -> ()
  }) {sym_name = "matmul_add", family = "contraction", pack_a = true, mc = 192} : (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  func.return %y : tensor<?x?xf32>
}
// CHECK: %y = "tessera.schedule.kernel"(%x, %w, %b) ({
// CHECK-NEXT: ^bb0(%a0: tensor<?x?xf32>, %a1: tensor<?x?xf32>, %a2: tensor<?xf32>):
// CHECK-NEXT: %tiled = "tessera.schedule.tile"(%a0, %a1) {m = 12 : i64, n = 32 : i64, k = 256 : i64}
// CHECK: "tessera.schedule.yield"(%biased) : (tensor<?x?xf32>) -> ()
// CHECK-NEXT: }) {sym_name = "matmul_add", family = "contraction", pack_a = true, mc = 192 : i64}
