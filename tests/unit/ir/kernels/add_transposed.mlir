// Z = scale * X^T + bias, X read through dims = [1, 0], bias a memref whose rows have stride 0.
"tessera.tile.kernel"() ({
^bb0(%X: memref<?x?xf32, strided<[?, 1]>>, %bias: memref<?x?xf32, strided<[0, 1]>>, %scale: f32,
     %Z: memref<?x?xf32, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = memref.dim %Z, %c0 : memref<?x?xf32, strided<[?, 1]>>
  %columns = memref.dim %Z, %c1 : memref<?x?xf32, strided<[?, 1]>>
  %factor = "tessera.tile.broadcast"(%scale) : (f32) -> vector<4x8xf32>
  "tessera.tile.parallel"(%rows, %columns) ({
  ^box(%i_lo: index, %i_hi: index, %j_lo: index, %j_hi: index):
    "tessera.tile.for"(%i_lo, %i_hi) ({
    ^row(%i: index):
      "tessera.tile.for"(%j_lo, %j_hi) ({
      ^column(%j: index):
        %x = "tessera.tile.load"(%X, %j, %i) {dims = array<i64: 1, 0>, in_bounds = array<i1: false, false>}
          : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<4x8xf32>
        %b = "tessera.tile.load"(%bias, %c0, %j) {dims = array<i64: -1, 1>, in_bounds = array<i1: true, false>}
          : (memref<?x?xf32, strided<[0, 1]>>, index, index) -> vector<1x8xf32>
        %spread = "tessera.tile.broadcast"(%b) : (vector<1x8xf32>) -> vector<4x8xf32>
        %z = math.fma %x, %factor, %spread : vector<4x8xf32>
        "tessera.tile.store"(%z, %Z, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
          : (vector<4x8xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
        "tessera.tile.yield"() : () -> ()
      }) {step = 8} : (index, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }) {step = 4} : (index, index) -> ()
  }) {steps = array<i64: 4, 8>, split = 1} : (index, index) -> ()
}) {sym_name = "add_transposed", outputs = array<i64: 3>} : () -> ()
