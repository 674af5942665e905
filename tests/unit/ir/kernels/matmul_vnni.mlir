// C = A @ B, bf16 operands, fp32 sums. B in panels of 8 columns with pairs of rows side by side; K odd or even.
"tessera.tile.kernel"() ({
^bb0(%A: memref<?x?xbf16, strided<[?, 1]>>, %B: memref<?x?xbf16, strided<[?, 1]>>, %C: memref<?x?xf32, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %M = memref.dim %A, %c0 : memref<?x?xbf16, strided<[?, 1]>>
  %K = memref.dim %A, %c1 : memref<?x?xbf16, strided<[?, 1]>>
  %N = memref.dim %B, %c1 : memref<?x?xbf16, strided<[?, 1]>>
  %zero = arith.constant dense<0.0> : vector<4x8xf32>
  "tessera.tile.parallel"(%M) ({
  ^box(%m_lo: index, %m_hi: index):
    %staged = "tessera.tile.stage"(%K, %N) ({
    ^at(%i: index, %j: index):
      %t = "tessera.tile.load"(%B, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
        : (memref<?x?xbf16, strided<[?, 1]>>, index, index) -> vector<2x8xbf16>
      "tessera.tile.yield"(%t) : (vector<2x8xbf16>) -> ()
    }) {level = "l2", layout = "panels_vnni", maximum = array<i64: 64, 64>} : (index, index) -> memref<?x?x8x2xbf16>
    "tessera.tile.for"(%m_lo, %m_hi) ({
    ^row(%i: index):
      "tessera.tile.for"(%c0, %N) ({
      ^column(%j: index):
        %panel = arith.divsi %j, %c8 : index
        %sum = "tessera.tile.for"(%c0, %K, %zero) ({
        ^k(%k: index, %acc: vector<4x8xf32>):
          %pair = arith.divsi %k, %c2 : index
          %a = "tessera.tile.load"(%A, %i, %k) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
            : (memref<?x?xbf16, strided<[?, 1]>>, index, index) -> vector<4x2xbf16>
          %b = "tessera.tile.load"(%staged, %panel, %pair, %c0, %c0) {dims = array<i64: 3, 2>, in_bounds = array<i1: true, true>}
            : (memref<?x?x8x2xbf16>, index, index, index, index) -> vector<2x8xbf16>
          %next = "tessera.tile.mma_sync"(%a, %b, %acc) {m = 4, n = 8, k = 2, dtype = "bf16"}
            : (vector<4x2xbf16>, vector<2x8xbf16>, vector<4x8xf32>) -> vector<4x8xf32>
          "tessera.tile.yield"(%next) : (vector<4x8xf32>) -> ()
        }) {step = 2} : (index, index, vector<4x8xf32>) -> vector<4x8xf32>
        "tessera.tile.store"(%sum, %C, %i, %j) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>, nontemporal}
          : (vector<4x8xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
        "tessera.tile.yield"() : () -> ()
      }) {step = 8} : (index, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }) {step = 4} : (index, index) -> ()
  }) {steps = array<i64: 4>, split = 0} : (index) -> ()
}) {sym_name = "matmul", outputs = array<i64: 2>} : () -> ()
