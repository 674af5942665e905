// A kernel over buffers, what it computes and how, becomes Tile IR; what it is for decides which.
// RUN: tessera opt %s --pass-pipeline lower-schedule{target=neoverse-n1} | filecheck %s
// RUN: tessera opt %s --pass-pipeline verify | filecheck %s --check-prefix=READ
"tessera.schedule.kernel"() ({
^bb0(%x: memref<?x?xf32, strided<[?, 1]>>, %y: memref<?xf32, strided<[1]>>):
  %value = "tessera.schedule.load"(%x) : (memref<?x?xf32, strided<[?, 1]>>) -> f32
  %square = "tessera.schedule.mul"(%value, %value) : (f32, f32) -> f32
  %sum = "tessera.schedule.reduce"(%square) {kind = "add", along = ["c"]} : (f32) -> f32
  "tessera.schedule.store"(%sum, %y) : (f32, memref<?xf32, strided<[1]>>) -> ()
}) {sym_name = "squares", family = "map-reduce", arguments = [{axes = ["r", "c"]}, {axes = ["r"]}],
    outer = ["r"], reduced = "c", lanes = "c",
    knobs = {tile = [1, 8], keep = 0, ahead = false, nontemporal = false, parallel = "outer", fusion = true}} : () -> ()
// CHECK: "tessera.tile.kernel"() ({
// CHECK-NEXT: ^bb0(%0: memref<?x?xf32, strided<[?, 1]>>, %1: memref<?xf32, strided<[1]>>):
// CHECK: "tessera.tile.parallel"
// CHECK: arith.mulf %{{.*}} : vector<1x8xf32>
// CHECK: "tessera.tile.reduce"(%{{.*}}) {kind = "add"
// CHECK: "tessera.tile.store"
// CHECK: sym_name = "squares", outputs = array<i64: 1>
// CHECK-NOT: tessera.schedule
// READ: %sum = "tessera.schedule.reduce"(%square) {kind = "add", along = ["c"]} : (f32) -> f32
// READ: knobs = {tile = [1 : i64, 8 : i64], keep = 0 : i64
