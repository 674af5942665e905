// Y = softmax(X) along the last dimension, in two passes of tiles of 2x8; what lies outside is masked, never trusted.
"tessera.tile.kernel"() ({
^bb0(%X: memref<?x?xf32, strided<[?, ?]>>, %Y: memref<?x?xf32, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %M = memref.dim %X, %c0 : memref<?x?xf32, strided<[?, ?]>>
  %N = memref.dim %X, %c1 : memref<?x?xf32, strided<[?, ?]>>
  %low = arith.constant dense<0xFF800000> : vector<2x8xf32>
  %none = arith.constant dense<0.0> : vector<2x8xf32>
  "tessera.tile.parallel"(%M) ({
  ^box(%lo: index, %hi: index):
    "tessera.tile.for"(%lo, %hi) ({
    ^row(%i: index):
      %most = "tessera.tile.for"(%c0, %N, %low) ({
      ^first(%j: index, %so_far: vector<2x8xf32>):
        %x = "tessera.tile.load"(%X, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>, oob = "any"}
          : (memref<?x?xf32, strided<[?, ?]>>, index, index) -> vector<2x8xf32>
        %inside = "tessera.tile.mask"(%j, %N) {axis = 1} : (index, index) -> vector<2x8xi1>
        %masked = "tessera.tile.select"(%inside, %x, %low) : (vector<2x8xi1>, vector<2x8xf32>, vector<2x8xf32>) -> vector<2x8xf32>
        %larger = arith.maximumf %so_far, %masked : vector<2x8xf32>
        "tessera.tile.yield"(%larger) : (vector<2x8xf32>) -> ()
      }) {step = 8} : (index, index, vector<2x8xf32>) -> vector<2x8xf32>
      %top = "tessera.tile.reduce"(%most) {kind = "max", axis = 1} : (vector<2x8xf32>) -> vector<2x1xf32>
      %peak = "tessera.tile.broadcast"(%top) : (vector<2x1xf32>) -> vector<2x8xf32>
      %sums = "tessera.tile.for"(%c0, %N, %none) ({
      ^second(%j: index, %so_far: vector<2x8xf32>):
        %x = "tessera.tile.load"(%X, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>, fill = 0xFF800000 : f32}
          : (memref<?x?xf32, strided<[?, ?]>>, index, index) -> vector<2x8xf32>
        %shifted = arith.subf %x, %peak : vector<2x8xf32>
        %e = math.exp %shifted : vector<2x8xf32>
        "tessera.tile.store"(%e, %Y, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
          : (vector<2x8xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
        %next = arith.addf %so_far, %e : vector<2x8xf32>
        "tessera.tile.yield"(%next) : (vector<2x8xf32>) -> ()
      }) {step = 8} : (index, index, vector<2x8xf32>) -> vector<2x8xf32>
      %total = "tessera.tile.reduce"(%sums) {kind = "add", axis = 1} : (vector<2x8xf32>) -> vector<2x1xf32>
      %whole = "tessera.tile.broadcast"(%total) : (vector<2x1xf32>) -> vector<2x8xf32>
      "tessera.tile.for"(%c0, %N) ({
      ^third(%j: index):
        %e = "tessera.tile.load"(%Y, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
          : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<2x8xf32>
        %y = arith.divf %e, %whole : vector<2x8xf32>
        "tessera.tile.store"(%y, %Y, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
          : (vector<2x8xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
        "tessera.tile.yield"() : () -> ()
      }) {step = 8} : (index, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }) {step = 2} : (index, index) -> ()
  }) {steps = array<i64: 2>, split = 0} : (index) -> ()
}) {sym_name = "softmax", outputs = array<i64: 1>} : () -> ()
