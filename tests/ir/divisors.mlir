// What a kernel may rely on of its arguments stands in its Tile IR, and is parsed and printed.
// RUN: tessera opt %s | filecheck %s
"tessera.tile.kernel"() ({
^bb0(%x: memref<?x?xbf16, strided<[?, 1]>>, %count: index):
}) {sym_name = "relies", outputs = array<i64>, divisors = [array<i64: 16, 1, 8, 8, 1>, array<i64>], note = "schedule: a=1"} : () -> ()
// CHECK: divisors = [array<i64: 16, 1, 8, 8, 1>, array<i64>], note = "schedule: a=1"
