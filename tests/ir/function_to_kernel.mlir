// A function of tiles as a kernel: what it takes is read from buffers, what it gives is written to more.
// RUN: tessera opt %s --pass-pipeline function-to-kernel | filecheck %s
func.func @both(%a: vector<4x8xf8E4M3FN>, %b: vector<8xf32>) -> (vector<4x8xf32>, vector<8xf32>) {
  %wide = "tessera.tile.cast"(%a) : (vector<4x8xf8E4M3FN>) -> vector<4x8xf32>
  func.return %wide, %b : vector<4x8xf32>, vector<8xf32>
}
// CHECK: ^bb0(%a: memref<4x8xf8E4M3FN>, %b: memref<8xf32>, %wide: memref<4x8xf32>, %b_1: memref<8xf32>):
// CHECK: "tessera.tile.parallel"
// CHECK: %a_1 = "tessera.tile.load"(%a,
// CHECK: %b_2 = "tessera.tile.load"(%b,
// CHECK: %wide_1 = "tessera.tile.cast"(%a_1)
// CHECK: "tessera.tile.store"(%wide_1, %wide,
// CHECK: "tessera.tile.store"(%b_2, %b_1,
// CHECK: sym_name = "both", outputs = array<i64: 2, 3>
