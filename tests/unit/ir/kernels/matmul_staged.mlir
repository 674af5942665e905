// C = A @ B in fp32. B in panels of 8 columns, A in panels of 4 rows, K in blocks of 6, tiles of 4x8, any extents.
"tessera.tile.kernel"() ({
^bb0(%A: memref<?x?xf32, strided<[?, ?]>>, %B: memref<?x?xf32, strided<[?, ?]>>, %C: memref<?x?xf32, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c6 = arith.constant 6 : index
  %c8 = arith.constant 8 : index
  %M = memref.dim %A, %c0 : memref<?x?xf32, strided<[?, ?]>>
  %K = memref.dim %A, %c1 : memref<?x?xf32, strided<[?, ?]>>
  %N = memref.dim %B, %c1 : memref<?x?xf32, strided<[?, ?]>>
  %zero = arith.constant dense<0.0> : vector<4x8xf32>
  "tessera.tile.parallel"(%M, %N) ({
  ^box(%m_lo: index, %m_hi: index, %n_lo: index, %n_hi: index):
    %rows = arith.subi %m_hi, %m_lo : index
    %columns = arith.subi %n_hi, %n_lo : index
    "tessera.tile.for"(%c0, %K) ({
    ^block(%p: index):
      %left = arith.subi %K, %p : index
      %depth = arith.minsi %left, %c6 : index
      %first = arith.cmpi eq, %p, %c0 : index
      %staged_b = "tessera.tile.stage"(%depth, %columns) ({
      ^at(%i: index, %j: index):
        %row = arith.addi %p, %i : index
        %column = arith.addi %n_lo, %j : index
        %t = "tessera.tile.load"(%B, %row, %column) {dims = array<i64: 0, 1>, in_bounds = array<i1: true, false>}
          : (memref<?x?xf32, strided<[?, ?]>>, index, index) -> vector<1x8xf32>
        "tessera.tile.yield"(%t) : (vector<1x8xf32>) -> ()
      }) {level = "l2", layout = "panels", maximum = array<i64: 6, 64>} : (index, index) -> memref<?x?x8xf32>
      %staged_a = "tessera.tile.stage"(%rows, %depth) ({
      ^at(%i: index, %j: index):
        %row = arith.addi %m_lo, %i : index
        %column = arith.addi %p, %j : index
        %t = "tessera.tile.load"(%A, %row, %column) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, true>}
          : (memref<?x?xf32, strided<[?, ?]>>, index, index) -> vector<4x1xf32>
        "tessera.tile.yield"(%t) : (vector<4x1xf32>) -> ()
      }) {level = "l1", layout = "row_panels", maximum = array<i64: 64, 6>} : (index, index) -> memref<?x?x4xf32>
      "tessera.tile.for"(%c0, %rows) ({
      ^row(%i: index):
        "tessera.tile.for"(%c0, %columns) ({
        ^column(%j: index):
          %y = arith.addi %m_lo, %i : index
          %x = arith.addi %n_lo, %j : index
          %start = scf.if %first -> (vector<4x8xf32>) {
            scf.yield %zero : vector<4x8xf32>
          } else {
            %c = "tessera.tile.load"(%C, %y, %x) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
              : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<4x8xf32>
            scf.yield %c : vector<4x8xf32>
          }
          %pa = arith.divsi %i, %c4 : index
          %pb = arith.divsi %j, %c8 : index
          %sum = "tessera.tile.for"(%c0, %depth, %start) ({
          ^k(%k: index, %acc: vector<4x8xf32>):
            %a = "tessera.tile.load"(%staged_a, %pa, %k, %c0) {dims = array<i64: 2, 1>, in_bounds = array<i1: true, true>}
              : (memref<?x?x4xf32>, index, index, index) -> vector<4x1xf32>
            %b = "tessera.tile.load"(%staged_b, %pb, %k, %c0) {dims = array<i64: 1, 2>, in_bounds = array<i1: true, true>}
              : (memref<?x?x8xf32>, index, index, index) -> vector<1x8xf32>
            %next = "tessera.tile.mma_sync"(%a, %b, %acc) {m = 4, n = 8, k = 1, dtype = "fp32"}
              : (vector<4x1xf32>, vector<1x8xf32>, vector<4x8xf32>) -> vector<4x8xf32>
            "tessera.tile.yield"(%next) : (vector<4x8xf32>) -> ()
          }) {step = 1, unroll = 2} : (index, index, vector<4x8xf32>) -> vector<4x8xf32>
          "tessera.tile.store"(%sum, %C, %y, %x) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
            : (vector<4x8xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
          "tessera.tile.yield"() : () -> ()
        }) {step = 8} : (index, index) -> ()
        "tessera.tile.yield"() : () -> ()
      }) {step = 4} : (index, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }) {step = 6} : (index, index) -> ()
  }) {steps = array<i64: 4, 8>, split = 0} : (index, index) -> ()
}) {sym_name = "matmul", outputs = array<i64: 2>} : () -> ()
