// Z = left * right, the halves along columns of (lower - upper over lower + upper), the halves along rows of X beside Y.
"tessera.tile.kernel"() ({
^bb0(%X: memref<?x?xf32, strided<[?, 1]>>, %Y: memref<?x?xf32, strided<[?, 1]>>, %Z: memref<?x?xf32, strided<[?, 1]>>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %columns = memref.dim %Z, %c1 : memref<?x?xf32, strided<[?, 1]>>
  "tessera.tile.parallel"(%columns) ({
  ^box(%lo: index, %hi: index):
    %x = "tessera.tile.load"(%X, %c0, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
      : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<4x16xf32>
    %y = "tessera.tile.load"(%Y, %c0, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
      : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<4x16xf32>
    %beside = "tessera.tile.join"(%x, %y) {axis = 1} : (vector<4x16xf32>, vector<4x16xf32>) -> vector<4x32xf32>
    %first, %second = "tessera.tile.split"(%beside) {axis = 0} : (vector<4x32xf32>) -> (vector<2x32xf32>, vector<2x32xf32>)
    %difference = arith.subf %first, %second : vector<2x32xf32>
    %sum = arith.addf %first, %second : vector<2x32xf32>
    %below = "tessera.tile.join"(%difference, %sum) {axis = 0} : (vector<2x32xf32>, vector<2x32xf32>) -> vector<4x32xf32>
    %left, %right = "tessera.tile.split"(%below) {axis = 1} : (vector<4x32xf32>) -> (vector<4x16xf32>, vector<4x16xf32>)
    %product = arith.mulf %left, %right : vector<4x16xf32>
    "tessera.tile.store"(%product, %Z, %c0, %c0) {dims = array<i64: 0, 1>, in_bounds = array<i1: false, false>}
      : (vector<4x16xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
  }) {steps = array<i64: 16>, split = 0} : (index) -> ()
}) {sym_name = "halves", outputs = array<i64: 2>} : () -> ()
